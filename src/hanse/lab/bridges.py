"""Peer for comparison: a chain of Mosquittos joined by Mosquitto's own bridges, as an operator would configure it.

Broker k forwards everything under one prefix to broker k + 1. The settings that matter for speed equal those of a
federation's brokers: a long queue, a large window, no TCP delay, MQTT 5.
"""

import asyncio
import functools
from pathlib import Path

from hanse.local import mosquitto, ports
from hanse.local.client import broker_answers
from hanse.local.ports import LOOPBACK
from hanse.local.processes import ProcessSettings, SupervisedProcess

READY_S = 15.0
BRIDGE_READY_S = 1.0


def bridge_lines(next_port: int, topic: str, qos: int, k: int) -> list[str]:
    """Return the configuration lines that connect broker k to the next one."""
    return [
        f"connection to-{k + 1}",
        f"address {LOOPBACK}:{next_port}",
        f"topic {topic} out {qos}",
        "bridge_protocol_version mqttv50",
        "cleansession true",
        "try_private false",
        "notifications false",
        "bridge_attempt_unsubscribe false",
    ]


class BridgeChain:
    """Chain of bridged brokers: `async with BridgeChain(directory, brokers=4, qos=1) as chain: chain.urls`."""

    def __init__(
        self, directory: Path, *, brokers: int, qos: int, topic: str = "load/#", queued_max: int = 100_000
    ) -> None:
        broker_ports = ports.free(brokers)
        self.urls = [f"mqtt://{LOOPBACK}:{port}" for port in broker_ports]
        self.processes: list[SupervisedProcess] = []
        for k, port in enumerate(broker_ports):
            lines = bridge_lines(broker_ports[k + 1], topic, qos, k) if k + 1 < brokers else []
            place = directory / f"bridge-{k}"
            settings = mosquitto.BrokerSettings(port, place, extra=tuple(lines), queued_max=queued_max)
            command, output = mosquitto.command(settings), place / "output.log"
            self.processes.append(SupervisedProcess(f"bridge {k}", command, output, ProcessSettings(restarts=False)))

    async def __aenter__(self) -> "BridgeChain":  # noqa: PYI034 - not meant to be derived from
        # Start from the far end, so that every bridge reaches its next broker at the first attempt.
        for process, url in reversed(list(zip(self.processes, self.urls, strict=True))):
            await process.start()
            await process.wait_ready(functools.partial(broker_answers, url), READY_S)
        await asyncio.sleep(BRIDGE_READY_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(process.stop() for process in self.processes))
