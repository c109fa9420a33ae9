"""The federator's settings: one class for flags, environment, file and manager, and the rules between them.

Rules:

1. A single value is refused with its source (`hanse.settings`); two that do not fit together with one sentence
   that says what to change. Both before anything is opened.
2. Safe unless told otherwise: what links say beyond this machine is encrypted and both sides are known, or the
   operator wrote `insecure`.
3. A password is shown nowhere: not in an error, not in `repr`, not in help.
4. `export_…` and `import_…` speak of topics as this broker's own clients see them (see `crossing`).
"""

import dataclasses
import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hanse import logs
from hanse.errors import HanseError, LocalError
from hanse.federator.crossing import Crossing
from hanse.federator.manager_client import parse_manager
from hanse.interest import StaticAdapter
from hanse.interest.fetch import ListAddress, parse_list_url
from hanse.interest.listing import LISTINGS, Listing, by_paths
from hanse.mqtt import urls
from hanse.mqtt.client import Version
from hanse.mqtt.client_ids import RANDOM, check_pattern
from hanse.mqtt.limits import SOCKET_PATH_BYTES_MAX
from hanse.mqtt.tls import TlsSettings
from hanse.mqtt.urls import Address
from hanse.protocol.grouping import Grouping
from hanse.protocol.retained import RetainedSettings
from hanse.protocol.settings import FEDERATOR_ID_MAX, Settings
from hanse.protocol.topics import check_filter, check_name, may_cross, split_share
from hanse.request_channel import Endpoint, parse_endpoint
from hanse.settings import duration, setting, settings_of

AdapterKind = Literal["mosquitto-log", "mosquitto-file", "beacon", "announce", "static", "emqx", "poll", "gateway"]

OFF = "off"
_ADAPTERS: tuple[AdapterKind, ...] = ("mosquitto-log", "beacon", "announce", "static", "emqx", "poll", "gateway")
_ADAPTER_WORDS = (
    "mosquitto-log, mosquitto-file:PATH, beacon, announce, static, emqx, poll:rabbitmq, poll:nats, poll:emqx, poll or "
    "gateway, each at most once"
)
_FILE_ADAPTER = "mosquitto-file:"
_POLL_ADAPTER = "poll:"
# A federator with more static neighbours than this is not one node of an overlay but a hub; the protocol's limit.
_NEIGHBOURS_MAX = 256
_FILTERS_MAX = 1_000
_MANAGERS_MAX = 8
_EVERY_INTERFACE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - not listened on: compared with
_TOKEN_LENGTH_MAX = 200
CLIENT_ID_PATTERN = "hanse-federator-{id}-{random}"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A static neighbour: where it is, and its id where the operator gave one."""

    address: Address
    id: int | None = None


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """One interest adapter, with its log file where it reads one, or the kind of list where it asks for one."""

    kind: AdapterKind
    path: Path | None = None
    listing: str | None = None


def parse_id(text: str) -> int:
    """A federator's id.

    Raises:
        LocalError: It is none.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > FEDERATOR_ID_MAX:
        raise LocalError(f"{text[:20]!r} is no id; write a number from 0 to {FEDERATOR_ID_MAX}.")
    return int(text)


def parse_neighbour(text: str) -> Neighbour:
    """A neighbour from `URL` or `ID=URL`.

    Raises:
        LocalError: It is neither.
    """
    head, equals, rest = text.partition("=")
    # Of a URL whose password holds an equals sign the part before it is no number.
    if not equals or "://" in head:
        return Neighbour(urls.parse(text))
    if not (head.isascii() and head.isdigit()) or len(head) > 10 or int(head) > FEDERATOR_ID_MAX:
        raise LocalError(
            f"the neighbour {head[:20]!r}=… has no id before the equals sign; write URL or ID=URL with an id from "
            f"0 to {FEDERATOR_ID_MAX}."
        )
    return Neighbour(urls.parse(rest), int(head))


