import asyncio
import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.brokers import Mosquitto, free_port
from tests.pipeline.collecting import CollectorProcess, collecting, spooled, until
from tests.pipeline.publishing import publish, publish_packets, wait_for

from hanse.errors import LocalError
from hanse.mqtt.client import Client
from hanse.mqtt.publication import encode
from hanse.mqtt.subscriptions import Subscription
from hanse.pipeline import collector as module
from hanse.pipeline import spool_keeper
from hanse.pipeline.collector import Collector, may_overlap
from hanse.pipeline.collector_settings import CollectorSettings
from hanse.pipeline.collector_status import read_status
from hanse.pipeline.spool import SpoolLimits, SpoolLockedError, SpoolReader

pytestmark = pytest.mark.processes

BROKER = ("max_inflight_messages 20000", "max_queued_messages 0", "persistent_client_expiration 1d")


def settings(broker: Mosquitto, spool: Path, **more: object) -> CollectorSettings:
    given = CollectorSettings(url=broker.url, topics=("t/#",), spool=str(spool), client_id="c", free_bytes_min=0)
    return replace(given, **more)  # type: ignore[arg-type]


def numbered(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    return [(f"t/{n % 7}", str(n).encode()) for n in range(first, first + count)]


def test_a_row_holds_every_field_of_its_publication(tmp_path: Path) -> None:
    async def drive(broker: Mosquitto) -> None:
        async with collecting(Collector(settings(broker, tmp_path))) as collector:
            full = encode(
                "t/full",
                b"\x00\xff",
                qos=1,
                retain=True,
                expiry_s=3600,
                payload_format_indicator=0,
                content_type="text/plain",
                response_topic="answers",
                correlation_data=b"\x01",
                user_properties=[("a", "1"), ("a", "2"), ("<script>", "")],
            )
            await publish_packets(broker.url, [full, encode("t/plain", b"", qos=1)])
            await until("two rows", lambda: collector.status.spooled == 2)

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))
    first, second = spooled(tmp_path, "c")
    assert (first["topic"], first["payload"], first["qos"], first["retain"]) == ("t/full", b"\x00\xff", 1, True)
    found = first["properties"]
    assert (found["content_type"], found["response_topic"], found["correlation_data"]) == (
        "text/plain",
        "answers",
        b"\x01",
    )
    assert [(one["name"], one["value"]) for one in found["user"]] == [("a", "1"), ("a", "2"), ("<script>", "")]
    assert 3590 <= found["message_expiry_s"] <= 3600
    assert (second["payload"], second["properties"], second["seq"], second["producer"]) == (b"", None, 1, "c")
    assert (second["origin_broker"], second["message_id"], second["hops"]) == (None, None, None)


def test_messages_published_while_no_collector_ran_are_collected_by_the_next(tmp_path: Path) -> None:
    async def drive(broker: Mosquitto) -> None:
        async with collecting(Collector(settings(broker, tmp_path))):
            pass
        await publish_packets(broker.url, [encode(topic, payload, qos=1) for topic, payload in numbered(500)])
        async with collecting(Collector(settings(broker, tmp_path))) as collector:
            await until("500 rows", lambda: collector.status.spooled == 500)
            assert collector.status.sessions_resumed == 1

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))
    assert [row["payload"] for row in spooled(tmp_path, "c")] == [payload for _, payload in numbered(500)]


def test_a_derived_session_has_a_secret_id_that_the_next_collector_finds(tmp_path: Path) -> None:
    async def drive(broker: Mosquitto) -> None:
        given = settings(broker, tmp_path, client_id="")
        assert given.has_derived_id
        async with collecting(Collector(given)):
            pass
        await publish_packets(broker.url, [encode("t/x", b"waits", qos=1)])
        async with collecting(Collector(given)) as collector:
            await until("what waited", lambda: collector.status.spooled == 1)
        ids = set(re.findall(r" as (hanse-[0-9a-f]{16}\S*) \(", broker.log))
        assert len(ids) == 1
        assert re.fullmatch(rf"{given.client_id}-[0-9a-f]{{32}}", ids.pop())
        assert (tmp_path / given.client_id / "session").stat().st_mode & 0o777 == 0o600

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))


