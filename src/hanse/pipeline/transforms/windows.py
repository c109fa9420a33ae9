"""Arithmetic of time that the datasets share: tumbling windows, and differences between times."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

# One minute: long compared with a report interval (seconds), so that few reports cross a boundary; short compared with
# an outage.
WINDOW_S = 60


def window_start(moment: Column, window_s: int) -> Column:
    """Return the start of the window of `window_s` seconds, counted from 1970, that contains `moment`."""
    seconds = F.unix_seconds(moment)
    return F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(window_s)))


def elapsed_ms(since: Column, until: Column) -> Column:
    """Return the milliseconds between two times, with microsecond precision."""
    return (F.unix_micros(until) - F.unix_micros(since)) / F.lit(1_000.0)
