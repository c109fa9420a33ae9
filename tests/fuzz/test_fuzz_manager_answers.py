"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is messages in a manager's name: its answers over HTTP, and its announcements on the broker, where any client
may publish.
"""

import asyncio
import json

from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz

from hanse.errors import RemoteError, Unavailable
from hanse.federator import manager_client, words
from hanse.topology.announcements import is_genuine

CREDENTIAL = "hanse-fed-7-open-00"
PEERS = st.fixed_dictionaries(
    {"id": st.integers(0, 9), "ip": st.sampled_from(["tcp://b1:1883", "mqtts://[::1]:8883"])},
    optional={"link": st.sampled_from(["mqtt://b1:1893", None]), "state": st.sampled_from(["up", "down"])},
)
BODIES = st.fixed_dictionaries(
    {
        "id": st.just(7),
        "epoch": st.integers(0, 9),
        "changedEpoch": st.integers(0, 9),
        "state": st.just("up"),
        "manager": st.just("m"),
        "neighbors": st.lists(PEERS, max_size=3),
        "settings": st.dictionaries(st.sampled_from(["announcement_interval", "x"]), st.sampled_from(["1s", 2, None])),
        "federators": st.lists(PEERS, max_size=3),
        "links": st.lists(st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.integers(0, 9)}), max_size=2),
    }
)


def signed(body: dict[str, object]) -> bytes:
    return json.dumps({**body, "mac": words.announcement_mac(CREDENTIAL, body)}).encode()


def chunked(payload: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(payload), payload)


def plain(payload: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(payload), payload)


PAYLOADS = st.one_of(BODIES.map(signed), BODIES.map(signed).map(chunked), BODIES.map(signed).map(plain))


def take(data: bytes) -> None:
    document: object = None
    try:
        answer = asyncio.run(answer_in(data)) if data.startswith(b"HTTP") else data
        document = manager_client._read_json(manager_client.parse_manager("http://m:1"), 200, answer)
    except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, Unavailable):
        pass  # `_ask_one` turns these into Unavailable
    announcement = None
    try:
        announcement = words.read_announcement(data, 7, CREDENTIAL)
    except RemoteError as error:
        refusal: RemoteError | None = error
    else:
        refusal = None
    if announcement is not None:
        assert is_genuine(data, CREDENTIAL)
    else:
        is_genuine(data, CREDENTIAL)
    if isinstance(document, dict):
        words.read_word(document)
        words.read_map(document)
    if refusal is not None:
        raise refusal


async def answer_in(data: bytes) -> bytes:
    reader = asyncio.StreamReader(limit=manager_client.HEAD_BYTES_MAX)
    reader.feed_data(data)
    reader.feed_eof()
    return (await manager_client._read_answer(reader))[1]


def test_any_answer_of_a_manager_is_read_or_refused() -> None:
    fuzz("manager_answers", PAYLOADS, take)


def test_an_announcement_of_a_megabyte_is_checked_in_linear_time() -> None:
    assert_linear(lambda size: b'{"id": 7, "mac": ' + b"[" * size, take)
    assert_linear(lambda size: b'{"id": 7, "mac": "' + b"x" * size + b'"}', take)
    assert_linear(lambda size: b'{"id": 7, "mac": "x"' + b',"a": 1' * (size // 7) + b"}", take)
