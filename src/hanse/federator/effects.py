"""Execution of the protocol's effects (`hanse.protocol.effects`): each effect goes to the module that serves it.

Rules: effects are carried out in order. When `carry_out` returns, they are done or under way. An effect that can only
be completed later (by a disk, by a link without capacity) belongs to its module, which tells the protocol itself.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hanse.federator.custodian import Custodian
from hanse.federator.linking import Links
from hanse.federator.links_by_broker import BrokerLinkBook
from hanse.federator.metrics import LinkTraffic
from hanse.federator.store import StateDirectory
from hanse.protocol import codec
from hanse.protocol.effects import (
    Acknowledge,
    CloseLink,
    Deliver,
    Discard,
    Effect,
    Emit,
    Fetch,
    Send,
    SendRuns,
    SendSummaries,
    Store,
    StoreEpoch,
    SubscribeHost,
    UnsubscribeHost,
)
from hanse.protocol.messages import HOST, Run

_log = logging.getLogger(__name__)


class Wishes(Protocol):
    """Subscriber at the host broker on behalf of others; a leaf has none."""

    def begin(self, group: str) -> None:
        """Subscribe, because a federator elsewhere wants a group."""

    def end(self, group: str) -> None:
        """Unsubscribe, because no federator wants the group any more."""


class Effects:
    """Executor of one federator's effects.

    Args:
        links: links to the neighbours.
        custodian: disk behind custody.
        wanted: subscriptions at the host broker.
        state: state directory with the epoch.
        sent: counters of control frames, by neighbour.
        send_runs: function that sends runs to a neighbour, with a token.
        deliver: function that hands runs to the host broker, with a token.
        finish_batch: function that lets the host broker forget a batch that it handed in.
        tell: function that hands a notice to observers.
    """

    def __init__(
        self,
        *,
        links: Links,
        custodian: Custodian,
        wanted: Wishes,
        state: StateDirectory,
        sent: Mapping[int, LinkTraffic],
        send_runs: Callable[[int, Sequence[Run], int], None],
        deliver: Callable[[list[Run], int], None],
        finish_batch: Callable[[int], None],
        tell: Callable[[Emit], None],
    ) -> None:
        self._links = links
        self._custodian = custodian
        self._wanted = wanted
        self._state = state
        self._sent = sent
        self._send_runs = send_runs
        self._deliver = deliver
        self._finish_batch = finish_batch
        self._tell = tell

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Carry out effects."""
        for effect in effects:
            match effect:
                case Send(neighbour, frame):
                    traffic = self._sent[neighbour]
                    traffic.control_frames += 1
                    traffic.control_bytes += self._links.send_control(neighbour, frame)
                case SendRuns(neighbour, runs, token):
                    self._send_runs(neighbour, runs, token)
                case SendSummaries() | Deliver() | Acknowledge() | Store() | Fetch() | Discard():
                    self._carry_out_custody(effect)
                case SubscribeHost(group):
                    self._wanted.begin(group)
                case UnsubscribeHost(group):
                    self._wanted.end(group)
                case StoreEpoch(epoch):
                    self._state.write_epoch(epoch)
                case CloseLink(neighbour, reason):
                    _log.warning("link to federator %d closed: %s", neighbour, reason)
                    self._links.close(neighbour, reason)
                case Emit():
                    self._emit(effect)

    def _carry_out_custody(self, effect: SendSummaries | Deliver | Acknowledge | Store | Fetch | Discard) -> None:
        match effect:
            case Acknowledge(giver, receipts):
                for receipt in receipts:
                    if giver == HOST:
                        self._finish_batch(receipt)
                    else:
                        self._links.ack(giver, receipt)
            case SendSummaries(neighbour, summaries, token):
                self._links.send_data(neighbour, codec.encode_summaries(summaries), 0, token)
            case Deliver(runs, token):
                self._deliver(list(runs), token)
            case Store():
                self._custodian.store(effect)
            case Fetch():
                self._custodian.fetch(effect)
            case Discard():
                self._custodian.discard(effect)

    def _emit(self, event: Emit) -> None:
        self._tell(event)
        if isinstance(self._links, BrokerLinkBook):
            if event.name == "neighbour_lost":
                self._links.forgive(event.neighbour)
            elif event.name == "neighbour_left":
                self._links.note_left(event.neighbour)
