"""Configuration shared by the tests of all packages."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.budget import examples
from xdist.scheduler import LoadFileScheduling

# This process runs the sources, so that a test may replace a method and coverage sees lines. Processes that tests start
# run the extensions if they exist, like an operator's (`hanse.compiled`). HANSE_TEST_COMPILED=1 runs the extensions
# here too, for fuzzing; methods are then not replaced.
_is_compiled = bool(os.environ.get("HANSE_TEST_COMPILED"))
_asked = os.environ.get("HANSE_PURE")
if not _is_compiled:
    os.environ["HANSE_PURE"] = "1"
import hanse  # noqa: E402 - its import makes the choice

assert hanse.is_compiled == _is_compiled, "HANSE_TEST_COMPILED is set, and the extensions are not there: make setup"
if _asked is None:
    os.environ.pop("HANSE_PURE", None)

# The duration of an example depends on the machine, which others may use too, so it has no deadline. The profile is
# loaded before any test module is imported, so that a test's own settings extend it.
settings.register_profile(
    "hanse", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hanse")

# Spark's JVMs run for a minute or two here, too short for the second compiler to pay off: three files of the pipeline's
# tests took 102 s of CPU time with it, 69 s without. `spark-submit` reads this variable, so it also applies to jobs
# that tests start as processes.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Each file runs in one process. The slowest files start first, in this order, so that none of them remains alone at the
# end. Then follow the files with the most tests, as pytest-xdist would order them itself (`--no-loadscope-reorder`
# leaves the order to this module).
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

# Files that use the test process's own Spark session run in one process, one after another: their tests take a second
# in a warm session, and each further session costs 20 s of CPU time.
_ON_ONE_SESSION = (
    "tests/pipeline/analytics/",
    "tests/pipeline/jobs/",
    "tests/pipeline/sources/test_mqtt_on_spark.py",
    "tests/pipeline/test_example.py",
    "tests/pipeline/test_tables.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files into the order in which they start; the order within a file is unchanged."""
    sizes = Counter(item.path for item in items)
    first = {Path(__file__).parent / name: place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: (first.get(item.path, len(first)), -sizes[item.path], str(item.path)))


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """One process per file, and one for all files that share a Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(_ON_ONE_SESSION) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """Use this scheduling with `--dist loadfile`."""
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
