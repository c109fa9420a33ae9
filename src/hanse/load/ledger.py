"""Record of a publisher's messages at one subscriber: each arrived exactly once and in order, or not.

One byte per message. A row of new numbers in order is marked in two C calls, any other numbers one by one.
"""


class Ledger:
    """One subscriber's record of one publisher."""

    def __init__(self, count: int) -> None:
        """Make room for `count` messages of the publisher."""
        self._seen = bytearray(count)
        self._next = 0
        self.received = 0
        self.duplicates = 0
        self.reordered = 0
        self.out_of_range = 0

    def take(self, numbers: tuple[int, ...]) -> int:
        """Record messages in the order of their arrival, and return how many of them were new."""
        first, count = numbers[0], len(numbers)
        stop = first + count
        if (
            first >= self._next
            and stop <= len(self._seen)
            and numbers[-1] == stop - 1
            and numbers == tuple(range(first, stop))
        ):
            self._seen[first:stop] = b"\1" * count
            self._next = stop
            self.received += count
            return count
        before = self.unique
        for number in numbers:
            self._one(number)
        return self.unique - before

    @property
    def unique(self) -> int:
        """Return how many different messages arrived."""
        return self.received - self.duplicates

    def missing(self, sent: int) -> int:
        """Return how many of the first `sent` messages did not arrive."""
        return self._seen.count(0, 0, sent)

    def _one(self, number: int) -> None:
        if number >= len(self._seen):
            self.out_of_range += 1
            return
        self.received += 1
        if self._seen[number]:
            self.duplicates += 1
            return
        self._seen[number] = 1
        if number < self._next:
            self.reordered += 1
        else:
            self._next = number + 1
