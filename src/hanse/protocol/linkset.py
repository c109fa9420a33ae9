"""A set of keys that one end of a link owns and the other end mirrors, over frames that may be lost.

Two of these run each way on every link: *memberships* (child to parent), and *connections* (parent to child: which of
those memberships reach their core). The rules:

- The owner numbers its steps. Frames carry the steps that are not yet acknowledged. An acknowledgement is a position,
  so nothing is kept for steps that have arrived.
- When either end has lost its state, the owner starts a new *generation*: the whole set as steps, `complete_at` of
  them. Until that many have been applied, the mirror keeps showing the old set (R41). A mirror that has lost its state
  shows it by an acknowledgement that goes back.
- An empty set is sent as well. Silence would leave the mirror with what an earlier owner had in it.
"""

from hanse.protocol.messages import Key, SetAck, SetDelta, SetStep


class OwnedSet:
    """The owner's end: the keys in the set, and the steps that the mirror has not acknowledged."""

    __slots__ = (
        "_base",
        "_complete_at",
        "_is_confirmed",
        "_is_introduced",
        "_is_told",
        "_log",
        "_sent",
        "generation",
        "keys",
    )

    def __init__(self, generation: int = 1) -> None:
        self.keys: set[Key] = set()
        self.generation = generation
        self._base = 0
        self._sent = 0
        self._complete_at = 0
        self._log: list[SetStep] = []
        # Whether the generation is told even while it is empty; whether a frame has carried it; whether the mirror has
        # acknowledged it.
        self._is_introduced = False
        self._is_told = False
        self._is_confirmed = False

    def add(self, key: Key) -> bool:
        """Add `key`. Return False if it was in the set."""
        if key in self.keys:
            return False
        self.keys.add(key)
        self._log.append(SetStep(True, *key))
        return True

    def discard(self, key: Key) -> bool:
        """Remove `key`. Return False if it was not in the set."""
        if key not in self.keys:
            return False
        self.keys.remove(key)
        self._log.append(SetStep(False, *key))
        return True

    def restart(self) -> None:
        """Begin a new generation, because the mirror has lost its state."""
        self.generation += 1
        self._base = self._sent = 0
        self._log = [SetStep(True, *key) for key in sorted(self.keys)]
        self._complete_at = len(self._log)
        self._is_introduced, self._is_told, self._is_confirmed = True, False, False

    def introduce(self) -> None:
        """Tell the generation even if it is empty, so that the mirror drops what it holds from before."""
        self._is_introduced = True

    def acknowledge(self, ack: SetAck) -> None:
        """Drop the steps that the mirror has applied, up to a position.

        Ignore acknowledgements of other generations.
        """
        if self._is_confirmed and (ack.generation, ack.position) < (self.generation, self._base):
            self.restart()  # it had more than that, so it has lost its state
            return
        if ack.generation != self.generation or ack.position > self._base + len(self._log):
            return
        self._is_confirmed = True
        del self._log[: ack.position - self._base]
        self._base = ack.position
        self._sent = max(self._sent, self._base)

    @property
    def has_unsent(self) -> bool:
        """True if there are steps that no frame has carried yet."""
        return self._sent < self._base + len(self._log) or (not self._is_told and self._has_to_confirm)

    @property
    def has_unacknowledged(self) -> bool:
        """True if there are steps that the mirror has not acknowledged, sent or not."""
        return bool(self._log) or self._has_to_confirm

    @property
    def _has_to_confirm(self) -> bool:
        return self._is_introduced and not self._is_confirmed

    def rewind(self) -> None:
        """Send again from the first step that is not acknowledged."""
        self._sent = self._base
        self._is_told = False

    def delta(self, steps_max: int) -> SetDelta | None:
        """Return the next unsent steps, at most `steps_max`, or None if there are none."""
        offset = self._sent - self._base
        steps = self._log[offset : offset + steps_max]
        if not steps and not self.has_unsent:
            return None
        self._is_told = True
        start, self._sent = self._sent, self._sent + len(steps)
        return SetDelta(self.generation, start, self._complete_at, tuple(steps))


class MirroredSet:
    """The mirror's end: the keys that the owner is known to have in its set."""

    __slots__ = ("_building", "_epoch", "_generation", "_position", "keys")

    def __init__(self) -> None:
        self.keys: set[Key] = set()
        self._epoch = 0
        self._generation = 0
        self._position = 0
        self._building: set[Key] | None = None

    @property
    def ack(self) -> SetAck:
        """Position up to which the owner's steps have been applied."""
        return SetAck(self._generation, self._position)

    def apply(self, epoch: int, delta: SetDelta) -> tuple[list[Key], list[Key]]:
        """Apply a delta of the owner's `epoch`. Return the added and the removed keys, in the order of the wire."""
        if (epoch, delta.generation) < (self._epoch, self._generation):
            return [], []
        if (epoch, delta.generation) > (self._epoch, self._generation):
            self._epoch, self._generation, self._position = epoch, delta.generation, 0
            self._building = set()
        if delta.start > self._position:
            return [], []  # a frame in between was lost; the owner sends it again
        before = self.keys
        steps = delta.steps[self._position - delta.start :]
        self._position += len(steps)
        if self._building is not None:
            _replay(self._building, steps)
            if self._position < delta.complete_at:
                return [], []
            self.keys, self._building = self._building, None
            return sorted(self.keys - before), sorted(before - self.keys)
        return _replay(self.keys, steps)

    def await_owner(self) -> None:
        """Acknowledge nothing until the restarted owner tells its set. The old set holds until then."""
        self._epoch = self._generation = self._position = 0
        self._building = None

    def clear(self) -> list[Key]:
        """Forget the keys and the position in the owner's steps. Return the keys."""
        self.await_owner()
        gone = sorted(self.keys)
        self.keys = set()
        return gone


def _replay(keys: set[Key], steps: tuple[SetStep, ...]) -> tuple[list[Key], list[Key]]:
    """Apply steps to `keys`. Return the keys that were added and those that were removed by all steps together."""
    touched = {(step.core, step.group): (step.core, step.group) in keys for step in steps}
    for step in steps:
        key = (step.core, step.group)
        if step.is_added:
            keys.add(key)
        else:
            keys.discard(key)
    added = [key for key, was_in in touched.items() if not was_in and key in keys]
    removed = [key for key, was_in in touched.items() if was_in and key not in keys]
    return added, removed
