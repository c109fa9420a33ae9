"""Runs the benchmarks and writes docs/benchmarks.md from what they print.

`run_all.py` runs all of them; `run_all.py NAME …` some; `run_all.py --render` none, and writes the page from the
results of former runs. Each prints JSON; results are kept in bench/results/, one file each, with moment and machine.
"""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
HANSE = [sys.executable, "-m", "hanse"]

# Name to (what it shows, command from the root of the project).
BENCHMARKS: dict[str, tuple[str, list[str]]] = {
    "bridge": ("Hanse beside Mosquitto's bridges", [*HANSE, "bench", "bridge", "--json"]),
    "floor": ("Hanse beside two relays in C that only pass bytes on, 10 KiB at QoS 1", ["bench/bench_floor.py"]),
    "idle": ("A federator at rest and under load", ["bench/bench_idle.py"]),
    "route": ("The data path of the protocol on one core", ["bench/bench_route.py"]),
    "hop": ("One message through one federator, by its position", ["bench/bench_hop.py", "--json"]),
    "match": ("Matching topics against 100,000 filters", ["bench/bench_match.py"]),
    "groups": ("100,000 groups at one federator", ["bench/bench_groups.py"]),
    "topics": ("100,000 topics and 10,000 subscriptions at one broker", ["bench/bench_topics.py"]),
    "outage": ("A neighbour away for five minutes", ["bench/bench_outage.py"]),
    "storm": ("A storm at ten times capacity", ["bench/bench_storm.py"]),
    "sim": ("The simulator, and announcements per core against per group", ["bench/bench_sim.py"]),
    "mqtt": ("MQTT in and out on one core", ["bench/bench_mqtt.py"]),
    "outbox": ("The outbox beside SQLite", ["bench/bench_outbox.py"]),
    "manager": ("The topology manager", ["bench/bench_manager.py"]),
    "join": ("Joining, and the time to heal", ["bench/bench_join.py"]),
    "spool": ("The spool", ["bench/bench_spool.py"]),
    "collector": ("The collector", ["bench/bench_collector.py"]),
    "ingest": ("Spool to bronze beside Spark's own Parquet source", ["bench/bench_ingest.py"]),
    "gold": ("Bronze to gold", ["bench/bench_gold.py"]),
}


def command_of(name: str) -> list[str]:
    words = BENCHMARKS[name][1]
    return words if words[0] == sys.executable else [sys.executable, *words]


def shown_command(name: str) -> str:
    words = BENCHMARKS[name][1]
    return "hanse " + " ".join(words[3:]) if words[0] == sys.executable else "python " + " ".join(words)


def run(name: str) -> None:
    print(f"== {name}: {BENCHMARKS[name][0]}", flush=True)
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


def rows_of(value: object, prefix: str = "") -> list[tuple[str, str]]:
    """A nested result as rows of a table; long lists of single measurements stay in the JSON."""
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in rows_of(inner, f"{prefix}{key}.")]
    if isinstance(value, list):
        if all(isinstance(item, int | float) for item in value):
            return []
        return [row for index, inner in enumerate(value) for row in rows_of(inner, f"{prefix}{index}.")]
    if isinstance(value, float):
        shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        shown = f"{value:,}"
    else:
        shown = str(value)
    return [(prefix.rstrip("."), shown)]


def render() -> None:
    lines = [
        "# Measured figures",
        "",
        "Written by `bench/run_all.py` from `bench/results/`; do not edit. Compare only what ran in the same run: a",
        "figure of another machine, or of another hour, is another figure.",
        "",
    ]
    for name, (title, _) in BENCHMARKS.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        document = json.loads(path.read_text())
        lines += [f"## {title}", "", f"`{shown_command(name)}`, {document['measured']}, {document['machine']}", ""]
        lines += ["| figure | value |", "| --- | --- |"]
        lines += [f"| {key} | {value} |" for key, value in rows_of(document["result"])]
        lines.append("")
    PAGE.write_text("\n".join(lines))


def main() -> None:
    wanted = [word for word in sys.argv[1:] if word != "--render"]
    unknown = [name for name in wanted if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; known are {', '.join(BENCHMARKS)}")
    if "--render" not in sys.argv:
        for name in wanted or BENCHMARKS:
            run(name)
    render()


if __name__ == "__main__":
    main()
