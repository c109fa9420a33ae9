import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.errors import RemoteError
from hanse.mqtt.publication import encode as publish
from hanse.protocol.retained.book import Entry, Injection
from hanse.protocol.retained.codec import (
    CHANGES_MAX,
    FILTERS_MAX,
    decode,
    decode_entry,
    decode_numbers,
    encode,
    encode_entry,
    encode_numbers,
)
from hanse.protocol.retained.messages import Answer, Change, Cursor, Fetch, Message, Push, Rejoined
from hanse.protocol.retained.versions import Version

BOUNDED = settings(max_examples=examples(200), deadline=None)
FEDERATORS = st.integers(0, (1 << 32) - 1)
EPOCHS = st.integers(0, (1 << 48) - 1)
NUMBERS = st.integers(0, (1 << 62) - 1)
DIGESTS = st.integers(0, (1 << 63) - 1)
VERSIONS = st.builds(Version, NUMBERS, FEDERATORS)
TOPICS = st.sampled_from(["a", "a/b", "ü/c"])
FILTERS = st.lists(st.sampled_from(["a", "+/b", "c/#", "#"]), max_size=FILTERS_MAX).map(tuple)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    topic = draw(TOPICS)
    value = draw(st.just(b"") | st.binary(max_size=200).map(lambda payload: publish(topic, payload, qos=1)))
    return Change(topic, draw(VERSIONS), value)


MANY = st.lists(changes(), max_size=5).map(tuple)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Fetch, NUMBERS, FILTERS, st.lists(st.builds(Cursor, FEDERATORS, EPOCHS, NUMBERS)).map(tuple)),
    st.builds(Answer, NUMBERS, EPOCHS, NUMBERS, st.booleans(), MANY),
    st.builds(Push, MANY),
    st.builds(Rejoined, FEDERATORS),
)


@BOUNDED
@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert decode(encode(message)) == message


@BOUNDED
@given(MESSAGES, st.data())
def test_a_message_that_is_cut_short_or_too_long_is_refused(message: Message, data: st.DataObject) -> None:
    body = encode(message)
    with pytest.raises(RemoteError):
        decode(body[: data.draw(st.integers(0, len(body) - 1))])
    with pytest.raises(RemoteError):
        decode(body + b"\0")


@BOUNDED
@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_canonical(body: bytes) -> None:
    body = bytes((1, 16 + (body[0] if body else 0) % 4)) + body[1:]
    try:
        message = decode(body)
    except RemoteError:
        return
    assert encode(message) == body


@pytest.mark.parametrize("body", [b"\x02\x10", b"\x01\x0f", b"\x01\x14"])
def test_an_unknown_version_or_type_is_named(body: bytes) -> None:
    with pytest.raises(RemoteError, match=r"expected version 1 and types 16 to 19\."):
        decode(body)


def test_an_unknown_flag_is_refused() -> None:
    body = bytearray(encode(Answer(1, 1, 1, True)))
    body[2] = 2
    with pytest.raises(RemoteError, match=r"has flags 0x2; expected 0x1\."):
        decode(bytes(body))


def test_a_change_must_name_the_topic_of_its_packet() -> None:
    with pytest.raises(RemoteError, match=r"names another topic than its packet does"):
        decode(encode(Push((Change("a", Version(1, 1), publish("b", b"x", qos=1)),))))


def test_more_items_than_the_limit_are_refused() -> None:
    with pytest.raises(RemoteError, match="number of filters"):
        decode(encode(Fetch(1, ("a",) * (FILTERS_MAX + 1))))
    with pytest.raises(RemoteError, match="number of changes"):
        decode(encode(Push((Change("a", Version(1, 1), b""),) * (CHANGES_MAX + 1))))


ENTRIES = st.builds(
    Entry,
    st.none() | VERSIONS,
    DIGESTS,
    st.none() | VERSIONS,
    DIGESTS,
    NUMBERS,
    NUMBERS,
    st.lists(DIGESTS, max_size=4).map(tuple),
    st.lists(st.builds(Injection, NUMBERS, DIGESTS, st.none() | VERSIONS), max_size=4).map(tuple),
)


@BOUNDED
@given(ENTRIES)
def test_a_record_of_the_book_comes_back_as_it_was(entry: Entry) -> None:
    found = decode_entry(encode_entry(entry))
    assert all(getattr(found, name) == getattr(entry, name) for name in Entry.__slots__)


@BOUNDED
@given(ENTRIES, st.data())
def test_a_record_that_is_cut_short_is_refused(entry: Entry, data: st.DataObject) -> None:
    record = encode_entry(entry)
    with pytest.raises(RemoteError):
        decode_entry(record[: data.draw(st.integers(0, len(record) - 1))])


def test_a_record_of_another_version_is_refused() -> None:
    with pytest.raises(RemoteError, match="A record of the book is of an unknown version"):
        decode_entry(b"\x02" + encode_entry(Entry())[1:])


def test_numbers_come_back_as_they_were() -> None:
    assert decode_numbers(encode_numbers(0, 300), 2) == [0, 300]
    with pytest.raises(RemoteError):
        decode_numbers(encode_numbers(0, 300), 1)
