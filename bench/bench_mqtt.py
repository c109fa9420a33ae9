"""Measure how fast one core moves publications through `hanse.mqtt`, in memory, without a network.

    python bench/bench_mqtt.py [--payload 64] [--messages 200000] [--rounds 5]

Prints JSON: messages per second of this process's own CPU time (so a busy machine has less influence), the median of
the rounds with the smallest and largest. Each figure is for reads (or runs) of 200 packets, as from a busy socket, over
50 topics. Figures with `_one_topic` are for 200 packets of one publisher, which have one size and one topic.

- `inbound_qos*`: bytes of a host broker (with a subscription identifier) to a list of publications.
- `outbound_qos*`: a run of canonical packets to bytes, with the peer's acknowledgements if the QoS has them.
- `neighbour_run`: a run out of a link's frame, every packet checked.
- `older_*`: the same with a 3.1.1 broker; `older_outward` is only the translation of a write.
- `codec_*`: the `mqtt5` codec alone, for comparison.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import mqtt5

from hanse.mqtt.counters import Counters
from hanse.mqtt.exchange import BY_CLIENT, Exchange
from hanse.mqtt.framing import Splitter
from hanse.mqtt.publication import Reader, encode, split
from hanse.mqtt.receiving import Receiving
from hanse.mqtt.sending import Sending
from hanse.mqtt.v311 import V311

BATCH = 200
TOPICS = 50
PACKET_BYTES_MAX = 64 * 1024 * 1024


def ignore(_: object) -> None:
    pass


def exchange(*, is_older: bool = False) -> Exchange:
    counters = Counters()
    older = V311(counters) if is_older else None
    made = Exchange(
        counters,
        Sending(counters),
        Receiving(counters),
        others=BY_CLIENT,
        on_publications=ignore,
        on_acknowledged=ignore,
        on_refused=ignore,
        on_other=ignore,
        auto_ack=True,
    )
    made.attach(
        ignore if older is None else lambda data: ignore(older.outward(data)),
        lambda: 0,
        session_present=False,
        receive_max=65_535,
        packet_bytes_max=PACKET_BYTES_MAX,
        older=older,
    )
    return made


def raw(qos: int, payload: bytes, topics: int) -> bytes:
    return b"".join(
        mqtt5.PublishPacket(
            f"plant/{n % topics}/temperature",
            payload,
            qos=mqtt5.QoS(qos),
            packet_id=n + 1 if qos else None,
            subscription_ids=[7],
        ).write()
        for n in range(BATCH)
    )


def inbound(qos: int, payload: bytes, topics: int = TOPICS, *, is_older: bool = False) -> Callable[[], None]:
    got = exchange(is_older=is_older)
    splitter = Splitter(PACKET_BYTES_MAX)
    data = raw(qos, payload, topics)
    data = V311(Counters()).outward(data) if is_older else data
    releases = b"".join(b"\x62\x02" + (n + 1).to_bytes(2) for n in range(BATCH)) if qos == 2 else b""

    def once() -> None:
        got.receive(*splitter.feed(data))
        if releases:
            got.receive(*splitter.feed(releases))

    return once


def older_outward(payload: bytes) -> Callable[[], None]:
    older = V311(Counters(), ignore)
    run = b"".join(encode(f"plant/{n % TOPICS}/temperature", payload) for n in range(BATCH))
    return lambda: ignore(older.outward(run))


def outbound(qos: int, payload: bytes, topics: int = TOPICS, *, is_older: bool = False) -> Callable[[], None]:
    sent = exchange(is_older=is_older)
    splitter = Splitter(PACKET_BYTES_MAX)
    run = b"".join(encode(f"plant/{n % topics}/temperature", payload, qos=qos) for n in range(BATCH))

    def once() -> None:
        number = sent.sending.publish_run(run, qos=qos)
        if qos:
            # The peer's acknowledgements: the identifiers are consecutive, like the numbers.
            ids = [(number + n - 1) % 64_511 + 1 for n in range(BATCH)]
            for kind in (b"\x40\x02",) if qos == 1 else (b"\x50\x02", b"\x70\x02"):
                sent.receive(*splitter.feed(b"".join(kind + packet_id.to_bytes(2) for packet_id in ids)))

    return once


def neighbour(payload: bytes) -> Callable[[], None]:
    reader = Reader(is_canonical=True)
    run = b"".join(encode(f"plant/{n % TOPICS}/temperature", payload, qos=1) for n in range(BATCH))

    def once() -> None:
        reader.read_run(run)

    return once


def codec_read(payload: bytes) -> Callable[[], None]:
    data = raw(0, payload, TOPICS)
    offsets = split(data)
    view = memoryview(data)

    def once() -> None:
        for start, end in offsets:
            mqtt5.read(view[start:end])

    return once


def codec_write(payload: bytes) -> Callable[[], None]:
    topics = [f"plant/{n % TOPICS}/temperature" for n in range(BATCH)]

    def once() -> None:
        b"".join(mqtt5.PublishPacket(topic, payload).write() for topic in topics)

    return once


def measure(once: Callable[[], None], messages: int, rounds: int) -> dict[str, int]:
    rates: list[float] = []
    turns = max(1, messages // BATCH)
    once()
    for _ in range(rounds):
        before = time.process_time()
        for _ in range(turns):
            once()
        rates.append(turns * BATCH / (time.process_time() - before))
    return {"median": round(statistics.median(rates)), "min": round(min(rates)), "max": round(max(rates))}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--payload", type=int, default=64, help="bytes")
    parser.add_argument("--messages", type=int, default=200_000, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    payload = b"x" * wanted.payload
    cases: dict[str, Callable[[], None]] = {
        **{f"inbound_qos{qos}": inbound(qos, payload) for qos in (0, 1, 2)},
        **{f"inbound_qos{qos}_one_topic": inbound(qos, payload, 1) for qos in (0, 1)},
        **{f"outbound_qos{qos}": outbound(qos, payload) for qos in (0, 1, 2)},
        **{f"older_inbound_qos{qos}": inbound(qos, payload, is_older=True) for qos in (0, 1)},
        **{f"older_outbound_qos{qos}": outbound(qos, payload, is_older=True) for qos in (0, 1)},
        "older_outward": older_outward(payload),
        "outbound_qos1_one_topic": outbound(1, payload, 1),
        "neighbour_run": neighbour(payload),
        "codec_read": codec_read(payload),
        "codec_write": codec_write(payload),
    }
    figures = {name: measure(once, wanted.messages, wanted.rounds) for name, once in cases.items()}
    settings = {"payload_bytes": wanted.payload, "messages": wanted.messages, "rounds": wanted.rounds}
    json.dump({"settings": settings, "python": sys.version.split()[0], "messages_a_second": figures}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
