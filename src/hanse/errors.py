"""The three kinds of error, distinguished by who must act.

A message says what was seen, what was expected and what to do. It never contains a secret or a payload.
"""


class HanseError(Exception):
    """Base class of all errors that Hanse raises intentionally."""


class LocalError(HanseError):
    """Violation of a rule by the caller or the operator: raise, stop, say what to do."""


class RemoteError(HanseError):
    """Violation of a rule by a peer or a client: count it, drop it, continue."""


class Unavailable(HanseError):  # noqa: N818 - the name is the state, as in "503 Service Unavailable"
    """Temporary condition: back off and retry."""
