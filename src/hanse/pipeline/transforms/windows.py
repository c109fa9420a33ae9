"""Tumbling windows and the differences of moments: the arithmetic of time that the datasets share."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

# One minute: long beside a report interval (seconds), so that few reports straddle a border; short beside an
# outage.
WINDOW_S = 60


def window_start(moment: Column, window_s: int) -> Column:
    """The start of the window of `window_s` seconds, counted from 1970, that `moment` lies in."""
    seconds = F.unix_seconds(moment)
    return F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(window_s)))


def elapsed_ms(since: Column, until: Column) -> Column:
    """Milliseconds between two moments, to the microsecond."""
    return (F.unix_micros(until) - F.unix_micros(since)) / F.lit(1_000.0)