def test_the_session_of_an_older_version_goes_on(tmp_path: Path) -> None:
    async def drive(broker: Mosquitto) -> None:
        given = settings(broker, tmp_path, client_id="")
        async with collecting(Collector(replace(given, client_id="older"))):
            pass
        (tmp_path / "older").rename(tmp_path / given.client_id)
        async with collecting(Collector(given)):
            pass
        assert f" as {given.client_id} (" in broker.log
        (tmp_path / given.client_id / "session").write_text("{")
        async with collecting(Collector(given)):
            pass
        assert re.search(rf" as {given.client_id}-[0-9a-f]{{32}} \(", broker.log)

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))


def test_a_subscription_at_qos_2_is_also_collected_exactly_once(tmp_path: Path) -> None:
    async def drive(broker: Mosquitto) -> None:
        packets = [encode("t/a", str(n).encode(), qos=2) for n in range(300)]
        async with collecting(Collector(settings(broker, tmp_path, qos=2))) as collector:
            await publish_packets(broker.url, packets)
            await until("300 rows", lambda: collector.status.spooled == 300)
        async with collecting(Collector(settings(broker, tmp_path, qos=2))) as collector:
            await publish_packets(broker.url, packets)
            await until("300 rows", lambda: collector.status.spooled == 300)

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))
    rows = spooled(tmp_path, "c")
    assert {row["qos"] for row in rows} == {2}
    assert [int(row["payload"]) for row in rows] == [*range(300), *range(300)]


def test_many_messages_share_a_commit(tmp_path: Path) -> None:
    async def drive(broker: Mosquitto) -> None:
        async with collecting(Collector(settings(broker, tmp_path))) as collector:
            await publish_packets(broker.url, [encode(topic, payload, qos=1) for topic, payload in numbered(5000)])
            await until("5000 rows", lambda: collector.status.spooled == 5000)
            assert collector.status.acknowledged == 5000
            assert collector.status.commits < 500

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))
    assert len(spooled(tmp_path, "c")) == 5000


def test_a_full_spool_stops_acknowledging_reports_it_and_resumes_with_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_keeper, "FULL_RETRY_S", 0.05)

    async def drive(broker: Mosquitto) -> None:
        async with collecting(Collector(settings(broker, tmp_path, spool_bytes_max=100))) as collector:
            await publish_packets(broker.url, [encode(topic, payload, qos=1) for topic, payload in numbered(50)])
            await until("full", lambda: collector.status.full_waits > 2)
            status = read_status(tmp_path, "c")
            assert status is not None
            assert status.state == "full"
            assert "quota of 100" in status.reason
            assert (collector.status.acknowledged, collector.status.spooled) == (0, 0)
            collector.keeper.writer.limits = SpoolLimits(free_bytes_min=0)
            await until("50 rows", lambda: collector.status.acknowledged == 50)
            assert collector.status.state == "collecting"

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))
    assert len(spooled(tmp_path, "c")) == 50


@pytest.mark.slow
def test_a_collector_that_cannot_write_disconnects_before_its_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_keeper, "FULL_RETRY_S", 0.05)
    monkeypatch.setattr(module, "QUEUE_BYTES_MAX", 50_000)

    async def drive(broker: Mosquitto) -> None:
        async with collecting(
            Collector(settings(broker, tmp_path, spool_bytes_max=100, commit_bytes_max=10_000))
        ) as collector:
            await publish_packets(broker.url, [encode("t/a", b"x" * 100, qos=1)] * 4000)
            await until("full", lambda: collector.status.full_waits > 5)
            # At most one read beyond the limit: 4000 messages would be 1.2 million bytes.
            assert 50_000 < collector.status.queue_bytes_peak < 1_000_000
            collector.keeper.writer.limits = SpoolLimits(free_bytes_min=0)
            await until("all rows", lambda: collector.status.spooled >= 4000)
            await until("collecting", lambda: collector.status.state == "collecting")

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))
    assert len(spooled(tmp_path, "c")) == 4000