def parse_listen(url: str) -> Address:
    """The address of a listener: as `urls.parse`, and port 0 means any free one.

    Raises:
        LocalError: It is no address, or it holds a user name.
    """
    takes_any_port = url.endswith(":0")
    address = urls.parse(url[:-1] + "1" if takes_any_port else url)
    if address.username is not None:
        raise LocalError(f"the address {address} holds a user name; a listener has none, leave it out.")
    return dataclasses.replace(address, port=0) if takes_any_port else address


def parse_host_port(text: str) -> tuple[str, int]:
    """Host and port of an HTTP listener; port 0 means any free one.

    Raises:
        LocalError: It is not `host:port`.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65_535:
        raise LocalError(f"{text[:100]!r} is no listening address; write host:port, such as 127.0.0.1:9090.")
    return host, int(port)


def parse_adapter(text: str) -> AdapterChoice:
    """An interest adapter from its word.

    Raises:
        LocalError: There is none of that name.
    """
    for kind in _ADAPTERS:
        if text == kind:
            return AdapterChoice(kind)
    listing = text.removeprefix(_POLL_ADAPTER)
    if listing != text and listing in LISTINGS:
        return AdapterChoice("poll", listing=listing)
    path = text.removeprefix(_FILE_ADAPTER)
    if path == text or not path:
        raise LocalError(f"the interest adapter {text[:60]!r} is unknown; write {_ADAPTER_WORDS}.")
    return AdapterChoice("mosquitto-file", Path(path))


def is_loopback(host: str) -> bool:
    """Whether an address cannot be reached from another machine. A name other than localhost counts as outside."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _by(parse: Callable[[str], object]) -> Callable[[str], str | None]:
    """A setting's check out of a parser: what it complains of is what the setting's error says."""

    def check(value: str) -> str | None:
        try:
            parse(value)
        except HanseError as error:
            return f"another one: {error}".removesuffix(".")
        return None

    return check


def _each(parse: Callable[[str], object], count_max: int) -> Callable[[tuple[str, ...]], str | None]:
    check_one = _by(parse)

    def check(values: tuple[str, ...]) -> str | None:
        if len(values) > count_max:
            return f"at most {count_max} of them"
        return next((refusal for value in values if (refusal := check_one(value)) is not None), None)

    return check


def _check_plain_filter(filter_: str) -> None:
    check_filter(filter_)
    if split_share(filter_)[0] is not None:
        raise LocalError(f"the filter {filter_[:60]!r} is a shared subscription; write the filter behind it.")


def _check_prefix(prefix: str) -> None:
    check_name(prefix)
    if prefix.startswith(("/", "$")) or prefix.endswith("/") or not may_cross(f"{prefix}/x"):
        raise LocalError(
            f"the prefix {prefix[:60]!r} cannot stand before a topic; write levels such as plants/7, without a "
            "slash at either end, that are not the federation's own."
        )


def _check_token(text: str) -> str | None:
    if len(text) <= _TOKEN_LENGTH_MAX and text.isascii() and text.isprintable() and " " not in text:
        return None
    return f"at most {_TOKEN_LENGTH_MAX} plain characters without spaces"


def _check_metrics(text: str) -> None:
    if text != OFF:
        parse_host_port(text)


def _check_file(text: Path) -> str | None:
    return None if Path(text).is_file() else "a file in PEM form that exists"


def _check_socket(path: Path) -> str | None:
    fits = len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX
    return None if fits else f"a path of at most {SOCKET_PATH_BYTES_MAX} bytes, the kernel takes no longer one"


def _lane_of(url: str) -> urls.Address:
    scheme, _, rest = url.partition("://")
    if scheme.lower() != "ws":
        raise LocalError("it has another scheme than ws://")
    return urls.parse(f"mqtt://{rest}")


def _check_lane(url: str) -> str | None:
    try:
        address = _lane_of(url)
    except LocalError:
        return "ws://HOST:PORT"
    return "ws://HOST:PORT without a login, which is `username`'s" if address.username is not None else None


_FILTERS = _each(_check_plain_filter, _FILTERS_MAX)


