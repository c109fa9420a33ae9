"""What holds for the tests of all rooms."""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# Here the sources run, so that a test may replace a method and coverage sees lines; the processes that tests start run
# the extensions, where there are any, as an operator's do (`hanse.compiled`).
_asked = os.environ.get("HANSE_PURE")
os.environ["HANSE_PURE"] = "1"
import hanse  # noqa: E402 - whose import decides

assert not hanse.is_compiled
if _asked is None:
    del os.environ["HANSE_PURE"]

# How long an example takes, or is drawn, is the machine's affair: others may work on it. Loaded before any test module
# is imported, so that settings of a test's own begin with these.
settings.register_profile("hanse", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hanse")

# Spark's JVMs live for a minute or two here: what the second compiler costs them they never get back (102 s of
# processor time for three files of the pipeline's tests, 69 s without it). Read by `spark-submit`, so also by jobs that
# the tests start as processes.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Each file runs in one process. Those that take minutes on a processor begin, so that none of them is left alone at the
# end; then those with the most tests, as pytest-xdist has it by itself (`--no-loadscope-reorder` leaves it to us).
_FIRST = ("test_seeds.py", "test_custody_points.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the files into the order in which they are begun; within a file nothing changes."""
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.name not in _FIRST, -sizes[item.path], str(item.path)))
