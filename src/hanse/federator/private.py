"""The federator's own group, `$hanse/federator/<id>`, by which others reach it alone. It is joined while needed."""

from collections.abc import Callable


class PrivateGroup:
    """Counter of the group's users. The federator leaves the group with the last."""

    def __init__(self, join: Callable[[], None], part: Callable[[], None]) -> None:
        self._join = join
        self._part = part
        self._users = 0

    def join(self) -> None:
        """Add a user."""
        self._users += 1
        if self._users == 1:
            self._join()

    def part(self) -> None:
        """Remove a user."""
        assert self._users > 0, "a part follows a join"
        self._users -= 1
        if not self._users:
            self._part()
