"""Options of the data source `mqtt`, checked before anything runs.

`KNOWN` lists every option with its meaning. An unknown option is refused with the nearest known name. Names are
case-insensitive, as in Spark.
"""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Self, overload

from hanse.errors import LocalError
from hanse.pipeline.collector_settings import CollectorSettings, default_spool, parse_duration_s, split_filters
from hanse.pipeline.spool.format import Position, check_name

KNOWN: dict[str, str] = {
    "url": "broker to read from or write to: mqtt://host:port, mqtts://host:port",
    "topics": "topic filters, comma-separated: to subscribe to (with url), or to select rows (without)",
    "qos": "0, 1 (default) or 2: QoS of the subscription, or of rows written without a qos column",
    "clientId": "name of the session at the broker and of the producer in the spool; the same after restarts",
    "spool": "directory of the spool; by default in the user's data directory",
    "maxRowsPerBatch": "a micro-batch ends at the block that reaches this many rows; default 1000000",
    "maxBytesPerBatch": "a micro-batch ends at the block that reaches this many bytes; default 268435456",
    "startingOffsets": "earliest (default), latest, or a JSON offset; for a query without a checkpoint",
    "username": "login at the broker",
    "password": "login at the broker",
    "caFile": "PEM file of the authorities to trust",
    "certFile": "PEM file of the client's certificate",
    "keyFile": "PEM file of its key",
    "since": "batch: rows received at or after this time (ISO 8601)",
    "until": "batch: rows received before this time (ISO 8601)",
    "pushFilters": "batch: true to prune blocks by the query's own filters; needs "
    "spark.sql.python.filterPushdown.enabled",
    "consumer": "name for the stream's mark, so that the janitor keeps rows that it has not read",
    "failOnDataLoss": "true (default): deleted or damaged rows stop the query; false: they are skipped with a warning",
    "minPartitions": "minimum number of tasks per batch, unless they would be smaller than 1 MiB; default: cores",
    "retention": "how long the collector of a url keeps rows in the spool, such as 7d (default)",
    "topic": "write: topic of every row that has no topic column",
    "retain": "write: true to retain rows that have no retain column",
    "appId": "write: id of this writer in message ids; by default the id of the streaming query",
}
# Options that Spark itself passes along with a source's options.
_SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
_SPELLING = {name.lower(): name for name in KNOWN}

