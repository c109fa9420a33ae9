"""Lists of subscriptions, from a broker's answer to the change of interest."""

import base64
import dataclasses
import http.server
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import HanseError, LocalError, RemoteError, Unavailable
from hanse.interest import ClientLeft, Gap, InterestRegistry, PollAdapter, Session, Subscribed, Unsubscribed, fetch
from hanse.interest.dotted import from_routing_key, from_subject
from hanse.interest.fetch import parse_list_url
from hanse.interest.listing import LISTINGS, Listing, Row, by_paths

# The answer of RabbitMQ 3.10.8 to /api/bindings, with an AMQP queue beside those of MQTT.
RABBITMQ = [
    {"source": "", "vhost": "/", "destination": "mqtt-subscription-aqos1", "destination_type": "queue",
     "routing_key": "mqtt-subscription-aqos1", "arguments": {}, "properties_key": "mqtt-subscription-aqos1"},
    {"source": "amq.topic", "vhost": "/", "destination": "mqtt-subscription-aqos1", "destination_type": "queue",
     "routing_key": "a.*", "arguments": {}, "properties_key": "a.%2A"},
    {"source": "amq.topic", "vhost": "/", "destination": "mqtt-subscription-a qos0qos0", "destination_type": "queue",
     "routing_key": "hanse.x.#", "arguments": {}, "properties_key": "hanse.x.%23"},
    {"source": "amq.topic", "vhost": "/", "destination": "orders", "destination_type": "queue",
     "routing_key": "a.b", "arguments": {}, "properties_key": "a.b"},
]  # fmt: skip

# The answer of NATS 2.9.10 to /connz?subs=1, with a client of its own protocol.
NATS = {
    "num_connections": 2,
    "total": 2,
    "offset": 0,
    "limit": 1000,
    "connections": [
        {
            "cid": 67,
            "kind": "Client",
            "type": "mqtt",
            "subscriptions_list": [
                "a.>",
                "$MQTT.sub.4pT3GSTcZYM1fknI39z4Co",
                "a",
                "b.*.c",
                "/.x./.y./",
                "$MQTT.sub.4pT3GSTcZYM1fknI39z4XC",
            ],
            "mqtt_client": "my.client one",
        },
        {"cid": 68, "kind": "Client", "type": "nats", "subscriptions_list": ["orders.*"]},
    ],
}

# In the form of the vendor's documentation.
EMQX = {
    "meta": {"page": 1, "limit": 1000, "hasnext": False, "count": 2},
    "data": [
        {"topic": "t/a", "qos": 0, "node": "emqx@10.12.50.91", "clientid": "client_1", "nl": 0, "rap": 0, "rh": 0},
        {"topic": "$share/g/t/b", "qos": 2, "node": "emqx@10.12.50.91", "clientid": "client_2"},
    ],
}


@pytest.mark.parametrize(
    ("vendor", "document", "rows"),
    [
        ("rabbitmq", RABBITMQ, [("a", "a/+", 1), ("a qos0", "hanse/x/#", 0)]),
        (
            "nats",
            NATS,
            [
                ("my.client one", "", 0),
                ("my.client one", "/x//y/", 1),
                ("my.client one", "a/#", 1),
                ("my.client one", "b/+/c", 1),
            ],
        ),
        ("emqx", EMQX, [("client_1", "t/a", 0), ("client_2", "$share/g/t/b", 2)]),
    ],
)
def test_the_list_of_each_vendor_is_read(vendor: str, document: object, rows: list[Row]) -> None:
    counters: Counter[str] = Counter()
    assert list(LISTINGS[vendor].rows(document, counters)) == rows
    assert not counters


@pytest.mark.parametrize("vendor", ["rabbitmq", "nats", "emqx"])
@pytest.mark.parametrize("document", [None, 7, "x", {}, {"data": 7}, {"connections": {}}])
def test_a_document_that_is_not_a_list_is_refused(vendor: str, document: object) -> None:
    with pytest.raises(RemoteError, match="JSON array"):
        list(LISTINGS[vendor].rows(document, Counter()))


def test_an_unreadable_row_costs_only_that_row() -> None:
    counters: Counter[str] = Counter()
    bad = [7, {**RABBITMQ[1], "routing_key": "a.#.b"}, {**RABBITMQ[1], "routing_key": "a/b"}]
    assert list(LISTINGS["rabbitmq"].rows([*bad, RABBITMQ[1]], counters)) == [("a", "a/+", 1)]
    assert counters == {"rows_refused": 3}
    counters.clear()
    rows = [{"clientid": "c", "topic": "t", "qos": qos} for qos in (3, -1, True, "1", None)]
    rows += [{"clientid": "", "topic": "t", "qos": 1}, {"clientid": "c", "topic": 7, "qos": 1}]
    assert list(LISTINGS["emqx"].rows({"data": rows}, counters)) == []
    assert counters == {"rows_refused": 7}


