"""The memory of publication ids: which publications have been here, and for which groups they were served.

There is one window per origin and epoch, in chunks of 4,096 ids with one byte per id. The byte is a code for what has
been done with the publication: 0 for nothing, else an index into the chunk's own list of (groups served, delivered?). A
Python set of ids would cost about 100 bytes per id. This costs one, and a run of consecutive ids is one slice.

The rules (docs/protocol.md R47, R52):

- A duplicate counts only for groups that it was not served for before, and is delivered locally at most once.
- A chunk is dropped when nothing has touched it for `seen_s`, lowest ids first. Ids below what is left are refused.
"""

from collections.abc import Iterator

CHUNK = 4096
# Number of origins remembered. A neighbour that invents more is refused. Simulated federations had 10,000.
ORIGINS_MAX = 100_000
# Epochs per origin. What was published before its last restarts may still be under way, or wait on a disk.
EPOCHS_MAX = 8
# One byte per id: code 255 says that the true code is in the chunk's dictionary.
OVERFLOW = 255
_ZEROS = bytes(CHUNK)

# History of a publication: the groups that it was forwarded for, and whether it was delivered locally.
Done = tuple[frozenset[str], bool]
NOTHING: Done = (frozenset(), False)


class _Chunk:
    __slots__ = ("codes", "done", "index", "overflow", "touched_at")

    def __init__(self, now: float) -> None:
        self.codes = bytearray(CHUNK)
        self.done: list[Done] = [NOTHING]
        self.index: dict[Done, int] = {NOTHING: 0}
        self.overflow: dict[int, Done] = {}
        self.touched_at = now

    def get(self, slot: int) -> Done:
        code = self.codes[slot]
        return self.overflow[slot] if code == OVERFLOW else self.done[code]

    def put(self, start: int, stop: int, done: Done) -> None:
        code = self.index.get(done)
        if code is None:
            if len(self.done) < OVERFLOW:
                code = self.index[done] = len(self.done)
                self.done.append(done)
            else:
                code = OVERFLOW
        if code == OVERFLOW:
            for slot in range(start, stop):
                self.overflow[slot] = done
        if stop - start == 1:
            self.codes[start] = code
        else:
            self.codes[start:stop] = bytes((code,)) * (stop - start)


class SeenWindow:
    """The ids of one origin in one epoch."""

    __slots__ = ("_chunks", "_floor")

    def __init__(self) -> None:
        self._chunks: dict[int, _Chunk] = {}
        # Ids below this one are refused: what was done with them is no longer known.
        self._floor = 0

    def record_if_new(self, now: float, first: int, count: int, done: Done) -> bool:
        """Record a run if all of its ids are new. Return False and record nothing otherwise. This is the hot path."""
        slot = first % CHUNK
        if first < self._floor or slot + count > CHUNK:
            return False
        chunk = self._chunks.get(first // CHUNK)
        if chunk is None:
            chunk = self._chunks[first // CHUNK] = _Chunk(now)
        elif count == 1:
            if chunk.codes[slot]:
                return False
        elif chunk.codes[slot : slot + count] != _ZEROS[:count]:
            return False
        chunk.touched_at = now
        chunk.put(slot, slot + count, done)
        return True

    def pieces(self, first: int, count: int) -> Iterator[tuple[int, int, Done | None]]:
        """Yield the stretches `(first, count, done)` of a run that share a history.

        It is None for ids that are too old.
        """
        start, end = first, first + count
        if start < self._floor:
            yield start, min(end, self._floor) - start, None
            start = min(end, self._floor)
        while start < end:
            done = self._get(start)
            stop = start + 1
            while stop < end and self._get(stop) == done:
                stop += 1
            yield start, stop - start, done
            start = stop

    def record(self, now: float, first: int, count: int, done: Done) -> None:
        """Record the history of a stretch of ids."""
        start, end = first, first + count
        while start < end:
            number, slot = divmod(start, CHUNK)
            stop = min(end - start + slot, CHUNK)
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = _Chunk(now)
            chunk.touched_at = now
            chunk.put(slot, stop, done)
            start += stop - slot

    def _get(self, number: int) -> Done:
        chunk = self._chunks.get(number // CHUNK)
        return NOTHING if chunk is None else chunk.get(number % CHUNK)

    def forget(self, before: float) -> int:
        """Drop the chunks of the lowest ids that nothing has touched since `before`. Return how many are left."""
        for number in sorted(self._chunks):
            if self._chunks[number].touched_at >= before:
                break
            self._floor = number * CHUNK + len(self._chunks.pop(number).codes.rstrip(b"\0"))
        return len(self._chunks)


class SeenIds:
    """The windows of all origins, bounded in time and number."""

    __slots__ = ("_chunks_max", "_seen_s", "_windows")

    def __init__(self, seen_s: float, ids_max: int) -> None:
        self._seen_s = seen_s
        self._chunks_max = max(1, ids_max // CHUNK)
        # Origin to its newest epochs. An older epoch than these is refused.
        self._windows: dict[int, dict[int, SeenWindow]] = {}

    def window(self, origin: int, epoch: int) -> SeenWindow | None:
        """Return the window of an origin's epoch, new if need be.

        Return None if the epoch is too old or origins are too many.
        """
        epochs = self._windows.get(origin)
        if epochs is None:
            if len(self._windows) >= ORIGINS_MAX:
                return None
            epochs = self._windows[origin] = {}
        window = epochs.get(epoch)
        if window is None:
            if len(epochs) >= EPOCHS_MAX:
                oldest = min(epochs)
                if epoch < oldest:
                    return None
                del epochs[oldest]
            window = epochs[epoch] = SeenWindow()
        return window

    def forget(self, now: float) -> None:
        """Drop what is older than `seen_s`, or sooner if there are more ids than allowed (R52)."""
        age_s = self._seen_s
        for _ in range(8):
            if self._forget_before(now - age_s) <= self._chunks_max:
                break
            age_s /= 2

    def _forget_before(self, before: float) -> int:
        left = 0
        for epochs in self._windows.values():
            for window in epochs.values():
                left += window.forget(before)
        return left
