"""Measure publications/s through the data path of one federator: `publish` at the origin, `forward` in transit.

    PYTHONPATH=src python bench/bench_route.py [--rounds 9] [--batches 2000] [--payload 64]

Prints one JSON object. A federator in the middle of a star has three mesh neighbours, 1,000 groups, and batches of 64
publications. `publish` takes publications of clients, each on any of the 1,000 topics (`mixed`) or the whole batch on
one topic (`same`). `forward` takes runs from a fourth neighbour and sends them to three. `encoded` and
`decode_forward_encode` add the codec: the work of a hop from bytes to bytes. Best and median of the rounds, by CPU time
on one core (`cpu`). On a machine with other work, the `wall` figures say more about that work than about this code.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable

from hanse.protocol import codec
from hanse.protocol.events import LinkUp, Received, Subscribed
from hanse.protocol.machine import Machine
from hanse.protocol.messages import ControlFrame, Publication, Run, SetDelta, SetStep
from hanse.protocol.settings import Settings

BATCH = 64
GROUPS = 1_000
NEIGHBOURS = (1, 2, 3)
SOURCE = 4


def star() -> Machine:
    """Return a core of 1,000 groups with three neighbours that joined them all, and a fourth that only sends."""
    machine = Machine(0, Settings(), now=0.0, wall_s=1_000)
    machine.start(0.0)
    groups = [group_name(number) for number in range(GROUPS)]
    for group in groups:
        machine.step(0.0, Subscribed(group))
    for neighbour in (*NEIGHBOURS, SOURCE):
        machine.step(0.0, LinkUp(neighbour))
        steps = tuple(SetStep(True, 0, group) for group in groups) if neighbour != SOURCE else ()
        memberships = SetDelta(1, 0, len(steps), steps) if steps else None
        machine.step(0.0, Received(neighbour, ControlFrame(neighbour, 1, 1, 0, 0, memberships=memberships)))
    return machine


def group_name(number: int) -> str:
    return f"plant/line{number % 10}/machine{number}/#"


def packet(topic: str, payload_bytes: int) -> bytes:
    rest = len(topic).to_bytes(2, "big") + topic.encode() + b"\0" + b"x" * payload_bytes
    return bytes((0x30, len(rest))) + rest


def topic_of(number: int) -> str:
    return f"plant/line{number % 10}/machine{number}/t"


def measure(rounds: int, count: int, once: Callable[[], None]) -> dict[str, int]:
    """Return rates by CPU time, which other processes hardly change, and by wall time, which they do."""
    cpu, wall = [], []
    for _ in range(rounds):
        cpu_begin, wall_begin = time.process_time(), time.perf_counter()
        once()
        cpu.append(count / (time.process_time() - cpu_begin))
        wall.append(count / (time.perf_counter() - wall_begin))
    return {
        "cpu_best_per_s": round(max(cpu)),
        "cpu_median_per_s": round(statistics.median(cpu)),
        "wall_best_per_s": round(max(wall)),
        "wall_median_per_s": round(statistics.median(wall)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=2_000)
    parser.add_argument("--payload", type=int, default=64)
    options = parser.parse_args()
    rng = random.Random(1)
    machine = star()

    def publication(number: int) -> Publication:
        topic = topic_of(number)
        return Publication(topic, 0, packet(topic, options.payload))

    every = [publication(number) for number in range(GROUPS)]
    mixed = [[rng.choice(every) for _ in range(BATCH)] for _ in range(options.batches)]
    same = [[rng.choice(every)] * BATCH for _ in range(options.batches)]
    count = BATCH * options.batches

    def publish(batches: list[list[Publication]], *, is_encoded: bool) -> None:
        for batch in batches:
            frames = machine.publish(0.0, batch).frames
            if is_encoded:
                for runs in frames.values():
                    codec.encode_data(runs)

    # Every round forwards under its own ids; otherwise the second round would measure duplicates.
    epochs = iter(range(1, 10**6))

    def transit(batches: list[list[Publication]]) -> list[list[Run]]:
        epoch, first, out = next(epochs), 0, []
        for batch in batches:
            body = b"".join(item.packet for item in batch)
            group = group_name(int(batch[0].topic.split("machine")[1].split("/")[0]))
            out.append([Run(7, epoch, first, BATCH, 0, 1, (group,), body)])
            first += BATCH
        return out

    def forward(batches: list[list[Run]]) -> None:
        for runs in batches:
            machine.forward(0.0, SOURCE, runs)

    def relay(frames: list[bytes]) -> None:
        for data in frames:
            for runs in machine.forward(0.0, SOURCE, codec.decode_data(data)).frames.values():
                codec.encode_data(runs)

    batches_of_runs = [transit(same) for _ in range(options.rounds)]
    frames = [[codec.encode_data(runs) for runs in transit(same)] for _ in range(options.rounds)]
    left_runs, left_frames = iter(batches_of_runs), iter(frames)
    result = {
        "python": platform.python_version(),
        "batch": BATCH,
        "groups": GROUPS,
        "next_hops": len(NEIGHBOURS),
        "load_average": os.getloadavg()[0],
        "payload_bytes": options.payload,
        "publish_mixed": measure(options.rounds, count, lambda: publish(mixed, is_encoded=False)),
        "publish_same": measure(options.rounds, count, lambda: publish(same, is_encoded=False)),
        "publish_mixed_encoded": measure(options.rounds, count, lambda: publish(mixed, is_encoded=True)),
        "forward": measure(options.rounds, count, lambda: forward(next(left_runs))),
        "decode_forward_encode": measure(options.rounds, count, lambda: relay(next(left_frames))),
        "duplicates": machine.counters["duplicates"],
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
