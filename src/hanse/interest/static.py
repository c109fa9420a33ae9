"""Interest from the configuration: filters that are wanted here regardless of any report.

For brokers that reveal nothing about their subscriptions. A filter may carry its QoS as in `1:plant/+/temp`. Without
one it is QoS 2, so that no publication is lowered.
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
    """Adapter: a list of filters in, one report for each out, once."""

    source = "static"

    def __init__(self, filters: Sequence[str]) -> None:
        """Refuse an invalid filter at once: it is the operator's, who should know before the agent starts."""
        self.counters: Counter[str] = Counter()
        self._reports: list[Report] = []
        for text in filters:
            match = _WITH_QOS.fullmatch(text)
            qos, wanted = (int(match[1]), match[2]) if match else (2, text)
            try:
                check_filter(split_share(wanted)[1])
            except RemoteError as error:
                raise LocalError(
                    f"The static interest {wanted!r} is not usable: {error} Correct the setting."
                ) from error
            self._reports.append(Subscribed(CLIENT, wanted, qos))

    def topics(self) -> list[str]:
        """Return no topics, because the configuration is the only source."""
        return []

    def start(self) -> list[Report]:
        """Return the reports for the registry at the start of the federator."""
        return list(self._reports)

    def lost(self) -> list[Report]:
        """Return no reports, because a configuration cannot be lost."""
        return []