KEYS = st.sampled_from(
    ["data", "connections", "clientid", "topic", "qos", "mqtt_client", "subscriptions_list", "destination", "source",
     "destination_type", "routing_key", "meta", "hasnext", "total", "offset"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_read_or_refused(document: object) -> None:
    for listing in (*LISTINGS.values(), by_paths("data", "clientid", "topic", "qos")):
        listing.has_more(document)
        try:
            rows = list(listing.rows(document, Counter()))
        except RemoteError:
            continue
        assert all(client and qos in {0, 1, 2} for client, _, qos in rows)


def test_any_other_list_is_read_by_paths() -> None:
    listing = by_paths("result.items", "who.id", "filter", "")
    document = {"result": {"items": [{"who": {"id": "c"}, "filter": "a/+"}, {"who": 7, "filter": "a"}]}}
    counters: Counter[str] = Counter()
    assert list(listing.rows(document, counters)) == [("c", "a/+", 2)]
    assert counters == {"rows_refused": 1}
    assert list(by_paths("", "c", "f", "q").rows([{"c": "x", "f": "t", "q": 1}], counters)) == [("x", "t", 1)]


@pytest.mark.parametrize("paths", [("a..b", "c", "f", ""), ("", "", "f", ""), ("", "c", "", ""), ("$.x", "c", "f", "")])
def test_an_invalid_path_is_refused(paths: tuple[str, str, str, str]) -> None:
    with pytest.raises(LocalError, match="poll_"):
        by_paths(*paths)


LEVELS = st.text(st.sampled_from("abcü $-_"), max_size=3)


@given(st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=5), st.booleans())
def test_a_filter_survives_its_dotted_form(levels: list[str], has_rest: bool) -> None:
    whole = "/".join([*levels, "#"] if has_rest else levels)
    assert from_routing_key(whole.replace("/", ".").replace("+", "*")) == whole
    words = ["/" if level == "" else "*" if level == "+" else level for level in levels] + [">"] * has_rest
    assert from_subject(".".join(words)) == whole


@pytest.mark.parametrize("name", ["a.#.b", "a+b", "a/b", "#.a"])
def test_a_routing_key_that_no_filter_leads_to_is_refused(name: str) -> None:
    with pytest.raises(RemoteError):
        from_routing_key(name)


@pytest.mark.parametrize("name", ["a..b", "", "a.>.b", "a#", "a+", "a/b.c"])
def test_a_subject_that_no_filter_leads_to_is_refused(name: str) -> None:
    with pytest.raises(RemoteError):
        from_subject(name)


def adapter(vendor: str = "rabbitmq") -> PollAdapter:
    return PollAdapter(LISTINGS[vendor], "hanse-")


def test_only_changes_are_reported() -> None:
    lists = adapter()
    assert lists.listed([("c", "a", 1), ("d", "b", 0)]) == [Subscribed("c", "a", 1), Subscribed("d", "b", 0)]
    assert lists.listed([("c", "a", 1), ("d", "b", 0)]) == []
    assert lists.listed([("c", "a", 2), ("c", "e", 1)]) == [
        Unsubscribed("d", "b"),
        Subscribed("c", "a", 2),
        Subscribed("c", "e", 1),
    ]


def test_the_largest_qos_counts_if_a_client_is_listed_twice() -> None:
    assert adapter().listed([("c", "a", 1), ("c", "a", 0)]) == [Subscribed("c", "a", 1)]


def test_the_federators_own_sessions_are_not_interest() -> None:
    assert adapter().listed([("hanse-federator-1", "a", 1)]) == []


def test_an_unlisted_client_has_left_if_the_list_shows_only_connected_clients() -> None:
    lists = adapter("nats")
    lists.listed([("c", "", 0), ("c", "a", 1), ("d", "b", 1)])
    assert lists.listed([("c", "", 0)]) == [Unsubscribed("c", "a"), ClientLeft("d", Session.UNKNOWN)]


def test_interest_is_unconfirmed_without_a_list_and_confirmed_by_the_next() -> None:
    lists = adapter()
    lists.listed([("c", "a", 1), ("d", "b", 1)])
    assert lists.failed() == [Gap()]
    assert lists.failed() == []
    assert lists.listed([("c", "a", 1)]) == [Unsubscribed("d", "b"), Subscribed("c", "a", 1)]
    assert lists.counters == {"lists": 2, "lists_failed": 2}


def test_subscriptions_that_ended_during_an_absence_end_with_the_first_list() -> None:
    before = InterestRegistry()
    lists = adapter()
    before.apply(0.0, lists.source, lists.listed([("c", "a", 1), ("d", "b", 1)]))
    after = InterestRegistry()
    after.load(0.0, 100.0, before.dump(50.0, 100.0))
    restarted = adapter()
    restarted.restore(after.held_of("poll"))
    change = after.apply(1.0, "poll", restarted.listed([("c", "a", 1)]))
    assert change.removed == ("b",)
    assert after.filters() == {"a": 1}
    assert after.next_expiry_s() is None or not after.expire(1e9).removed


# --- over HTTP --------------------------------------------------------------------------------------------------------


class Pages(http.server.BaseHTTPRequestHandler):
    answer: Callable[["Pages"], tuple[int, bytes]]
    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        type(self).asked.append((self.path, self.headers.get("Authorization")))
        status, body = type(self).answer(self)
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[tuple[str, Any]]:
    class Mine(Pages):
        asked: list[tuple[str, str | None]] = []  # noqa: RUF012

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mine) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", Mine
        server.shutdown()
        thread.join()