def test_a_collector_reconnects_to_a_restarted_broker(tmp_path: Path) -> None:
    async def drive(broker: Mosquitto) -> None:
        async with collecting(Collector(settings(broker, tmp_path))) as collector:
            await publish_packets(broker.url, [encode("t/a", b"1", qos=1)])
            await until("a row", lambda: collector.status.spooled == 1)
            await asyncio.to_thread(broker.kill)
            await until("connecting", lambda: collector.status.state == "connecting")
            await asyncio.to_thread(broker.start)
            await until("collecting", lambda: collector.status.state == "collecting")
            await publish_packets(broker.url, [encode("t/a", b"2", qos=1)])
            await until("another row", lambda: collector.status.spooled == 2)

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))
    assert [row["payload"] for row in spooled(tmp_path, "c")] == [b"1", b"2"]


def test_a_session_lost_by_the_broker_is_not_mistaken_for_the_old_one(tmp_path: Path) -> None:
    async def drive() -> None:
        with Mosquitto(*BROKER) as broker:
            async with collecting(Collector(settings(broker, tmp_path))) as collector:
                await publish_packets(broker.url, [encode("t/a", b"same", qos=1)] * 3)
                await until("3 rows", lambda: collector.status.spooled == 3)
        with Mosquitto(*BROKER, port=broker.port) as again:
            async with collecting(Collector(settings(again, tmp_path))) as collector:
                await publish_packets(again.url, [encode("t/a", b"same", qos=1)] * 3)
                await until("3 rows", lambda: collector.status.spooled == 3)
                assert collector.status.copies == 0

    asyncio.run(drive())
    assert len(spooled(tmp_path, "c")) == 6


def test_rows_durable_but_unacknowledged_when_the_collector_died_are_not_spooled_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packets = [encode("t/a", str(n - 1 if n % 10 == 9 else n).encode(), qos=1) for n in range(200)]

    async def drive(broker: Mosquitto) -> None:
        async with collecting(Collector(settings(broker, tmp_path))) as collector:
            # As if killed between the sync and the PUBACK.
            monkeypatch.setattr(Client, "ack", lambda *_: None)
            await publish_packets(broker.url, packets)
            await until("200 rows", lambda: collector.status.spooled == 200)
        monkeypatch.undo()
        async with collecting(Collector(settings(broker, tmp_path))) as collector:
            await until("200 copies", lambda: collector.status.copies == 200)
            # The last one is published again, and this time it is a new message.
            await publish_packets(broker.url, packets[-1:])
            await until("a row", lambda: collector.status.spooled == 1)
        async with collecting(Collector(settings(broker, tmp_path))) as collector:
            await publish_packets(broker.url, packets[-1:])
            await until("a row", lambda: collector.status.spooled == 1)
            assert collector.status.copies == 0

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))
    rows = spooled(tmp_path, "c")
    assert len(rows) == 202
    assert not any(row["dup"] for row in rows)


@pytest.mark.slow
def test_killed_at_any_moment_every_message_is_spooled_exactly_once(tmp_path: Path) -> None:
    # One in ten equals its predecessor byte for byte.
    messages = [("t/x", str(n - 1 if n % 10 == 9 else n).encode()) for n in range(6000)]
    with Mosquitto(*BROKER) as broker:
        given = settings(broker, tmp_path)
        with CollectorProcess(given) as collector:
            wait_for("collecting", lambda: _is_collecting(tmp_path))
            for n, at in enumerate(range(0, 6000, 1500)):
                publish(broker.url, messages[at : at + 1500])
                if n < 3:
                    # Some messages are spooled, some not; some are acknowledged, some not.
                    goal = at + 300 * (n + 1)
                    wait_for("some rows", lambda goal=goal: SpoolReader(tmp_path, "c").tail().rows > goal)  # type: ignore[misc]
                    collector.kill()
                    collector.start()
            wait_for("all rows", lambda: SpoolReader(tmp_path, "c").tail().rows >= 6000)
            code, said = collector.stop()
    assert code == 0, said
    rows = spooled(tmp_path, "c")
    assert [row["seq"] for row in rows] == list(range(6000))
    assert Counter(row["payload"] for row in rows) == Counter(payload for _, payload in messages)


def _is_collecting(spool: Path) -> bool:
    status = read_status(spool, "c")
    return status is not None and status.state == "collecting"


