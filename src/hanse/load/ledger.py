"""Which messages of a publisher a subscriber has seen: every one exactly once, in order, or not.

One byte a message. A row of fresh numbers in order is marked in two C calls; anything else number by number.
"""


class Ledger:
    """One subscriber's account of one publisher."""

    def __init__(self, count: int) -> None:
        """`count`: how many messages the publisher will send."""
        self._seen = bytearray(count)
        self._next = 0
        self.received = 0
        self.duplicates = 0
        self.reordered = 0
        self.out_of_range = 0

    def take(self, numbers: tuple[int, ...]) -> int:
        """Messages that arrived, in the order of their arrival; says how many of them were new."""
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
        """How many different messages arrived."""
        return self.received - self.duplicates

    def missing(self, sent: int) -> int:
        """How many of the first `sent` messages did not arrive."""
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
