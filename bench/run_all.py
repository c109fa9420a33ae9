"""Run the benchmarks, and write docs/benchmarks.md from what they print.

`run_all.py` runs all of them, `run_all.py NAME …` some. `run_all.py --render` runs none and writes the page from the
results of former runs. Each benchmark prints JSON. Results are kept in bench/results/, one file per benchmark, with
moment and machine.
"""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from page import SECTIONS, render

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
HANSE = [sys.executable, "-m", "hanse"]

# Name to the command from the root of the project; `page` says what each shows.
BENCHMARKS: dict[str, list[str]] = {
    "gateway": ["bench/bench_gateway.py"],
    "bridge": [*HANSE, "bench", "bridge", "--json"],
    "floor": ["bench/bench_floor.py"],
    "idle": ["bench/bench_idle.py"],
    "route": ["bench/bench_route.py"],
    "hop": ["bench/bench_hop.py", "--json"],
    "match": ["bench/bench_match.py"],
    "groups": ["bench/bench_groups.py"],
    "topics": ["bench/bench_topics.py"],
    "outage": ["bench/bench_outage.py"],
    "storm": ["bench/bench_storm.py"],
    "retained": ["bench/bench_retained.py"],
    "retained_drill": ["bench/bench_retained_drill.py"],
    "sim": ["bench/bench_sim.py"],
    "mqtt": ["bench/bench_mqtt.py"],
    "outbox": ["bench/bench_outbox.py"],
    "manager": ["bench/bench_manager.py"],
    "join": ["bench/bench_join.py"],
    "redirect": ["bench/bench_redirect.py"],
    "spool": ["bench/bench_spool.py"],
    "collector": ["bench/bench_collector.py"],
    "ingest": ["bench/bench_ingest.py"],
    "gold": ["bench/bench_gold.py"],
}


def command_of(name: str) -> list[str]:
    words = BENCHMARKS[name]
    return words if words[0] == sys.executable else [sys.executable, *words]


def shown_command(name: str) -> str:
    words = BENCHMARKS[name]
    return "hanse " + " ".join(words[3:]) if words[0] == sys.executable else "python " + " ".join(words)


def run(name: str) -> None:
    print(f"== {name}: {SECTIONS[name].title}", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command_of(name), cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"   failed with code {done.returncode}; its former result stays", flush=True)
        return
    start = min((at for at in (done.stdout.find("{"), done.stdout.find("[")) if at >= 0), default=0)
    document = {
        "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "result": json.loads(done.stdout[start:]),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def page() -> str:
    """Return docs/benchmarks.md as the results have it."""
    results = {name: json.loads(path.read_text()) for name in BENCHMARKS if (path := RESULTS / f"{name}.json").exists()}
    return render(results, {name: shown_command(name) for name in BENCHMARKS})


def main() -> None:
    wanted = [word for word in sys.argv[1:] if word != "--render"]
    unknown = [name for name in wanted if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; known are {', '.join(BENCHMARKS)}")
    if "--render" not in sys.argv:
        for name in wanted or BENCHMARKS:
            run(name)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