def test_messages_dropped_by_a_short_broker_queue_are_counted(tmp_path: Path) -> None:
    async def drive(broker: Mosquitto) -> int:
        async with collecting(Collector(settings(broker, tmp_path))):
            pass
        packets = [encode(topic, payload, qos=1) for topic, payload in numbered(3000)]
        await publish_packets(broker.url, packets)
        async with collecting(Collector(settings(broker, tmp_path))) as collector:
            await until("what was kept", lambda: collector.status.spooled > 0)
            await until("the count", lambda: 3000 - collector.status.spooled == (collector.status.broker_dropped or 0))
            return collector.status.spooled

    # With Mosquitto's default queue length; it publishes the counter every second.
    with Mosquitto("sys_interval 1") as broker:
        kept = asyncio.run(drive(broker))
    assert 0 < kept < 3000
    assert len(spooled(tmp_path, "c")) == kept


def test_a_wrong_login_gives_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    with Mosquitto(*BROKER, anonymous=False) as broker, CollectorProcess(settings(broker, tmp_path)) as collector:
        wait_for("its end", lambda: not collector.is_running)
        code, said = collector.stop()
    assert code == 2
    assert "not authorised" in said or "user name and password" in said
    assert "Traceback" not in said


def test_a_filter_that_the_broker_refuses_stops_the_collector(tmp_path: Path) -> None:
    says = "refused the subscription to 'secret/#'"
    with Mosquitto(*BROKER) as broker, pytest.raises(LocalError, match=says):
        asyncio.run(_run_with_refusal(settings(broker, tmp_path / "s")))


async def _run_with_refusal(given: CollectorSettings) -> None:
    collector = Collector(given)
    task = asyncio.create_task(collector.run())
    await until("collecting", lambda: collector.status.state == "collecting")
    collector.subscribed([(Subscription("secret/#"), 0x87)])
    await task


def test_a_second_collector_is_refused_but_a_helper_waits(tmp_path: Path) -> None:
    async def drive(broker: Mosquitto) -> None:
        async with collecting(Collector(settings(broker, tmp_path))):
            with pytest.raises(SpoolLockedError, match="has a writer already"):
                await Collector(settings(broker, tmp_path)).run()
            waiting = Collector(settings(broker, tmp_path), waits_for_lock=True)
            task = asyncio.create_task(waiting.run())
            await asyncio.sleep(0)
            assert waiting.status.state == "waiting"
        await until("its turn", lambda: waiting.status.state == "collecting")
        waiting.stop()
        await task

    with Mosquitto(*BROKER) as broker:
        asyncio.run(drive(broker))


def test_a_broker_may_require_tls_and_a_client_certificate(tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in ("key", "crt")}
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *(*subject, "-days", "2", "-keyout", files["key"], "-out", files["crt"]),
        ],
        check=True,
        capture_output=True,
    )
    plain = free_port()
    tls = (
        f"cafile {files['crt']}",
        f"certfile {files['crt']}",
        f"keyfile {files['key']}",
        "require_certificate true",
    )

    async def drive(broker: Mosquitto) -> None:
        given = settings(
            broker,
            tmp_path / "spool",
            url=f"mqtts://localhost:{broker.port}",
            ca_file=files["crt"],
            cert_file=files["crt"],
            key_file=files["key"],
        )
        async with collecting(Collector(given)) as collector:
            await publish_packets(f"mqtt://127.0.0.1:{plain}", [encode("t/a", b"1", qos=1)])
            await until("a row", lambda: collector.status.spooled == 1)

    with Mosquitto(*BROKER, *tls, f"listener {plain} 127.0.0.1") as broker:
        asyncio.run(drive(broker))
    assert [row["payload"] for row in spooled(tmp_path / "spool", "c")] == [b"1"]


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a/+", "+/b", True),
        ("a/b", "a/c", False),
        ("a/#", "+/b/c", True),
        ("a/+", "b/+", False),
        ("a/+", "a/+/c", False),
    ],
)
def test_overlapping_filters_are_detected(one: str, other: str, overlap: bool) -> None:
    assert may_overlap(one, other) is overlap
    assert may_overlap(other, one) is overlap
