import os
import time
from pathlib import Path

import pytest

import hanse
from hanse.telemetry.process import add_process_metrics
from hanse.telemetry.prometheus import Registry


def page() -> dict[str, float]:
    registry = Registry("federator")
    add_process_metrics(registry, "federator")
    lines = [line for line in registry.render().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_the_build_names_service_and_version() -> None:
    (name,) = [name for name in page() if name.startswith("hanse_build_info")]
    assert 'service="federator"' in name
    assert f'version="{hanse.__version__}"' in name
    assert page()[name] == 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc here")
def test_the_process_is_measured_under_the_names_that_dashboards_know() -> None:
    before = page()
    busy = time.process_time() + 0.05
    while time.process_time() < busy:
        pass
    with open(os.devnull):  # noqa: PTH123 - one more descriptor
        after = page()
    assert after["process_cpu_seconds_total"] > before["process_cpu_seconds_total"]
    assert after["process_open_fds"] == before["process_open_fds"] + 1
    assert 1 << 20 < after["process_resident_memory_bytes"] < after["process_virtual_memory_bytes"]
    assert after["process_max_fds"] > 0
    assert 0 < time.time() - after["process_start_time_seconds"] < 7 * 24 * 3600
