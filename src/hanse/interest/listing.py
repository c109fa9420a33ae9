"""Formats of subscription lists that brokers give over HTTP: their address, and the parser of the answer.

One `Listing` per vendor, as data and one small function; `by_paths` for any other that gives a list of objects. Pure:
documents in, rows out. A row is `(client, filter, qos)`. With an empty filter, it only says that the client is present.

Rules: an unreadable row costs only that row, which is counted, not the list. An entry that is not an MQTT subscription
(an AMQP queue, a NATS client's subject) is left out and not counted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hanse.errors import LocalError, RemoteError
from hanse.interest.dotted import from_routing_key, from_subject

Row = tuple[str, str, int]

# Rows per page of a paged list. A larger value makes one answer heavy, a smaller one needs many requests.
PAGE_ROWS = 1_000
_RABBITMQ_QUEUE = re.compile(r"mqtt-subscription-(.*)qos([01])", re.DOTALL)
_KEY = re.compile(r"[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]+)*")


@dataclass(frozen=True, slots=True)
class Listing:
    """Format of one kind of list.

    Attributes:
        path: its path, if the operator's URL names none.
        pages: query of page k (from 0), or None for a list without pages.
        rows: function that returns the rows of one answer.
        has_more: function that returns whether another page follows this answer.
        shows_absent: whether it contains subscriptions of clients that are not connected. If not, a client that is not
            in the list may come back to its session, so its interest expires instead of ending.
    """

    name: str
    path: str
    rows: Callable[[Any, Counter[str]], Iterator[Row]]
    pages: Callable[[int], str] | None = None
    has_more: Callable[[Any], bool] = lambda _: False
    shows_absent: bool = True


def _rows_of(found: object, counters: Counter[str]) -> Iterator[dict[str, Any]]:
    if not isinstance(found, list):
        raise RemoteError(f"Saw a list of subscriptions that is a {type(found).__name__}; expected a JSON array.")
    for row in found:
        if isinstance(row, dict):
            yield row
        else:
            counters["rows_refused"] += 1


def _row(client: object, text: object, qos: object, counters: Counter[str]) -> Iterator[Row]:
    if isinstance(client, str) and client and isinstance(text, str) and type(qos) is int and 0 <= qos <= 2:
        yield client, text, qos
    else:
        counters["rows_refused"] += 1


def _rabbitmq(document: object, counters: Counter[str]) -> Iterator[Row]:
    """Return the bindings of RabbitMQ's queues for MQTT sessions: one queue per session and QoS, of either kind."""
    for binding in _rows_of(document, counters):
        queue = binding.get("destination")
        match = _RABBITMQ_QUEUE.fullmatch(queue) if isinstance(queue, str) else None
        # Every queue is also bound to the exchange without a name, under its own name.
        if match is None or not binding.get("source") or binding.get("destination_type") != "queue":
            continue
        try:
            wanted = from_routing_key(str(binding.get("routing_key", "")))
        except RemoteError:
            counters["rows_refused"] += 1
            continue
        yield from _row(match[1], wanted, int(match[2]), counters)


def _nats(document: object, counters: Counter[str]) -> Iterator[Row]:
    """Return the connections of MQTT clients with their subjects. NATS gives no QoS, so assume 1, its largest."""
    connections = document.get("connections") if isinstance(document, dict) else None
    for connection in _rows_of(connections, counters):
        client = connection.get("mqtt_client")
        if not client:
            continue
        yield from _row(client, "", 0, counters)
        subjects = connection.get("subscriptions_list") or []
        if not isinstance(subjects, list):
            counters["rows_refused"] += 1
            continue
        names = {subject for subject in subjects if isinstance(subject, str)}
        for subject in sorted(names):
            # Subjects of NATS itself carry stored messages to the client. And `a/#` is stored as `a.>` and, for its
            # parent, `a`.
            if subject.startswith("$MQTT.") or f"{subject}.>" in names:
                continue
            try:
                wanted = from_subject(subject)
            except RemoteError:
                counters["rows_refused"] += 1
                continue
            yield from _row(client, wanted, 1, counters)


def _nats_has_more(document: object) -> bool:
    if not isinstance(document, dict):
        return False
    try:
        return int(document["offset"]) + len(document["connections"]) < int(document["total"])
    except (KeyError, TypeError, ValueError):
        return False


def _emqx(document: object, counters: Counter[str]) -> Iterator[Row]:
    rows = document.get("data") if isinstance(document, dict) else None
    for row in _rows_of(rows, counters):
        yield from _row(row.get("clientid"), row.get("topic"), row.get("qos"), counters)


def _emqx_has_more(document: object) -> bool:
    meta = document.get("meta") if isinstance(document, dict) else None
    return isinstance(meta, dict) and meta.get("hasnext") is True


LISTINGS = {
    "rabbitmq": Listing("rabbitmq", "/api/bindings", _rabbitmq),
    "nats": Listing(
        "nats",
        "/connz",
        _nats,
        pages=lambda page: f"subs=1&limit={PAGE_ROWS}&offset={page * PAGE_ROWS}",
        has_more=_nats_has_more,
        shows_absent=False,
    ),
    "emqx": Listing(
        "emqx",
        "/api/v5/subscriptions",
        _emqx,
        pages=lambda page: f"limit={PAGE_ROWS}&page={page + 1}",
        has_more=_emqx_has_more,
    ),
}


def by_paths(rows: str, client: str, filter_: str, qos: str) -> Listing:
    """Return the format of a list of objects anywhere in the answer. Dots in a path lead into nested objects.

    Args:
        rows: path of the list in the answer; empty if the answer is the list.
        client: path of the client id in a row.
        filter_: path of the filter, as the client wrote it.
        qos: path of the QoS; empty if there is none, which counts as 2.

    Raises:
        LocalError: one of them is not a path.
    """
    for name, path in (("rows", rows), ("client", client), ("filter", filter_), ("qos", qos)):
        if not _KEY.fullmatch(path) and (path or name in {"client", "filter"}):
            raise LocalError(f"poll_{name} is {path[:60]!r}; write keys with dots between them, such as data.items.")

    def read(document: object, counters: Counter[str]) -> Iterator[Row]:
        for row in _rows_of(_at(document, rows), counters):
            yield from _row(_at(row, client), _at(row, filter_), _at(row, qos) if qos else 2, counters)

    return Listing("paths", "", read)


def _at(document: object, path: str) -> object:
    for key in path.split(".") if path else ():
        document = document.get(key) if isinstance(document, dict) else None
    return document
