"""The spool: an append-only store on disk that makes MQTT replayable for Spark.

A directory holds one directory a producer. One process writes to a producer (`SpoolWriter`, enforced by a lock),
any number read (`SpoolReader`), consumers leave marks of how far they have come (`marks`), and the janitor deletes
what every consumer is past and what is old enough (`sweep`). This package knows Arrow and files; it imports
neither pyspark nor an MQTT client.

What is indexed is visible, what is visible is durable, and what is durable never changes.
"""

from hanse.pipeline.spool.format import (
    Position,
    SpoolBrokenError,
    SpoolCorruptError,
    SpoolFullError,
    SpoolGoneError,
    SpoolLockedError,
)
from hanse.pipeline.spool.janitor import SweepReport, sweep
from hanse.pipeline.spool.marks import forget_mark, load_marks, save_mark
from hanse.pipeline.spool.reader import Slice, SpoolReader, list_producers, read_slice
from hanse.pipeline.spool.writer import Recovery, SpoolLimits, SpoolWriter

__all__ = [
    "Position",
    "Recovery",
    "Slice",
    "SpoolBrokenError",
    "SpoolCorruptError",
    "SpoolFullError",
    "SpoolGoneError",
    "SpoolLimits",
    "SpoolLockedError",
    "SpoolReader",
    "SpoolWriter",
    "SweepReport",
    "forget_mark",
    "list_producers",
    "load_marks",
    "read_slice",
    "save_mark",
    "sweep",
]
