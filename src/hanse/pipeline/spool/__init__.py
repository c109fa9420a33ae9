"""Spool: an append-only store on disk that makes MQTT replayable for Spark.

The spool's directory holds one directory per producer. One process writes to a producer (`SpoolWriter`, enforced by a
lock), and any number of processes read (`SpoolReader`). Consumers save marks of their progress (`marks`). The janitor
deletes segments that are old enough and that every consumer has read (`sweep`). This package uses Arrow and files; it
imports neither pyspark nor an MQTT client.

Indexed data is visible, visible data is durable, and durable data never changes.
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
