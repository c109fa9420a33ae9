"""Runs on their way to a neighbour: one frame per batch.

Rules:

- A frame carries a token if anything in it is of QoS 1 or 2. It then waits while its link has no capacity (R55, R59).
- QoS 0 does not wait with it. Without capacity it goes in a frame of its own, and is dropped and counted like any QoS
  0. In the same frame, half of a storm would wait in memory for a trickle of QoS 1, without a bound.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from hanse.federator.linking import Links
from hanse.federator.metrics import LinkTraffic
from hanse.protocol import codec
from hanse.protocol.accounts import Accounts
from hanse.protocol.messages import Run


class Onward:
    """Sender of runs to the neighbours of one federator.

    Args:
        links: links to the neighbours.
        sent: counters of sent publications by neighbour.
        accounts: accounts of drops.
        counters: counters of `forwarded`.
    """

    def __init__(
        self, links: Links, *, sent: Mapping[int, LinkTraffic], accounts: Accounts, counters: Counter[str]
    ) -> None:
        self._links = links
        self._sent = sent
        self._accounts = accounts
        self._counters = counters

    def send(self, neighbour: int, runs: Sequence[Run], token: int) -> None:
        """Send a batch to a neighbour; with a token, its acknowledgement is reported."""
        if token and not self._links.has_room(neighbour):
            loose = [run for run in runs if not run[4]]
            if loose:
                self._send_frame(neighbour, loose, 0)
                runs = [run for run in runs if run[4]]
        self._send_frame(neighbour, runs, token)

    def _send_frame(self, neighbour: int, runs: Sequence[Run], token: int) -> None:
        count = 0
        traffic = self._sent[neighbour]
        for run in runs:
            count += run[3]
            traffic.messages[run[4]] += run[3]
        front, body = codec.encode_data_parts(runs)
        traffic.frames += 1
        traffic.bytes += len(front) + len(body)
        if self._links.send_data(neighbour, front, count, token, body):
            self._counters["forwarded"] += count
        else:
            traffic.dropped_frames += 1
            for run in runs:
                self._accounts.count("dropped:link", run, neighbour=neighbour)
