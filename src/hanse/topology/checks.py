"""Health checks as telemetry: each probe becomes a `HealthCheck`, from which the pipeline computes clock offsets.

A probe that its federator answers is a two-way check. The manager has the times at which the probe was sent and came
back. The answer has the times at which it was received and answered, by the other clock (`docs/topology.md` describes
its form).

Rules:

1. An answered check is reported only with all four times. An older federator answers without them, and a broker alone
   has no clock to report.
2. A failed check is reported with the host that last answered for the target, otherwise with its address.
3. An answer that any client of a broker may have written is parsed strictly, and never makes a federator unhealthy.
"""

import json
import platform
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from hanse.telemetry.contracts import HealthCheck
from hanse.telemetry.encoding import MOMENT_US_MAX
from hanse.telemetry.reporter import Reporter
from hanse.topology.health import CAUSES, Answer, Observation, Outcome

ANSWER_BYTES_MAX = 1024
_HOST_CHARS_MAX = 253
# Rows until the next report: a round of 10,000 federators.
ROWS_MAX = 10_000
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_.:@-]")


def read_answer(payload: bytes) -> Answer | None:
    """Parse an answer (rule 3). Return None for an empty or malformed one."""
    if not 0 < len(payload) <= ANSWER_BYTES_MAX:
        return None
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    host, received_us, answered_us = (document.get(name) for name in ("host", "received_us", "answered_us"))
    if not isinstance(host, str) or not 0 < len(host) <= _HOST_CHARS_MAX or not host.isprintable():
        return None
    if type(received_us) is not int or type(answered_us) is not int:
        return None
    if not 0 < received_us <= answered_us <= MOMENT_US_MAX:
        return None
    return Answer(host, received_us, answered_us)


class CheckReporter:
    """Checks of one manager, collected until the next flush."""

    def __init__(self, manager: str, host: str = "") -> None:
        # Never equal to the id of a federator, which is a number.
        self.reporter = "manager-" + _NOT_IN_AN_ID.sub("_", manager)[:200]
        self._host = host or platform.node() or "unknown"
        self._rows = Reporter(self.reporter, ROWS_MAX)
        self._hosts: dict[int, str] = {}

    @property
    def dropped(self) -> int:
        """Number of checks dropped for lack of capacity."""
        return sum(self._rows.dropped.values())

    def note(self, seen: Iterable[Observation], keys: Mapping[int, str]) -> None:
        """Add the observations of a round, or of a second look. `keys` are the addresses of the brokers."""
        for one in seen:
            row = self._row(one, keys.get(one.id, ""))
            if row is not None:
                self._rows.add(row)

    def forget(self, kept: Iterable[int]) -> None:
        """Forget all federators but these."""
        self._hosts = {node: host for node, host in self._hosts.items() if node in set(kept)}

    def flush(self) -> list[tuple[str, bytes]]:
        """Return topics and payloads of all collected checks."""
        return self._rows.flush()

    def _row(self, one: Observation, key: str) -> HealthCheck | None:
        exchange = one.exchange
        if exchange is None:
            return None
        answer = exchange.answer
        if one.outcome is not Outcome.WELL:
            host = self._hosts.get(one.id) or urlsplit(key).hostname or "unknown"
            reason = CAUSES[one.outcome]
            return HealthCheck(str(one.id), self._host, host, exchange.sent_us, None, None, None, False, reason)
        if answer is None or exchange.returned_us is None or exchange.returned_us < exchange.sent_us:
            return None  # rule 1, or our clock was set meanwhile
        self._hosts[one.id] = answer.host
        return HealthCheck(
            target=str(one.id),
            host=self._host,
            target_host=answer.host,
            sent_at_us=exchange.sent_us,
            received_at_us=answer.received_us,
            answered_at_us=answer.answered_us,
            returned_at_us=exchange.returned_us,
            is_ok=True,
            reason=None,
        )
