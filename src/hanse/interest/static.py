"""Interest from the configuration: filters that are wanted here whether or not anyone says so.

For brokers that tell nothing of their subscriptions. A filter may carry its QoS as in `1:plant/+/temp`; without
one it is QoS 2, so that nothing is lowered.
"""

import re
from collections import Counter
from collections.abc import Sequence

from hanse.errors import LocalError, RemoteError
from hanse.interest.filters import check_filter, split_share
from hanse.interest.reports import Report, Subscribed

CLIENT = "(configuration)"
_WITH_QOS = re.compile(r"([012]):(.+)", re.DOTALL)


class StaticAdapter:
    """A list of filters in, one report each out, once."""

    source = "static"

    def __init__(self, filters: Sequence[str]) -> None:
        """Refuses a wrong filter at once: it is the operator's, who should know before the agent starts."""
        self.counters: Counter[str] = Counter()
        self._reports: list[Report] = []
        for text in filters:
            match = _WITH_QOS.fullmatch(text)
            qos, wanted = (int(match[1]), match[2]) if match else (2, text)
            try:
                check_filter(split_share(wanted)[1])
            except RemoteError as error:
                raise LocalError(f"The static interest {wanted!r} is no use: {error} Correct the setting.") from error
            self._reports.append(Subscribed(CLIENT, wanted, qos))

    def topics(self) -> list[str]:
        """Nothing: the configuration is all there is."""
        return []

    def start(self) -> list[Report]:
        """The reports, for the registry, when the federator starts."""
        return list(self._reports)

    def lost(self) -> list[Report]:
        """Nothing to say: a configuration is not lost."""
        return []