@dataclass(frozen=True, slots=True, repr=False)
class FederatorSettings:
    """All of `hanse federator`."""

    broker: str = setting(
        "mqtt://127.0.0.1:1883",
        "The host broker, mqtt://HOST:PORT or mqtts://HOST:PORT; mqtt://127.0.0.1:1883 if not given.",
        is_secret=True,
        check=_by(urls.parse),
    )
    broker_socket: Path | None = setting(  # noqa: RUF009
        None,
        "The host broker's Unix socket, where it has one: cheaper than TCP to a broker on the same machine. `broker` "
        "stays the address that others are told.",
        check=_check_socket,
    )
    broker_lane: str | None = setting(
        None,
        "The host broker's WebSocket listener, ws://HOST:PORT, where it is a Mosquitto on this machine: streams of QoS "
        "0 to it cost it a third less.",
        check=_check_lane,
    )
    username: str | None = setting(None, "User name at the host broker.")
    password: str | None = setting(
        None, "Its password; better given by the variable, a flag is seen by all of this machine.", is_secret=True
    )
    client_id: str = setting(
        CLIENT_ID_PATTERN,
        "Client ids of the sessions at brokers, for brokers whose ACLs name them: {id} is the federator's id, {random} "
        "128 random bits. Without {random} anyone who may connect can take the session over.",
        check=_by(check_pattern),
    )
    broker_version: str = setting(
        "auto",
        "Which MQTT the host broker speaks: 5, 4 (which is 3.1.1), or found out.",
        choices=("auto", "5", "4"),
    )
    broker_output: Path | None = setting(  # noqa: RUF009
        None,
        "The file that the host broker's standard output goes to, where it is a Mosquitto on this machine with "
        "`log_dest stdout`: from its subscription tree the federator learns what was subscribed to before its start.",
    )
    broker_pid_file: Path | None = setting(  # noqa: RUF009
        None, "The broker's `pid_file`; needed with `broker_output` where root started the broker."
    )
    broker_bridge_topics: int = setting(
        0,
        "The number of `topic` lines with out or both of the bridges in the host broker's configuration. Mosquitto "
        "counts them among its subscriptions and logs none of them.",
        minimum=0,
        maximum=1_000_000,
    )
    host_ca_file: Path | None = setting(  # noqa: RUF009
        None, "Whom to trust as the host broker; the system's authorities if not given.", check=_check_file
    )
    host_cert_file: Path | None = setting(  # noqa: RUF009
        None, "This federator's certificate for the host broker.", check=_check_file
    )
    host_key_file: Path | None = setting(None, "Its key.", check=_check_file)  # noqa: RUF009

    id: int | None = setting(
        None, "This federator's id, one of its own in the federation.", minimum=0, maximum=FEDERATOR_ID_MAX
    )
    neighbour: tuple[str, ...] = setting(
        (),
        "A neighbour, URL or ID=URL; may be repeated. Its link listener, or its broker with `link = broker`.",
        is_secret=True,
        check=_each(parse_neighbour, _NEIGHBOURS_MAX),
    )
    manager: tuple[str, ...] = setting(
        (),
        "The topology manager's URL; may be repeated, where several stand by for each other.",
        aliases=("TOPOLOGY_MANAGER_URL",),
        is_secret=True,
        check=_each(parse_manager, _MANAGERS_MAX),
    )
    manager_ca_file: Path | None = setting(  # noqa: RUF009
        None, "Whom to trust as the manager; the system's authorities if not given.", check=_check_file
    )
    join_token: str | None = setting(
        None,
        "The token that admits to the federation; better given by the variable.",
        is_secret=True,
        check=_check_token,
    )
    health_probe: str = setting(
        "federator",
        "How the manager sees that this federator is well: it answers, its broker answers, or it tells itself.",
        choices=("federator", "broker", "self"),
    )
    advertised_listener: str | None = setting(
        None,
        "The host broker's URL as other machines reach it.",
        aliases=("ADVERTISED_LISTENER",),
        check=_by(parse_listen),
    )

    link: str = setting(
        "direct",
        "Links between federators, or the papers' way through the neighbours' brokers.",
        choices=("direct", "broker"),
    )
    link_listen: str | None = setting(
        None, "Where to listen for neighbours, mqtt://HOST:PORT or mqtts://HOST:PORT.", check=_by(parse_listen)
    )
    link_advertised: str | None = setting(
        None, "The link listener's URL as other machines reach it.", check=_by(parse_listen)
    )
    leaf: tuple[str, ...] = setting(
        (),
        "The id of a collector (`hanse collect --federation`) that may link here although no manager names it; may be "
        "repeated.",
        check=_each(parse_id, _NEIGHBOURS_MAX),
    )
    link_ca_file: Path | None = setting(  # noqa: RUF009
        None, "Whom to trust as a neighbour.", check=_check_file
    )
    link_cert_file: Path | None = setting(  # noqa: RUF009
        None, "This federator's certificate on links.", check=_check_file
    )
    link_key_file: Path | None = setting(None, "Its key.", check=_check_file)  # noqa: RUF009
    insecure: bool = setting(
        False, "Let links, and connections of gateways, go beyond this machine without TLS and certificates."
    )

    gateway_listen: str | None = setting(
        None,
        "Where to listen for gateways, tls://HOST:PORT, or tcp://HOST:PORT on one machine.",
        check=_by(parse_endpoint),
    )
    gateway_token: str | None = setting(
        None,
        "What a gateway must show; better given by the variable. Without it, a certificate is enough.",
        is_secret=True,
        check=_check_token,
    )
    gateway_ca_file: Path | None = setting(  # noqa: RUF009
        None, "Whom to trust as a gateway; each must then show a certificate.", check=_check_file
    )
    gateway_cert_file: Path | None = setting(  # noqa: RUF009
        None, "This federator's certificate for gateways.", check=_check_file
    )
    gateway_key_file: Path | None = setting(None, "Its key.", check=_check_file)  # noqa: RUF009

    interest: tuple[str, ...] = setting(
        ("mosquitto-log",),
        f"How subscriptions become known: {_ADAPTER_WORDS}.",
        check=_each(parse_adapter, len(_ADAPTERS) + 1),
    )
    static_filter: tuple[str, ...] = setting(
        (), "A filter that is always wanted here, with its QoS as in 1:plant/+/temp; may be repeated."
    )
    retained_watch: tuple[str, ...] = setting(
        (),
        "A filter whose retained messages are always heard here, so that the order of all writes is known; "
        "nothing more crosses. May be repeated.",
        check=_each(_check_plain_filter, _FILTERS_MAX),
    )
    retained_mirror: tuple[str, ...] = setting(
        (),
        "A filter whose retained messages are kept here before anybody subscribes; its messages cross as for a "
        "subscriber. May be repeated.",
        check=_each(_check_plain_filter, _FILTERS_MAX),
    )
    retained_linger_s: float = duration(
        600.0,
        "How long interest with retained messages outlives the last subscriber; then the copies are removed.",
        maximum_s=86_400,
    )
    retained_interval_s: float = duration(
        600.0, "Between two comparisons of retained messages with the others.", minimum_s=1, maximum_s=86_400
    )
    retained_deletions_s: float = duration(
        30 * 86_400.0,
        "How long a deletion is remembered; who was away for longer may bring the value back.",
        minimum_s=1,
    )
    retained_topics_max: int = setting(
        1_000_000, "Retained topics that are protected; of more the last write may not win.", minimum=1
    )
    poll_url: str | None = setting(
        None,
        "Where the broker lists its subscriptions, http://HOST:PORT or https://…; the path is known for each vendor.",
        check=_by(parse_list_url),
    )
    poll_username: str | None = setting(None, "User name for the list.")
    poll_password: str | None = setting(None, "Its password; better given by the variable.", is_secret=True)
    poll_ca_file: Path | None = setting(  # noqa: RUF009
        None, "Whom to trust as the list's server; the system's authorities if not given.", check=_check_file
    )
    poll_interval_s: float = duration(2.0, "Between two lists.", minimum_s=0.1, maximum_s=3600)
    poll_rows: str = setting("", "With plain poll: where the rows are in the answer, keys with dots between them.")
    poll_client: str = setting("clientid", "With plain poll: where a row has the client id.")
    poll_filter: str = setting("topic", "With plain poll: where a row has the filter.")
    poll_qos: str = setting("qos", "With plain poll: where a row has the QoS; empty if nowhere.")
    beacon_interval_s: float = duration(
        2.0, "Between two beacons of a subscriber.", aliases=("BEACON_INTERVAL",), minimum_s=0.01, maximum_s=3600
    )

    announcement_interval_s: float = duration(
        1.0, "Between two core announcements.", aliases=("CORE_ANN_INTERVAL",), minimum_s=0.01, maximum_s=3600
    )
    expiry_factor: int = setting(3, "Rounds that may be missed before something is lost.", minimum=2, maximum=100)
    redundancy: int = setting(
        2, "Parents of a federator in a mesh, at most.", aliases=("FED_REDUNDANCY",), minimum=1, maximum=64
    )
    grouping: str = setting("filter", "What one mesh serves: filter, prefix:N or single.", check=_by(Grouping.parse))
    election: str = setting("smallest", "Which id becomes core.", choices=("smallest", "largest"))
    outsider: str = setting(
        "all_parents",
        "Where a federator outside a mesh sends (2022, 2020).",
        choices=("all_parents", "one_parent"),
    )
    announcements: str = setting(
        "per_core", "One announcement a core, or one a group as in the papers.", choices=("per_core", "per_group")
    )

    export_allow: tuple[str, ...] = setting(
        (), "Topics of this broker that may leave it; all if not given. May be repeated.", check=_FILTERS
    )
    export_deny: tuple[str, ...] = setting((), "Topics that may not, whatever is allowed.", check=_FILTERS)
    import_allow: tuple[str, ...] = setting(
        (), "Topics that may enter this broker; all if not given. May be repeated.", check=_FILTERS
    )
    import_deny: tuple[str, ...] = setting((), "Topics that may not, whatever is allowed.", check=_FILTERS)
    prefix: str | None = setting(
        None, "The levels under which this broker's topics appear elsewhere.", check=_by(_check_prefix)
    )
    federated_prefix: bool = setting(False, "Take federated/TOPIC for a publication on TOPIC (2022).")

    state_dir: Path = setting(  # noqa: RUF009
        Path("hanse-federator"), "The directory that keeps what must survive a restart."
    )
    absence_s: float = duration(
        3600.0,
        "For how long a neighbour that is lost without a word finds, when it is back, what it would have got.",
        minimum_s=0,
        maximum_s=30 * 86_400,
    )
    outbox_bytes_max: int = setting(
        1 << 30, "What may wait on disk for a neighbour or the host broker.", minimum=1 << 20, maximum=1 << 50
    )
    outbox_overflow: str = setting(
        "stop",
        "When that is full: stop acknowledging, drop the oldest, or drop the newest; drops are counted.",
        choices=("stop", "drop-oldest", "drop-newest"),
    )
    metrics: str = setting(
        "127.0.0.1:9883",
        "Where to serve /metrics, /healthz, /groups, /accounts and POST /trace, without TLS; port 0 takes a free one, "
        "`off` serves none.",
        check=_by(_check_metrics),
    )
    log_format: str = setting("plain", logs.FORMAT_HELP, choices=logs.FORMATS)
    log_level: str = setting("info", logs.LEVEL_HELP, choices=logs.LEVELS)

    def __post_init__(self) -> None:
        self._check_identity()
        self._check_manager()
        self._check_broker()
        self._check_links()
        self._check_gateways()
        self._check_interest()
        self.crossing()
        self.protocol_settings()

    def __repr__(self) -> str:
        shown = [
            f"{one.field}={getattr(self, one.field)!r}"
            for one in settings_of(type(self))
            if not one.spec.is_secret and getattr(self, one.field) != one.default
        ]
        return f"FederatorSettings({', '.join(shown)})"

    def broker_address(self) -> Address:
        """The host broker, with the user name and password from wherever they were given."""
        address = urls.parse(self.broker)
        if self.username is None:
            return address
        return dataclasses.replace(address, username=self.username, password=self.password)

    def mqtt_version(self) -> Version:
        """The version as the session takes it."""
        return "auto" if self.broker_version == "auto" else 5 if self.broker_version == "5" else 4

    def neighbours(self) -> tuple[Neighbour, ...]:
        """The static neighbours, in the operator's order."""
        return tuple(map(parse_neighbour, self.neighbour))

    def leaves(self) -> frozenset[int]:
        """The collectors that may link here."""
        return frozenset(map(parse_id, self.leaf))

    def listen_address(self) -> Address | None:
        """Where to listen for links; None for nowhere."""
        return None if self.link_listen is None else parse_listen(self.link_listen)

    def certificates(self) -> dict[str, Path]:
        """Return the files of this federator's own certificates, by their use."""
        files = {"host": self.host_cert_file, "link": self.link_cert_file}
        return {use: file for use, file in files.items() if file is not None}

    def metrics_address(self) -> tuple[str, int] | None:
        """Where to serve HTTP; None for nowhere."""
        return None if self.metrics == OFF else parse_host_port(self.metrics)

    def adapters(self) -> tuple[AdapterChoice, ...]:
        """The interest adapters; `static` is among them whenever there are static filters or mirrors."""
        chosen = tuple(map(parse_adapter, self.interest))
        if self.static_filters() and all(one.kind != "static" for one in chosen):
            chosen += (AdapterChoice("static"),)
        return chosen

    def static_filters(self) -> tuple[str, ...]:
        """Filters that are always of interest here."""
        return (*self.static_filter, *self.retained_mirror)

    def poll_listing(self) -> Listing:
        """How the list of subscriptions is read."""
        named = [one.listing for one in self.adapters() if one.kind == "poll" and one.listing is not None]
        return (
            LISTINGS[named[0]] if named else by_paths(self.poll_rows, self.poll_client, self.poll_filter, self.poll_qos)
        )

    def poll_address(self) -> ListAddress:
        """Where the list of subscriptions is, with the login for it."""
        assert self.poll_url is not None, "the settings ask for it"
        return dataclasses.replace(
            parse_list_url(self.poll_url),
            username=self.poll_username,
            password=self.poll_password,
            ca_file=self.poll_ca_file,
        )

    def lane(self) -> urls.Address | None:
        """Where streams of QoS 0 may go."""
        return None if self.broker_lane is None else _lane_of(self.broker_lane)

    def host_tls(self) -> TlsSettings | None:
        """TLS at the host broker; None where its URL asks for none."""
        if not urls.parse(self.broker).is_tls:
            return None
        return TlsSettings(self.host_ca_file, self.host_cert_file, self.host_key_file)

    def link_tls(self) -> TlsSettings | None:
        """TLS on links, both ways; None where no link of ours uses it."""
        listen = self.listen_address()
        asked = (listen is not None and listen.is_tls) or any(one.address.is_tls for one in self.neighbours())
        if not asked and self.link_cert_file is None and self.link_ca_file is None:
            return None
        return TlsSettings(self.link_ca_file, self.link_cert_file, self.link_key_file)

    def gateway_endpoint(self) -> Endpoint | None:
        """Return where to listen for gateways; None for nowhere."""
        return None if self.gateway_listen is None else parse_endpoint(self.gateway_listen)

    def gateway_tls(self) -> TlsSettings:
        """Return the files of the gateway listener."""
        return TlsSettings(self.gateway_ca_file, self.gateway_cert_file, self.gateway_key_file)

    def crossing(self) -> Crossing:
        """What may leave and enter, and under which names."""
        return Crossing(
            export_allow=self.export_allow,
            export_deny=self.export_deny,
            import_allow=self.import_allow,
            import_deny=self.import_deny,
            prefix=self.prefix,
            federated_prefix=self.federated_prefix,
        )

    def protocol_settings(self) -> Settings:
        """What the state machine wants to know."""
        return Settings(
            announcement_interval_s=self.announcement_interval_s,
            expiry_factor=self.expiry_factor,
            redundancy=self.redundancy,
            grouping=Grouping.parse(self.grouping),
            election=self.election,
            outsider=self.outsider,
            announcements=self.announcements,
            absence_s=self.absence_s,
            # TCP loses nothing while it stands; a neighbour's broker may.
            retransmission_factor=1 if self.link == "broker" else 10,
        )

    def retained_settings(self) -> RetainedSettings:
        """What the keeper of retained state wants to know."""
        return RetainedSettings(
            topics_max=self.retained_topics_max,
            fetch_interval_s=self.retained_interval_s,
            linger_s=self.retained_linger_s,
            tombstone_s=self.retained_deletions_s,
            # RabbitMQ replays retained messages only for exact topics.
            is_exact=any(one.listing == "rabbitmq" for one in self.adapters()),
        )

    def warnings(self) -> list[str]:
        """What is allowed and yet worth a line in the log at the start."""
        said = []
        if not self.neighbour and self.link_listen is None and not self.manager:
            said.append(
                "No neighbour, no link_listen and no manager are set: this federator is alone until one is added."
            )
        if self.insecure:
            said.append("insecure is set: links may go beyond this machine in the clear, and anyone may link.")
        if RANDOM not in self.client_id:
            said.append(
                f"client_id is {self.client_id}, without {RANDOM}: a client that the broker lets in under this id "
                "takes the session over with all that waits there. Let the broker bind the id to the federator's login."
            )
        broker = self.broker_address()
        if broker.password is not None and not broker.is_tls and not is_loopback(broker.host):
            said.append(f"The password for the host broker {broker} goes over the network in the clear; use mqtts://.")
        return said

    def _check_identity(self) -> None:
        if self.id is None and not self.manager:
            raise LocalError("This federator has no id; give --id N, or --manager URL to be given one.")
        seen: set[str] = set()
        ids: set[int] = set()
        for one in self.neighbours():
            if str(one.address) in seen:
                raise LocalError(f"The neighbour {one.address} is named twice; name it once.")
            seen.add(str(one.address))
            if one.id is None:
                continue
            if one.id == self.id:
                raise LocalError(f"The neighbour {one.address} has this federator's own id {one.id}; ids are unique.")
            if one.id in ids:
                raise LocalError(f"The id {one.id} is given to two neighbours; ids are unique.")
            ids.add(one.id)

    def _check_manager(self) -> None:
        if not self.manager:
            return
        if self.neighbour:
            raise LocalError("Both neighbour and manager are set; the manager names the neighbours, leave one out.")
        for address in map(parse_manager, self.manager):
            if not address.is_tls and not is_loopback(address.host) and not self.insecure:
                raise LocalError(
                    f"The manager {address} is on another machine and would be asked in the clear, the token too; "
                    "write https://, or allow it with --insecure."
                )
        listen = self.listen_address()
        if listen is not None and self.link_advertised is None and listen.host in _EVERY_INTERFACE:
            raise LocalError(
                f"link_listen is {listen}, which nobody can dial; give link_advertised, the address that others reach."
            )

    def _check_broker(self) -> None:
        address = urls.parse(self.broker)
        if self.username is not None and address.username is not None:
            raise LocalError(f"The user name stands both in the URL of {address} and in username; give it once.")
        if self.password is not None and self.username is None:
            raise LocalError("password is set and username is not; give both, or both in the broker's URL.")
        _check_pair("host", self.host_cert_file, self.host_key_file)
        files = (self.host_ca_file, self.host_cert_file, self.host_key_file)
        if not address.is_tls and any(file is not None for file in files):
            raise LocalError(f"The host broker is {address} and TLS files are given for it; write mqtts://.")

    def _check_links(self) -> None:
        _check_pair("link", self.link_cert_file, self.link_key_file)
        listen = self.listen_address()
        if self.link == "broker":
            self._check_links_by_broker()
            return
        if listen is not None and listen.is_tls and self.link_cert_file is None:
            raise LocalError(f"link_listen is {listen} and has no certificate; give link_cert_file, link_key_file.")
        if self.insecure:
            return
        if listen is not None and not is_loopback(listen.host):
            if not listen.is_tls:
                raise LocalError(
                    f"link_listen is {listen}, which other machines reach, without TLS; write mqtts:// with "
                    "link_ca_file, link_cert_file and link_key_file, or allow it with --insecure."
                )
            if self.link_ca_file is None:
                raise LocalError(
                    f"link_listen is {listen}, which other machines reach, and nothing says whose certificates to "
                    "trust; give link_ca_file, or allow anyone with --insecure."
                )
        for one in self.neighbours():
            if not one.address.is_tls and not is_loopback(one.address.host):
                raise LocalError(
                    f"The neighbour {one.address} is on another machine and its link is in the clear; write "
                    "mqtts://, or allow it with --insecure."
                )

    def _check_gateways(self) -> None:
        _check_pair("gateway", self.gateway_cert_file, self.gateway_key_file)
        listen = self.gateway_endpoint()
        if listen is None:
            return
        if listen.is_tls and self.gateway_cert_file is None:
            raise LocalError(
                f"gateway_listen is {listen} and has no certificate; give gateway_cert_file and gateway_key_file."
            )
        if self.insecure or is_loopback(listen.host):
            return
        if not listen.is_tls:
            raise LocalError(
                f"gateway_listen is {listen}, which other machines reach, without TLS; write tls:// with "
                "gateway_cert_file and gateway_key_file, or allow it with --insecure."
            )
        if self.gateway_ca_file is None and self.gateway_token is None:
            raise LocalError(
                f"gateway_listen is {listen}, which other machines reach, and nothing says which gateways may ask; "
                "give gateway_ca_file or gateway_token, or allow anyone with --insecure."
            )

    def _check_links_by_broker(self) -> None:
        if self.link_listen is not None:
            raise LocalError(
                f"link_listen is {self.listen_address()} and link is broker, which needs no listener; leave one out."
            )
        for one in self.neighbours():
            if one.id is None:
                raise LocalError(
                    f"The neighbour {one.address} has no id, which links by broker need to address it; write "
                    f"ID={one.address}."
                )

    def _check_interest(self) -> None:
        kinds = [one.kind for one in map(parse_adapter, self.interest)]
        if len(set(kinds)) != len(kinds):
            raise LocalError(f"interest is {', '.join(self.interest)}; name each adapter once.")
        if "mosquitto-log" in kinds and "mosquitto-file" in kinds:
            raise LocalError("interest reads Mosquitto's log both by topic and from a file; choose one of them.")
        if "static" in kinds and not self.static_filters():
            raise LocalError("interest is static and no filter is given; add --static-filter FILTER.")
        if "gateway" in kinds and self.gateway_listen is None:
            raise LocalError("interest is gateway and no gateway can connect; give gateway_listen.")
        self._check_poll("poll" in kinds)
        StaticAdapter(self.static_filter)

    def _check_poll(self, is_polling: bool) -> None:
        if is_polling != (self.poll_url is not None):
            raise LocalError(
                "interest is poll and nothing says where the list is; add --poll-url URL."
                if is_polling
                else "poll_url is set and interest is not poll; add --interest poll:VENDOR, or leave the address out."
            )
        if not is_polling:
            return
        self.poll_listing()
        if self.poll_password is not None and self.poll_username is None:
            raise LocalError("poll_password is set and poll_username is not; give both.")
        address = self.poll_address()
        if self.poll_ca_file is not None and not address.is_tls:
            raise LocalError(f"The list is at {address} and poll_ca_file is given for it; write https://.")
        is_exposed = not address.is_tls and not is_loopback(address.host)
        if self.poll_username is not None and is_exposed and not self.insecure:
            raise LocalError(
                f"The login for the list would go to {address} in the clear; write https://, or allow it by --insecure."
            )


def _check_pair(what: str, cert_file: Any, key_file: Any) -> None:  # noqa: ANN401 - a path or None
    if (cert_file is None) != (key_file is None):
        raise LocalError(f"Of {what}_cert_file and {what}_key_file only one is given; give both or none.")
