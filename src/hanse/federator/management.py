"""Messages between federators: over the management group, in which all take part, and over private groups.

    {"kind": "trace", "id", "topic"}        a federator follows a topic, and asks for remarks (`tracing`)
    {"kind": "shares", "names"}             names of the shared subscriptions in use at the sender's broker
    {"kind": "bridges", "names"}            static bridges at the sender's broker (`bridges`)

Reports on our own traces arrive over the private group. Packets about retained state (`retained`) use both.

Rules:

1. Bridges and share names are sent when they change, and again every `TELL_EVERY_S`, for federators that join later.
2. A message comes from another federator: a malformed one is counted and dropped, and one of an unknown kind is from a
   newer federator and skipped.
3. Operators should know of a share name that is in use at two brokers, because each share group gets every message.
   There is one warning per name and federator, up to `SHARE_NAMES_MAX`.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from hanse.errors import RemoteError
from hanse.federator.bridges import BridgeBook
from hanse.federator.echoes import EchoMemory
from hanse.federator.retained import TOPIC as RETAINED_TOPIC
from hanse.federator.tracing import Tracing
from hanse.interest import Report
from hanse.mqtt.publication import encode, payload_of
from hanse.protocol.identity import private_group
from hanse.protocol.messages import Run
from hanse.protocol.packets import split, topic_of
from hanse.protocol.settings import MANAGEMENT_GROUP

TELL_EVERY_S = 3.0
# Share names in one message, and warnings given once. More are omitted.
SHARE_NAMES_MAX = 1_000
_log = logging.getLogger(__name__)

# Errors from parsing another federator's message: it is not JSON, nests too deep, or has other contents than expected.
_NOT_ONE_OF_OURS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    RemoteError,
    TypeError,
    ValueError,
)


class Management:
    """One federator's part in the messages.

    Args:
        publish: function that sends packets to a group over the federation.
        retained: function that handles the sender and the packet of a message about retained state.
        tracing: tracing, which handles questions and answers.
        echoes: memory of echoes, which needs the brokers joined by bridges.
        shares: function that returns the share names in use at this broker.
        counters: counters of `management_refused`, `share_names_at_two_brokers`.
    """

    def __init__(
        self,
        identity: int,
        *,
        publish: Callable[[str, list[bytes]], None],
        retained: Callable[[int, bytes], None],
        tracing: Tracing,
        echoes: EchoMemory,
        shares: Callable[[], Mapping[str, object]],
        counters: Counter[str],
    ) -> None:
        self._private_group = private_group(identity)
        self._publish = publish
        self._retained = retained
        self._tracing = tracing
        self._echoes = echoes
        self._shares = shares
        self._counters = counters
        self._bridges = BridgeBook()
        self._warned: set[tuple[str, int]] = set()

    # --- outgoing -----------------------------------------------------------------------------------------------------

    def tell_all(self, message: Mapping[str, object]) -> None:
        """Send a message to all federators."""
        self._publish(MANAGEMENT_GROUP, [encode(MANAGEMENT_GROUP, json.dumps(message).encode(), qos=1)])

    def take_reports(self, reports: Sequence[Report]) -> None:
        """Take the bridges at this broker from an adapter's reports."""
        if self._bridges.take(reports):
            self._tell_bridges()
            self._expect_echoes()

    def tell_shares(self) -> None:
        """Send the share names in use here."""
        self.tell_all({"kind": "shares", "names": sorted(self._shares())[:SHARE_NAMES_MAX]})

    async def tell_again(self) -> None:
        """Apply rule 1, until the end."""
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            if self._bridges.names:
                self._tell_bridges()
            if self._shares():
                self.tell_shares()

    def _tell_bridges(self) -> None:
        self.tell_all({"kind": "bridges", "names": self._bridges.names})

    # --- incoming -----------------------------------------------------------------------------------------------------

    def take(self, run: Run) -> None:
        """Handle a run for federators, not for clients."""
        if run.groups[0] == self._private_group and self._tracing.take_report(run):
            return
        for start, end in split(run.body):
            try:
                self._read(run.origin, run.body[start:end])
            except _NOT_ONE_OF_OURS:
                self._counters["management_refused"] += 1

    def _read(self, origin: int, packet: bytes) -> None:
        topic = topic_of(packet)
        if topic == RETAINED_TOPIC:
            self._retained(origin, packet)
        if topic != MANAGEMENT_GROUP:
            return
        message = json.loads(payload_of(packet))
        match message.get("kind"):
            case "trace":
                self._tracing.on_question(origin, message)
            case "shares":
                self._compare_shares(origin, [str(name) for name in message["names"]])
            case "bridges":
                self._bridges.hear(origin, [str(name) for name in message["names"]])
                self._expect_echoes()

    def _compare_shares(self, origin: int, names: list[str]) -> None:
        """Apply rule 3."""
        both = {(name, origin) for name in set(names) & set(self._shares())} - self._warned
        for name, _ in sorted(both):
            if len(self._warned) >= SHARE_NAMES_MAX:
                return
            self._warned.add((name, origin))
            self._counters["share_names_at_two_brokers"] += 1
            _log.warning(
                "share name %r is also in use at federator %d: each broker's share group gets every message",
                name,
                origin,
            )

    def _expect_echoes(self) -> None:
        self._echoes.expect_from(self._bridges.joined(), is_bridged=bool(self._bridges.names))
