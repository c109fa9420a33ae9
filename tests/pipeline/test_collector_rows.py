from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.mqtt.publication import Publication, Reader, encode
from hanse.pipeline.collector_rows import Row, build, content_of, last_rows
from hanse.pipeline.schemas.mqtt import SPOOLED_ROW
from hanse.pipeline.spool import SpoolLimits, SpoolWriter

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=5)


def received(packet: bytes, packet_id: int, *, dup: bool = False) -> Publication:
    """Return the publication that a client would deliver for this packet."""
    found = Reader().read(packet, 0, len(packet)) if packet[0] & 0x06 == 0 else None
    if found is None:
        at = 2 if packet[1] < 128 else 3
        at += 2 + (packet[at] << 8 | packet[at + 1])
        whole = packet[:at] + packet_id.to_bytes(2, "big") + packet[at + 2 :]
        found = Reader().read(bytes((whole[0] | (8 if dup else 0),)) + whole[1:], 0, len(whole))
    return found


PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "expiry_s": st.integers(0, 2**32 - 1),
        "payload_format_indicator": st.sampled_from([0, 1]),
        "content_type": TEXT,
        "response_topic": st.sampled_from(["a", "a/b"]),
        "correlation_data": st.binary(max_size=4),
        "user_properties": st.lists(st.tuples(TEXT, TEXT), max_size=3),
    },
)


@given(st.lists(st.tuples(st.binary(max_size=30), st.booleans(), PROPERTIES), min_size=1, max_size=8))
@settings(max_examples=examples(60), deadline=None)
def test_the_content_hash_is_the_same_from_a_publication_and_from_its_row(
    messages: list[tuple[bytes, bool, dict[str, object]]],
) -> None:
    rows: list[Row] = [
        (n, received(encode(f"t/{n}", payload, qos=1, retain=retain, **more), n + 1))  # type: ignore[arg-type]
        for n, (payload, retain, more) in enumerate(messages)
    ]
    batch, seen = build("p", rows, 100)
    assert batch.schema.equals(SPOOLED_ROW)
    assert batch.column("payload").to_pylist() == [payload for payload, _, _ in messages]
    assert batch.column("seq").to_pylist() == list(range(100, 100 + len(messages)))
    assert seen == [(one.packet_id, content_of(one)) for _, one in rows]


def test_the_content_hash_covers_everything_but_the_expiry() -> None:
    def content(**more: object) -> int:
        return content_of(received(encode("t", b"x", qos=1, **more), 1))  # type: ignore[arg-type]

    assert content(expiry_s=10) == content(expiry_s=9) == content()
    others = [
        content(retain=True),
        content(content_type="a"),
        content(response_topic="a"),
        content(correlation_data=b"a"),
        content(user_properties=[("a", "b")]),
        content(payload_format_indicator=1),
    ]
    assert len({content(), *others}) == len(others) + 1


def test_the_last_rows_of_a_session_are_found_across_segments_without_qos_0(tmp_path: Path) -> None:
    limits = SpoolLimits(segment_bytes_max=1, free_bytes_min=0)
    rows: list[Row] = [
        (n, received(encode("t", str(n).encode(), qos=0 if n % 5 == 0 else 1), n + 1)) for n in range(50)
    ]
    seen: list[tuple[int, int]] = []
    with SpoolWriter(tmp_path, "p", limits=limits) as writer:
        for at in range(0, 50, 10):
            batch, some = build("p", rows[at : at + 10], writer.position.rows)
            writer.append(batch, received_us_min=at, received_us_max=at)
            seen += [pair for pair in some if pair[0]]
    assert last_rows(str(tmp_path), "p", first_row=0, count=1000) == seen
    assert last_rows(str(tmp_path), "p", first_row=0, count=7) == seen[-7:]
    assert last_rows(str(tmp_path), "p", first_row=45, count=1000) == seen[-4:]
    assert last_rows(str(tmp_path), "nobody", first_row=0, count=10) == []
