"""Topics of telemetry: `$hanse/telemetry/v1/<kind>/<reporter>`."""

import re
from dataclasses import dataclass

from hanse.errors import LocalError, RemoteError
from hanse.telemetry.registry import KINDS

VERSION = 1
ROOT = "$hanse/telemetry/"
FILTER_ALL = f"{ROOT}v{VERSION}/#"

# An id becomes one topic level, a file name, a label on a page. It is long enough for a host name with a port (253 +
# 6).
REPORTER_CHARS_MAX = 260
_REPORTER = re.compile(rf"[A-Za-z0-9_.:@-]{{1,{REPORTER_CHARS_MAX}}}")


@dataclass(frozen=True, slots=True)
class TelemetryTopic:
    """Contents of a telemetry topic: the kind of its rows, and the reporter that measured them."""

    kind: str
    reporter: str

    def __str__(self) -> str:
        return f"{ROOT}v{VERSION}/{self.kind}/{self.reporter}"


def topic_for(kind: str, reporter: str) -> str:
    """Return the topic on which `reporter` publishes rows of `kind`."""
    if kind not in KINDS:
        raise LocalError(f"There is no telemetry kind {kind!r}; expected one of {', '.join(KINDS)}.")
    if not _REPORTER.fullmatch(reporter):
        raise LocalError(
            f"{reporter!r} cannot report telemetry: 1 to {REPORTER_CHARS_MAX} letters, digits and _.:@- are allowed."
        )
    return str(TelemetryTopic(kind, reporter))


def parse_topic(topic: str) -> TelemetryTopic:
    """Return the contents of `topic`.

    Raises:
        RemoteError: It is not a telemetry topic of this version, kind or shape.
    """
    levels = topic.split("/", 5)
    if not topic.startswith(ROOT) or len(levels) != 5:
        raise RemoteError(f"Topic {topic[:200]!r} is not {ROOT}v{VERSION}/<kind>/<id>.")
    _, _, version, kind, reporter = levels
    if version != f"v{VERSION}":
        raise RemoteError(
            f"Telemetry has version {version[:20]!r}; this build supports v{VERSION}: upgrade the older side."
        )
    if kind not in KINDS:
        raise RemoteError(f"Telemetry has the unknown kind {kind[:40]!r}; this build supports {', '.join(KINDS)}.")
    if not _REPORTER.fullmatch(reporter):
        raise RemoteError(
            f"Telemetry has the id {reporter[:40]!r}; expected 1 to {REPORTER_CHARS_MAX} letters, digits and _.:@-."
        )
    return TelemetryTopic(kind, reporter)
