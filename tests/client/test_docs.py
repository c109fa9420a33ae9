"""The examples of docs/client.md run, against a real broker."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import environment

pytestmark = pytest.mark.processes
PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PRINTED = ["plant/7/temperature 21.5", "Connected(", "0", "jobs/", "now at mqtt://localhost"]


def test_every_example_of_the_page_runs_and_prints() -> None:
    assert len(EXAMPLES) == len(PRINTED)
    with Mosquitto() as broker:
        for example, printed in zip(EXAMPLES, PRINTED, strict=True):
            code = example.replace("localhost:1883", f"localhost:{broker.port}")
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", code],
                capture_output=True,
                text=True,
                timeout=30,
                env=environment(),
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert printed in done.stdout


@pytest.mark.parametrize("path", re.findall(r"\(\.\./(examples/[^)]+)\)", PAGE))
def test_files_that_the_page_names_exist(path: str) -> None:
    assert (Path(__file__).parents[2] / path).is_file()