def get(url: str, listing: Listing, **login: Any) -> list[Row]:
    return fetch.fetch(dataclasses.replace(parse_list_url(url), **login), listing, Counter())


def test_a_list_is_requested_at_its_usual_path_with_the_login(pages: tuple[str, Any]) -> None:
    url, server = pages
    server.answer = lambda _: (200, json.dumps(RABBITMQ).encode())
    assert get(url, LISTINGS["rabbitmq"], username="hanse", password="secret")[0] == ("a", "a/+", 1)
    assert server.asked == [("/api/bindings", "Basic " + base64.b64encode(b"hanse:secret").decode())]
    get(url + "/api/bindings/%2F", LISTINGS["rabbitmq"])
    assert server.asked[-1] == ("/api/bindings/%2F", None)


def test_a_list_in_pages_is_read_to_its_end(pages: tuple[str, Any]) -> None:
    url, server = pages

    def answer(handler: Pages) -> tuple[int, bytes]:
        page = int(handler.path.partition("page=")[2])
        document = {"meta": {"hasnext": page < 3}, "data": [{"clientid": f"c{page}", "topic": "t", "qos": 1}]}
        return 200, json.dumps(document).encode()

    server.answer = answer
    assert [client for client, _, _ in get(url, LISTINGS["emqx"])] == ["c1", "c2", "c3"]
    assert server.asked[0][0] == "/api/v5/subscriptions?limit=1000&page=1"


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (401, b"", LocalError, "check poll_username"),
        (403, b"", LocalError, "check poll_username"),
        (500, b"", Unavailable, "500"),
        (302, b"", Unavailable, "302"),
        (200, b"{", RemoteError, "no JSON"),
        (200, b"[" * 100_000, RemoteError, "no JSON"),
        (200, b"{}", RemoteError, "JSON array"),
        (200, b" " * 3_000, RemoteError, "more than"),
    ],
)
def test_the_error_for_an_answer_that_is_not_a_list_names_what_was_seen(
    pages: tuple[str, Any],
    status: int,
    body: bytes,
    kind: type[HanseError],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, server = pages
    if words == "more than":
        monkeypatch.setattr(fetch, "LIST_BYTES_MAX", 2_000)
    server.answer = lambda _: (status, body)
    with pytest.raises(kind, match=words):
        get(url, LISTINGS["rabbitmq"], username="u", password="p")


def test_a_broker_that_does_not_answer_in_time_is_given_up(
    pages: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, server = pages
    monkeypatch.setattr(fetch, "LIST_S", 0.2)
    over = threading.Event()

    def answer(_: Pages) -> tuple[int, bytes]:
        over.wait(10)
        return 200, b"[]"

    server.answer = answer
    try:
        with pytest.raises(Unavailable, match="cannot be reached"):
            get(url, LISTINGS["rabbitmq"])
    finally:
        over.set()


def test_an_absent_broker_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        get("http://127.0.0.1:1", LISTINGS["nats"])


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "http://u:secret@h", "http://h:x", "h", "http://h/ x", "http://h/\n"]
)
def test_an_invalid_address_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(LocalError) as caught:
        parse_list_url(url)
    assert "secret" not in str(caught.value)
