"""One Spark session per test process, because starting one takes seconds."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _session_is_active(request: pytest.FixtureRequest) -> None:
    """Make the session active in the current JVM thread, where Spark looks for Python data sources.

    After the connection to the JVM is lost, calls use another thread, which has no active session. Which tests share a
    process, and therefore which tests ran before, differs from run to run.
    """
    if "spark" in request.fixturenames and "HANSE_TEST_REMOTE" not in os.environ:
        session = request.getfixturevalue("spark")
        if hasattr(session, "_jsparkSession"):
            SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from hanse.pipeline import session

    # Python workers must load the code under test, with this interpreter.
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYSPARK_PYTHON")}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # `tests/pipeline/test_clusters.py` runs this suite again over a Connect server.
    if remote := os.environ.get("HANSE_TEST_REMOTE"):
        built = session.build(remote=remote, app_name="hanse-tests")
        yield built
        built.stop()
        return
    built = session.build(
        master="local[2]",
        app_name="hanse-tests",
        settings={
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
        },
    )
    yield built
    built.stop()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
