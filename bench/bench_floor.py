"""Compare Hanse with the minimum that two processes between two brokers can cost, with 10 KiB at QoS 1.

    python bench/bench_floor.py [--rounds 5]

Three systems are each paired with Mosquitto's bridges: Hanse; two relays in C (relay.c) that only forward bytes,
connected like federators; and the same relays, which gather for 3 ms and read from their broker over TCP, the cheapest
form found. A relay gives no guarantee: no routing, no custody, no protection from duplicates and loops. A bridge is
part of its broker, so it saves two processes, and with them four passes of every payload through the kernel. With large
payloads and all cores busy, these decide.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hanse.lab.bridge_bench import QUEUED_MAX, SCENARIOS, SYSTEMS, Chain, StartChain, compare
from hanse.local import ports
from hanse.local.supervise import Federation, FederationSettings, Site

SOURCE = Path(__file__).with_name("relay.c")
SCENARIO = next(one for one in SCENARIOS if one.name == "qos1_1hop_10kib")
GATHER_US = 3_000
# The relays have dialled and subscribed by then. They have no way to report it.
SETTLED_S = 1.5


def compiled(directory: Path) -> Path:
    if shutil.which("cc") is None:
        raise SystemExit("No C compiler (cc) was found; bench_floor.py needs one for relay.c: apt-get install gcc")
    relay = directory / "relay"
    subprocess.run(["cc", "-O2", "-o", relay, SOURCE], check=True)
    return relay


def relays(relay: Path, pause_us: int, *, takes_by_tcp: bool) -> StartChain:
    @asynccontextmanager
    async def start(directory: Path, brokers: int) -> AsyncIterator[Chain]:
        link_port = ports.free(1)[0]

        def command(site: Site) -> list[str]:
            by_tcp = site.broker_socket is None or (takes_by_tcp and site.k == 0)
            host = site.broker_port if by_tcp else site.broker_socket
            return [str(relay), str(site.k), str(host), str(link_port), str(pause_us)]

        async def settled(_sites: Sequence[Site]) -> bool:
            await asyncio.sleep(SETTLED_S)
            return True

        settings = FederationSettings(
            brokers=brokers, directory=directory, overlay="line", restarts=False, queued_max=QUEUED_MAX
        )
        async with Federation(settings, command, settled) as federation:
            urls = [site.broker_url for site in federation.sites]
            yield Chain(urls, {"brokers": federation.brokers, "relays": federation.agents})

    return start


def tell(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    rounds = arguments.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="hanse-floor-") as name:
        relay = compiled(Path(name))
        looked_at = {
            "hanse": SYSTEMS["hanse"],
            "relays": relays(relay, 0, takes_by_tcp=False),
            "relays_gathering": relays(relay, GATHER_US, takes_by_tcp=True),
        }
        results = {
            system: asyncio.run(compare(SCENARIO, rounds, tell, {system: start, "bridges": SYSTEMS["bridges"]}))
            for system, start in looked_at.items()
        }
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
