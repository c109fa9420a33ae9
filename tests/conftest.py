"""What holds for the tests of all rooms."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.budget import examples
from xdist.scheduler import LoadFileScheduling

# Here the sources run, so that a test may replace a method and coverage sees lines; the processes that tests start run
# the extensions, where there are any, as an operator's do (`hanse.compiled`). HANSE_TEST_COMPILED=1 runs the extensions
# here too, for fuzzing; what a target replaces to look at it is then left as it is.
_is_compiled = bool(os.environ.get("HANSE_TEST_COMPILED"))
_asked = os.environ.get("HANSE_PURE")
if not _is_compiled:
    os.environ["HANSE_PURE"] = "1"
import hanse  # noqa: E402 - whose import decides

assert hanse.is_compiled == _is_compiled, "HANSE_TEST_COMPILED is set, and the extensions are not there: make setup"
if _asked is None:
    os.environ.pop("HANSE_PURE", None)

# How long an example takes, or is drawn, is the machine's affair: others may work on it. Loaded before any test module
# is imported, so that settings of a test's own begin with these.
settings.register_profile(
    "hanse", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hanse")

# Spark's JVMs live for a minute or two here: what the second compiler costs them they never get back (102 s of
# processor time for three files of the pipeline's tests, 69 s without it). Read by `spark-submit`, so also by jobs that
# the tests start as processes.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Each file runs in one process. Those that take longest begin, in this order, so that none of them is left alone at the
# end; then those with the most tests, as pytest-xdist has it by itself (`--no-loadscope-reorder` leaves it to us).
_FIRST = (
    "pipeline/sources/test_mqtt_on_spark.py",
    "lab/chaos/test_faults.py",
    "cli/test_manager.py",
    "federator/test_federation.py",
    "federator/test_trace_live.py",
    "fuzz/test_fuzz_host.py",
    "fuzz/test_fuzz_links.py",
    "sim/test_custody_points.py",
)

# The files that work on the test process's own Spark session run in one process, one after another: what they do takes
# a second where the session is warm, and each further session costs 20 s of a processor.
_ON_ONE_SESSION = (
    "tests/pipeline/analytics/",
    "tests/pipeline/jobs/",
    "tests/pipeline/sources/test_mqtt_on_spark.py",
    "tests/pipeline/test_example.py",
    "tests/pipeline/test_tables.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the files into the order in which they are begun; within a file nothing changes."""
    sizes = Counter(item.path for item in items)
    first = {Path(__file__).parent / name: place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: (first.get(item.path, len(first)), -sizes[item.path], str(item.path)))


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """A process for each file, and one for all that share a Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(_ON_ONE_SESSION) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """With `--dist loadfile`, the scheduling above."""
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
