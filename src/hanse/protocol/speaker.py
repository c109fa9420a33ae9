"""The sending of control frames: what a federator tells its neighbours, and when.

The rules (docs/protocol.md R28, R29, R37):

- A change goes out at once, but changes within `coalescing_s` of the last frames travel together.
- Frame numbers rise with every frame, whichever neighbour it goes to (R3).
"""

from hanse.protocol.changes import Changes
from hanse.protocol.claimbook import ClaimBook
from hanse.protocol.effects import Send
from hanse.protocol.messages import Announcement, ClaimDelta, ControlFrame
from hanse.protocol.neighbour import Neighbour
from hanse.protocol.settings import Settings
from hanse.protocol.ways import Ways


class Speaker:
    """The control frames of one federator.

    Attributes:
        number: The number of the last frame.
        flush_at: When changes that wait to travel together go out. None while none wait.
    """

    def __init__(
        self,
        identity: int,
        settings: Settings,
        neighbours: dict[int, Neighbour],
        changes: Changes,
        claims: ClaimBook,
        ways: Ways,
        *,
        now: float,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._neighbours = neighbours
        self._changes = changes
        self._claims = claims
        self._ways = ways
        self.number = 0
        self.flush_at: float | None = None
        self._flushed_at = now - settings.coalescing_s

    def flush(self, now: float, quiet_from: int | None = None) -> None:
        """Send one frame to each neighbour for which there is news. A burst of changes travels together (R28).

        `quiet_from` is the neighbour whose frame brought nothing but a refresh. Then there can be news for that
        neighbour alone. Looking at all neighbours for each such frame was a fifth of a simulated round.
        """
        changes = self._changes
        if quiet_from is not None and self.flush_at is None:
            heard = self._neighbours.get(quiet_from)
            if heard is None or not heard.has_pending:
                return
        neighbours = self._up_neighbours()
        is_urgent = changes.cores or changes.claims
        if not is_urgent and not any(n.has_pending for n in neighbours):
            self.flush_at = None
            return
        if now < self._flushed_at + self._settings.coalescing_s:
            self.flush_at = self._flushed_at + self._settings.coalescing_s
            return
        self.flush_at, self._flushed_at = None, now
        changed = self._ways.announce(changes.cores, with_retractions=True) if changes.cores else ()
        full: tuple[Announcement, ...] | None = None
        for neighbour in neighbours:
            deltas = self._claims.deltas_for(neighbour, changes.claims)
            if neighbour.needs_full:
                if full is None:
                    full = self._ways.announce_all()
                self._send(neighbour, full, deltas, is_full=True)
            elif changed or deltas or neighbour.has_pending:
                self._send(neighbour, changed, deltas)
        changes.cores.clear()
        changes.claims.clear()

    def say_goodbye(self) -> None:
        """Send the last frames: our claims are withdrawn, and we leave (R37)."""
        for neighbour in self._up_neighbours():
            deltas = self._claims.deltas_for(neighbour, (self._identity,))
            self._send(neighbour, (), deltas, is_leaving=True)

    def _up_neighbours(self) -> list[Neighbour]:
        return [self._neighbours[n] for n in sorted(self._neighbours) if self._neighbours[n].is_up]

    def _send(
        self,
        neighbour: Neighbour,
        announcements: tuple[Announcement, ...],
        deltas: tuple[ClaimDelta, ...],
        *,
        is_full: bool = False,
        is_leaving: bool = False,
    ) -> None:
        if self._settings.announcements == "per_group":
            announcements = self._send_per_group(neighbour, announcements)
            is_full = False
        self.number += 1
        limit = self._settings.items_per_frame_max
        frame = ControlFrame(
            self._identity,
            self._claims.own.epoch,
            self.number,
            neighbour.epoch,
            neighbour.number,
            is_full,
            is_leaving,
            announcements,
            deltas,
            tuple(neighbour.claim_requests),
            tuple(neighbour.claim_parts),
            tuple(neighbour.solicits[core] for core in sorted(neighbour.solicits)),
            tuple(neighbour.hand_overs),
            neighbour.joining.delta(limit),
            neighbour.connecting.delta(limit),
            neighbour.joined.ack,
            neighbour.connected.ack,
        )
        neighbour.needs_full = False
        neighbour.drop_pending()
        self._hand_out(neighbour, frame)

    def _send_per_group(
        self, neighbour: Neighbour, announcements: tuple[Announcement, ...]
    ) -> tuple[Announcement, ...]:
        """Send one frame per group, as in the papers. Return the last announcement, which is left to the caller."""
        expanded = []
        for announcement in announcements:
            claims = self._claims.sets.get(announcement.core)
            groups = sorted(claims.groups) if claims is not None and claims.groups else [""]
            expanded += [announcement._replace(group=group) for group in groups]
        for announcement in expanded[:-1]:
            self.number += 1
            frame = ControlFrame(
                self._identity,
                self._claims.own.epoch,
                self.number,
                neighbour.epoch,
                neighbour.number,
                announcements=(announcement,),
                memberships_ack=neighbour.joined.ack,
                connections_ack=neighbour.connected.ack,
            )
            self._hand_out(neighbour, frame)
        return tuple(expanded[-1:])

    def _hand_out(self, neighbour: Neighbour, frame: ControlFrame) -> None:
        self._changes.effects.append(Send(neighbour.identity, frame))
        self._changes.counters["control_frames"] += 1
        self._changes.counters["announcements"] += len(frame.announcements)
