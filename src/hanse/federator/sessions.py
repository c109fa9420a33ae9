"""The client ids of one federator's sessions at brokers, and the record of them in the state directory (`session`).

Rules:

1. The record is on disk before a client id is used for the first time. A federator that was killed therefore finds its
   session again.
2. An older version used ids that anyone could guess. Its session is continued under that id, until the broker has
   forgotten it or another client takes it over (`session_renewal`).
3. A damaged record is put aside. The session that it named is lost to the federator then, with what waits in it; the
   broker forgets that session when it expires.
"""

from pathlib import Path

from hanse.errors import LocalError
from hanse.federator.damaged import put_aside
from hanse.mqtt.client_ids import RANDOM, ClientIds, SessionRecord, new_secret, read_record, write_record

# Client ids of versions that did not make them random.
OLD_PATTERN = "hanse-federator-{id}"
# Sessions that the broker still has to forget: a broker that is away for long must not make the record grow.
ENDING_MAX = 16


class Sessions:
    """The client ids of one federator.

    Args:
        directory: the state directory.
        pattern: what the operator wants the client ids to be.
        identity: this federator's id.
        is_upgraded: whether an earlier process used this directory; without a record it was of an older version.

    Raises:
        LocalError: The record cannot be read or written.
    """

    def __init__(self, directory: Path, pattern: str, identity: int, *, is_upgraded: bool) -> None:
        self._path = directory / "session"
        self._pattern = pattern
        self._identity = str(identity)
        record = None
        try:
            record = read_record(self._path)
            if record is None and is_upgraded:
                record = SessionRecord(current=OLD_PATTERN.format(id=identity))
        except LocalError as error:
            if not self._path.exists():
                raise
            put_aside(self._path, str(error))
        self.record = record or SessionRecord()
        self._ids = ClientIds(pattern, self._identity, self.record.secret)
        if not self.record.current:
            self.record.current = self._ids.of()
        self.save()

    @property
    def host_id(self) -> str:
        """Client id of the session at the host broker."""
        return self.record.current

    @property
    def must_move(self) -> bool:
        """Return whether the session still has an id of an older version, or of another pattern."""
        return self.record.current != self._ids.of()

    @property
    def is_random(self) -> bool:
        """Return whether nobody can guess the client ids."""
        return RANDOM in self._pattern

    def of(self, role: str) -> str:
        """Return the client id of another session of this federator."""
        return self._ids.of(role)

    def begin_anew(self) -> str:
        """Give the session at the host broker an id that nobody knows, and return it.

        The former id is kept in the record until `note_ended`.

        Raises:
            LocalError: The disk refuses; the federator keeps the former id.
        """
        secret = new_secret()
        ids = ClientIds(self._pattern, self._identity, secret)
        ending = [*self.record.ending, self.record.current][-ENDING_MAX:]
        record = SessionRecord(secret, ids.of(), [one for one in ending if one != ids.of()])
        write_record(self._path, record)
        self.record, self._ids = record, ids
        return record.current

    def note_ended(self, client_id: str) -> None:
        """Note that the broker has forgotten a former session."""
        if client_id in self.record.ending:
            self.record.ending.remove(client_id)
            self.save()

    def save(self) -> None:
        """Write the record.

        Raises:
            LocalError: The disk refuses.
        """
        write_record(self._path, self.record)
