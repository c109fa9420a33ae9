"""Lists of subscriptions as brokers give them over HTTP: where to ask, and how to read the answer.

One `Listing` a vendor, as data and one small function; `by_paths` for any other that gives a list of objects. Pure:
documents in, rows out. A row is `(client, filter, qos)`; with an empty filter it says only that the client is there.

Rules: a row that cannot be read costs that row, counted, not the list; what is no MQTT subscription at all (an AMQP
queue, a NATS client's subject) is left out without a word.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hanse.errors import LocalError, RemoteError
from hanse.interest.dotted import from_routing_key, from_subject

Row = tuple[str, str, int]

# A page of a list that comes in pages: larger makes one answer heavy, smaller asks often.
PAGE_ROWS = 1_000
_RABBITMQ_QUEUE = re.compile(r"mqtt-subscription-(.*)qos([01])", re.DOTALL)
_KEY = re.compile(r"[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]+)*")


@dataclass(frozen=True, slots=True)
class Listing:
    """One kind of list.

    Attributes:
        path: where it is, if the operator's URL names no path of its own.
        pages: the query of page k (from 0), or None for a list that comes whole.
        rows: the rows of one answer.
        has_more: whether another page follows this answer.
        shows_absent: whether subscriptions of clients that are away are in it. If not, a client that is not in the
            list may come back to its session, and its interest runs out instead of ending.
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
    """Bindings of the queues that RabbitMQ makes for MQTT sessions: one queue a session and QoS, of either kind."""
    for binding in _rows_of(document, counters):
        queue = binding.get("destination")
        match = _RABBITMQ_QUEUE.fullmatch(queue) if isinstance(queue, str) else None
        # Every queue is bound to the exchange without a name as well, under its own name.
        if match is None or not binding.get("source") or binding.get("destination_type") != "queue":
            continue
        try:
            wanted = from_routing_key(str(binding.get("routing_key", "")))
        except RemoteError:
            counters["rows_refused"] += 1
            continue
        yield from _row(match[1], wanted, int(match[2]), counters)


def _nats(document: object, counters: Counter[str]) -> Iterator[Row]:
    """Connections of MQTT clients with their subjects. NATS tells no QoS, so 1, its largest."""
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
            # Its own: where it sends the client what was stored. And `a/#` is kept as `a.>` and, for its parent, `a`.
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
    """A list of objects, wherever it is: keys, with dots between them where one object holds another.

    Args:
        rows: where the list is in the answer; empty if the answer is the list.
        client: where the client id is in a row.
        filter_: where the filter is, as the client wrote it.
        qos: where the QoS is; empty if it is not told, which counts as 2.

    Raises:
        LocalError: one of them is no path.
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
