"""The federator's own group, `$hanse/federator/<id>`, by which others reach it alone: joined while anybody needs it."""

from collections.abc import Callable


class PrivateGroup:
    """Counts who needs it: the group is left with the last."""

    def __init__(self, join: Callable[[], None], part: Callable[[], None]) -> None:
        self._join = join
        self._part = part
        self._users = 0

    def join(self) -> None:
        """Somebody needs it."""
        self._users += 1
        if self._users == 1:
            self._join()

    def part(self) -> None:
        """Somebody needs it no more."""
        assert self._users > 0, "who parts has joined"
        self._users -= 1
        if not self._users:
            self._part()
