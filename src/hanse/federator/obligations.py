"""Order of acknowledgements: a sender of QoS 1 or 2 gets its acknowledgement after all receivers acknowledged to us.

The host broker gets acknowledgements in the order in which it sent (MQTT 5, 4.6). A broker that numbers without
checking, as Mosquitto does, would otherwise reuse a packet identifier that an old publication here still holds.

There is one obligation per batch, not per message. It counts the link frames and host deliveries of the batch, and
calls its release when the last of them is acknowledged. A batch without any (a duplicate, nobody interested) is
released at once.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable


class Obligation:
    """One batch on its way onward."""

    __slots__ = ("_left", "_release")

    def __init__(self, release: Callable[[], None]) -> None:
        # One for the sender of the batch, so that nothing is released while it is still being distributed.
        self._left = 1
        self._release = release

    def owe(self, count: int = 1) -> None:
        """Wait for more acknowledgements."""
        self._left += count

    def settle(self, count: int = 1) -> None:
        """Count acknowledgements, or the end of the distribution."""
        self._left -= count
        if not self._left:
            self._release()


class AckOrder:
    """Batches of receipts, acknowledged in the order of arrival, whichever is finished first."""

    __slots__ = ("_ack", "_batches")

    def __init__(self, ack: Callable[[list[int]], None]) -> None:
        self._ack = ack
        # Receipts, and whether they may be acknowledged.
        self._batches: deque[tuple[list[int], list[bool]]] = deque()

    def __len__(self) -> int:
        return len(self._batches)

    def begin(self, receipts: list[int]) -> Callable[[], None]:
        """Register a batch; call the returned function when it may be acknowledged."""
        is_done = [False]
        self._batches.append((receipts, is_done))

        def finish() -> None:
            is_done[0] = True
            ready: list[int] = []
            while self._batches and self._batches[0][1][0]:
                ready += self._batches.popleft()[0]
            if ready:
                self._ack(ready)

        return finish


class DeliveryBook:
    """Mapping from numbers of the host session to obligations."""

    __slots__ = ("_done", "_firsts", "_stretches")

    def __init__(self) -> None:
        # (first number, end, acknowledgements still to come, obligation), in rising order, and the first numbers alone.
        self._stretches: list[tuple[int, int, list[int], Obligation]] = []
        self._firsts: list[int] = []
        # Number of finished entries at the beginning.
        self._done = 0

    def __len__(self) -> int:
        return len(self._stretches) - self._done

    def add(self, first: int, count: int, obligation: Obligation) -> None:
        """Note that `count` publications from number `first` on were handed to the host broker."""
        obligation.owe()
        self._stretches.append((first, first + count, [count], obligation))
        self._firsts.append(first)

    def settle(self, numbers: Iterable[int]) -> None:
        """Note that the host broker has acknowledged these, in any order.

        Numbers are looked up, not searched for from the oldest on. With QoS 1 and 2 mixed, the oldest stays open while
        thousands are finished. After a restart, a federator spent half its time in that search, so its neighbours
        considered it lost.
        """
        stretches, firsts = self._stretches, self._firsts
        for number in numbers:
            at = bisect_right(firsts, number, self._done) - 1
            if at < self._done:
                continue
            _, end, left, obligation = stretches[at]
            if number < end:
                left[0] -= 1
                if not left[0]:
                    obligation.settle()
        done = self._done
        while done < len(stretches) and not stretches[done][2][0]:
            done += 1
        if 2 * done > len(stretches):
            del stretches[:done], firsts[:done]
            done = 0
        self._done = done
