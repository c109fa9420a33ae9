"""Metrics of every Hanse process on `/metrics`, under the same names in all services.

    hanse_build_info{service="federator",version="0.1.0",python="3.11.2",compiled="true"} 1
    process_cpu_seconds_total 12.3

The `process_` names are those of Prometheus' own client libraries, so existing dashboards and alerts find them. Figures
that the system does not provide (there is no `/proc` outside Linux) are omitted.
"""

import os
import platform
import resource
from pathlib import Path

import hanse
from hanse.telemetry.prometheus import Registry

_PROC = Path("/proc/self")


def add_process_metrics(registry: Registry, service: str) -> None:
    """Add metrics of the build and the process to a service's page."""
    build = registry.gauges(
        "hanse_build_info",
        "Build of the running process.",
        ("service", "version", "python", "compiled"),
        is_shared=True,
    )
    build.labels(service, hanse.__version__, platform.python_version(), str(hanse.is_compiled).lower()).set(1)
    cpu = registry.counters("process_cpu_seconds_total", "CPU time, user and system.", is_shared=True).labels()
    resident = registry.gauges("process_resident_memory_bytes", "Resident memory.", is_shared=True)
    virtual = registry.gauges("process_virtual_memory_bytes", "Virtual memory.", is_shared=True)
    open_fds = registry.gauges("process_open_fds", "Open file descriptors.", is_shared=True)
    max_fds = registry.gauges("process_max_fds", "Largest number of open file descriptors.", is_shared=True).labels()
    started = registry.gauges("process_start_time_seconds", "Start of the process, since 1970.", is_shared=True)
    has_proc = (_PROC / "statm").exists()
    if has_proc:
        started.labels().set(_started_s())

    def fetch() -> None:
        times = os.times()
        cpu.set(times.user + times.system)
        max_fds.set(_most(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
        if has_proc:
            pages = (_PROC / "statm").read_bytes().split()
            page_bytes = os.sysconf("SC_PAGE_SIZE")
            virtual.labels().set(int(pages[0]) * page_bytes)
            resident.labels().set(int(pages[1]) * page_bytes)
            # One of the entries is the descriptor that reads the directory.
            open_fds.labels().set(sum(1 for _ in (_PROC / "fd").iterdir()) - 1)

    registry.at_scrape(fetch)


def _most(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _started_s() -> float:
    """Return the process's start by the kernel's clock: boot time plus the start in clock ticks after it."""
    ticks = int((_PROC / "stat").read_bytes().rpartition(b")")[2].split()[19])
    boot = next(line for line in Path("/proc/stat").read_bytes().splitlines() if line.startswith(b"btime "))
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
