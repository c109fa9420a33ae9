"""The three kinds of error, told apart by who has to act.

A message says what was seen, what was expected and what to do; never a secret, never a payload.
"""


class HanseError(Exception):
    """Anything that Hanse raises on purpose."""


class LocalError(HanseError):
    """The caller or the operator broke a rule: raise, stop, say what to do."""


class RemoteError(HanseError):
    """A peer or a client broke a rule: count, drop, go on."""


class Unavailable(HanseError):  # noqa: N818 - the name is the state, as in "503 Service Unavailable"
    """It may work later: back off and try again."""
