"""Spark clusters on this machine, from the pip package alone, for tests; they never outlive their `with` block."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pyspark
from tests.brokers import free_port

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": "127.0.0.1",
}
# A JVM starts within seconds, or within minutes on a busy machine.
DEADLINE_S = 600.0


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Run one master and two workers; yield the master's address."""
    port, page = free_port(), free_port()
    with ExitStack() as stack:
        master = ("org.apache.spark.deploy.master.Master", "--port", str(port), "--webui-port", str(page))
        stack.enter_context(_java(directory / "master.log", *master))
        _wait_for_port(port)
        for n in (1, 2):
            worker = ("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1200M")
            work = ("--work-dir", str(directory / f"worker-{n}"), "--webui-port", str(free_port()))
            stack.enter_context(_java(directory / f"worker-{n}.log", *worker, *work, f"spark://127.0.0.1:{port}"))
        _wait_for_workers(page)
        yield f"spark://127.0.0.1:{port}"


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Run a Spark Connect server with a local master; yield its address."""
    port = free_port()
    submit = [
        *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--driver-memory", "1g"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"),
        *("--conf", f"spark.sql.warehouse.dir={directory / 'spark-warehouse'}", "spark-internal"),
    ]
    with _process(directory / "connect.log", submit):
        _wait_for_port(port)
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def _java(log: Path, *words: str) -> Iterator[None]:
    name, *rest = words
    with _process(log, [str(SPARK_HOME / "bin" / "spark-class"), name, "--host", "127.0.0.1", *rest]):
        yield


@contextmanager
def _process(log: Path, words: list[str]) -> Iterator[None]:
    with log.open("ab") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, env=ENVIRONMENT, cwd=log.parent)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(port: int) -> None:
    until = time.monotonic() + DEADLINE_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > until:
            raise TimeoutError(f"nothing listened on {port} within {DEADLINE_S} s")
        time.sleep(0.1)


def _wait_for_workers(page: int) -> None:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        try:
            with urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
                if answer.read().count(b"ALIVE") >= 3:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"two workers had not joined within {DEADLINE_S} s")