ROWS_PER_BATCH_MAX = 1_000_000
BYTES_PER_BATCH_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options of a reader."""

    spool: str
    producer: str | None
    topics: tuple[str, ...]
    rows_per_batch_max: int
    bytes_per_batch_max: int
    starting: Literal["earliest", "latest"] | dict[str, Position]
    since_us: int | None
    until_us: int | None
    consumer: str | None
    fail_on_data_loss: bool
    partitions_min: int
    push_filters: bool
    collector: CollectorSettings | None
    """Set if a url is given: the source runs this collector itself."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check and convert the options; a LocalError names the wrong option and the expected value."""
        given = _Given(options)
        collector = collector_settings(given)
        spool = collector.spool if collector else given.text("spool", None) or given.path or default_spool()
        topics = given.text("topics", None)
        producer = collector.client_id if collector else given.text("clientId", None)
        consumer = given.text("consumer", None)
        return cls(
            spool=os.path.abspath(spool),  # noqa: PTH100 - Path would resolve links, which executors may not share
            producer=check_name("producer", producer) if producer else None,
            topics=() if collector or topics is None else split_filters(topics),
            rows_per_batch_max=given.number("maxRowsPerBatch", ROWS_PER_BATCH_MAX, least=1),
            bytes_per_batch_max=given.number("maxBytesPerBatch", BYTES_PER_BATCH_MAX, least=1),
            starting=_starting(given.text("startingOffsets", "earliest")),
            since_us=_time_us("since", given.text("since", None)),
            until_us=_time_us("until", given.text("until", None)),
            consumer=check_name("consumer", consumer) if consumer else None,
            fail_on_data_loss=given.flag("failOnDataLoss", default=True),
            partitions_min=given.number("minPartitions", os.cpu_count() or 2, least=1),
            push_filters=given.flag("pushFilters", default=False),
            collector=collector,
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options of a writer."""

    url: str
    client_id: str | None
    topic: str | None
    qos: int
    retain: bool
    app_id: str | None
    username: str | None
    password: str | None
    ca_file: str | None
    cert_file: str | None
    key_file: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check and convert the options; a LocalError names the wrong option and the expected value."""
        given = _Given(options)
        url = given.text("url", None)
        if url is None:
            raise LocalError("Writing needs the option url: the broker, as mqtt://host:port.")
        topic = given.text("topic", None)
        if topic is not None and (not topic or "+" in topic or "#" in topic or "\0" in topic):
            raise LocalError(f"topic is {topic!r}; expected a topic to publish to, without wildcards.")
        qos = given.number("qos", 1, least=0)
        # The same checks as for a collector: address, login, files.
        checked = CollectorSettings(
            url=url,
            topics=("#",),
            qos=qos,
            username=given.text("username", None),
            password=given.text("password", None),
            ca_file=given.text("caFile", None),
            cert_file=given.text("certFile", None),
            key_file=given.text("keyFile", None),
        )
        app_id = given.text("appId", None)
        return cls(
            url=url,
            client_id=given.text("clientId", None),
            topic=topic,
            qos=qos,
            retain=given.flag("retain", default=False),
            app_id=check_name("appId", app_id) if app_id else None,
            username=checked.username,
            password=checked.password,
            ca_file=checked.ca_file,
            cert_file=checked.cert_file,
            key_file=checked.key_file,
        )


def collector_settings(given: "_Given") -> CollectorSettings | None:
    """Return the settings of the collector to run, or None without a url."""
    url, topics = given.text("url", None), given.text("topics", None)
    if url is None:
        for name in ("username", "password", "caFile", "certFile", "keyFile", "retention"):
            if given.text(name, None) is not None:
                raise LocalError(
                    f"The option {name} is for a connection, and there is no url; give url and topics too."
                )
        return None
    if topics is None:
        raise LocalError("The option url needs topics: the filters to subscribe to, such as sensors/#.")
    return CollectorSettings(
        url=url,
        topics=split_filters(topics),
        spool=os.path.abspath(given.text("spool", None) or given.path or default_spool()),  # noqa: PTH100
        client_id=given.text("clientId", ""),
        qos=given.number("qos", 1, least=0),
        username=given.text("username", None),
        password=given.text("password", None),
        ca_file=given.text("caFile", None),
        cert_file=given.text("certFile", None),
        key_file=given.text("keyFile", None),
        retention_s=parse_duration_s("retention", given.text("retention", "7d")),
    )


class _Given:
    """Options as the user gave them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {key.lower(): value for key, value in options.items()}
        self.path = self._values.get("path")
        for key in options:
            if key.lower() not in _SPELLING and key.lower() not in _SPARKS_OWN:
                near = difflib.get_close_matches(key.lower(), _SPELLING, n=1)
                hint = f"did you mean {_SPELLING[near[0]]}?" if near else f"known are {', '.join(KNOWN)}."
                raise LocalError(f"The mqtt source has no option {key!r}; {hint}")

    @overload
    def text(self, name: str, default: str) -> str: ...
    @overload
    def text(self, name: str, default: None) -> str | None: ...
    def text(self, name: str, default: str | None) -> str | None:
        return self._values.get(name.lower(), default)

    def number(self, name: str, default: int, *, least: int) -> int:
        text = self._values.get(name.lower())
        if text is None:
            return default
        if not text.strip().isdecimal() or int(text) < least:
            raise LocalError(f"{name} is {text!r}; expected a whole number from {least}.")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self._values.get(name.lower(), str(default)).strip().lower()
        if text not in {"true", "false"}:
            raise LocalError(f"{name} is {text!r}; expected true or false.")
        return text == "true"


def _starting(text: str) -> Literal["earliest", "latest"] | dict[str, Position]:
    if text in {"earliest", "latest"}:
        return "earliest" if text == "earliest" else "latest"
    try:
        value = json.loads(text)
        return {check_name("producer", name): Position.from_json(offset) for name, offset in value.items()}
    except (ValueError, AttributeError) as error:
        raise LocalError(
            f"startingOffsets is {text[:80]!r}; expected earliest, latest, or JSON such as "
            '{"producer": {"seg": 1, "pos": 0, "rows": 0}}.'
        ) from error


def _time_us(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise LocalError(f"{name} is {text!r}; expected a time such as 2026-03-01T12:00:00Z.") from error
    # Times without a zone are UTC, like all times of the pipeline.
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1_000_000)
