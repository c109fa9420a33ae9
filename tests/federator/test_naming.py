"""Publications under another name or dropped; nothing else of them changes."""

from hypothesis import given
from hypothesis import strategies as st

from hanse.federator.crossing import Crossing
from hanse.federator.naming import exported, imported, local_copies, renamed
from hanse.mqtt.publication import Publication, decode, encode

NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="#+/"), min_size=1, max_size=200)


def published(topic: str, payload: bytes = b"x", qos: int = 0) -> Publication:
    return Publication(encode(topic, payload, qos=qos), topic, qos, False, False, 0, (2,))


@given(NAMES, NAMES, st.binary(max_size=300), st.integers(0, 2), st.booleans())
def test_a_renamed_packet_equals_a_newly_encoded_one(
    old: str, new: str, payload: bytes, qos: int, retain: bool
) -> None:
    """It also holds if the length of the packet takes one byte more or fewer."""

    def packet(topic: str) -> bytes:
        return encode(
            topic,
            payload,
            qos=qos,
            retain=retain,
            expiry_s=7,
            content_type="text/plain",
            response_topic="answers",
            correlation_data=b"\0\1",
            user_properties=[("a", "1"), ("a", "2")],
        )

    assert renamed(packet(old), new) == packet(new)


def test_leaving_publications_have_the_prefix_and_denied_ones_do_not_leave() -> None:
    crossing = Crossing(prefix="plants/7", export_deny=["secret/#"])
    leaving = exported(crossing, [published("a", qos=1), published("secret/b"), published("c")])
    assert [(one.topic, one.qos, decode(one.packet).topic) for one in leaving] == [
        ("plants/7/a", 1, "plants/7/a"),
        ("plants/7/c", 0, "plants/7/c"),
    ]


def test_a_publication_that_keeps_its_name_keeps_its_bytes() -> None:
    one = published("a")
    assert exported(Crossing(export_allow=["a"]), [one])[0].packet is one.packet


def test_entering_publications_lose_the_own_prefix_and_denied_ones_do_not_enter() -> None:
    crossing = Crossing(prefix="plants/7", import_deny=["secret/#"])
    names = ["plants/7/a", "plants/8/a", "plants/7/secret/b", "secret/c"]
    body, count = imported(crossing, b"".join(encode(name, b"x") for name in names))
    assert body == encode("a", b"x") + encode("plants/8/a", b"x")
    assert count == 2


def test_a_run_without_entering_publications_is_empty() -> None:
    assert imported(Crossing(import_allow=["a"]), encode("b", b"x")) == (b"", 0)


def test_a_publication_for_the_federation_also_appears_at_its_own_broker() -> None:
    crossing = Crossing(federated_prefix=True)
    batch = [published("federated/a"), published("a")]
    assert local_copies(crossing, batch) == [encode("a", b"x")]
    assert [one.topic for one in exported(crossing, batch)] == ["a", "a"]
