"""Settings of the federator: one class for flags, environment, file and manager, and the rules between them.

Rules:

1. A single invalid value is refused with its source (`hanse.settings`). Two values that do not fit together are refused
   with one sentence that says what to change. Both happen before anything is opened.
2. Secure by default: links beyond this machine are encrypted and both sides are authenticated, unless the operator set
   `insecure`.
3. A password is never shown: not in an error, not in `repr`, not in help.
4. `export_…` and `import_…` apply to topics as this broker's own clients see them (see `crossing`).
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
    """Static neighbour: its address, and its id if the operator gave one."""

    address: Address
    id: int | None = None


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """One interest adapter, with its log file if it reads one, or the kind of list if it requests one."""

    kind: AdapterKind
    path: Path | None = None
    listing: str | None = None


def parse_id(text: str) -> int:
    """Return a federator's id.

    Raises:
        LocalError: The text is not an id.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > FEDERATOR_ID_MAX:
        raise LocalError(f"{text[:20]!r} is not an id; write a number from 0 to {FEDERATOR_ID_MAX}.")
    return int(text)


def parse_neighbour(text: str) -> Neighbour:
    """Return a neighbour from `URL` or `ID=URL`.

    Raises:
        LocalError: The text is neither.
    """
    head, equals, rest = text.partition("=")
    # In a URL whose password contains an equals sign, the part before it is not a number.
    if not equals or "://" in head:
        return Neighbour(urls.parse(text))
    if not (head.isascii() and head.isdigit()) or len(head) > 10 or int(head) > FEDERATOR_ID_MAX:
        raise LocalError(
            f"the neighbour {head[:20]!r}=… has no id before the equals sign; write URL or ID=URL with an id from "
            f"0 to {FEDERATOR_ID_MAX}."
        )
    return Neighbour(urls.parse(rest), int(head))


def parse_listen(url: str) -> Address:
    """Return the address of a listener. Port 0 means any free one, unlike in `urls.parse`.

    Raises:
        LocalError: It is not an address, or it contains a user name.
    """
    takes_any_port = url.endswith(":0")
    address = urls.parse(url[:-1] + "1" if takes_any_port else url)
    if address.username is not None:
        raise LocalError(f"the address {address} contains a user name; a listener has none, omit it.")
    return dataclasses.replace(address, port=0) if takes_any_port else address


def parse_host_port(text: str) -> tuple[str, int]:
    """Return host and port of an HTTP listener; port 0 means any free one.

    Raises:
        LocalError: It is not `host:port`.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65_535:
        raise LocalError(f"{text[:100]!r} is not a listening address; write host:port, such as 127.0.0.1:9090.")
    return host, int(port)


def parse_adapter(text: str) -> AdapterChoice:
    """Return an interest adapter by its name.

    Raises:
        LocalError: There is no such adapter.
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
    """Return whether no other machine can reach an address. A name other than localhost counts as outside."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _by(parse: Callable[[str], object]) -> Callable[[str], str | None]:
    """Turn a parser into the check of a setting: the parser's sentence becomes the setting's error."""

    def check(value: str) -> str | None:
        try:
            parse(value)
        except HanseError as error:
            raise LocalError(str(error)) from error
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
            f"the prefix {prefix[:60]!r} cannot precede a topic; write levels such as plants/7, without a "
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
    return None if fits else f"a path of at most {SOCKET_PATH_BYTES_MAX} bytes, the limit of the kernel"


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
    return "ws://HOST:PORT without a login, which belongs into `username`" if address.username is not None else None


_FILTERS = _each(_check_plain_filter, _FILTERS_MAX)


@dataclass(frozen=True, slots=True, repr=False)
class FederatorSettings:
    """All settings of `hanse federator`."""

    broker: str = setting(
        "mqtt://127.0.0.1:1883",
        "The host broker, mqtt://HOST:PORT or mqtts://HOST:PORT; mqtt://127.0.0.1:1883 if not given.",
        is_secret=True,
        check=_by(urls.parse),
    )
    broker_socket: Path | None = setting(  # noqa: RUF009
        None,
        "Unix socket of the host broker, if it has one; cheaper than TCP to a broker on the same machine. `broker` "
        "remains the address for others.",
        check=_check_socket,
    )
    broker_lane: str | None = setting(
        None,
        "WebSocket listener of the host broker, ws://HOST:PORT, if it is a Mosquitto on this machine. Streams of QoS "
        "0 to it then cost it a third less.",
        check=_check_lane,
    )
    username: str | None = setting(None, "User name at the host broker.")
    password: str | None = setting(
        None,
        "Password at the host broker; better given by the variable, because every user of this machine sees a flag.",
        is_secret=True,
    )
    client_id: str = setting(
        CLIENT_ID_PATTERN,
        "Pattern of the client ids at brokers, for ACLs that name them: {id} is the federator's id, {random} "
        "128 random bits. Without {random}, anyone who may connect can take over the session.",
        check=_by(check_pattern),
    )
    broker_version: str = setting(
        "auto",
        "MQTT version of the host broker: 5, 4 (which is 3.1.1), or detected.",
        choices=("auto", "5", "4"),
    )
    broker_output: Path | None = setting(  # noqa: RUF009
        None,
        "File with the host broker's standard output, if it is a Mosquitto on this machine with "
        "`log_dest stdout`. Its subscription tree tells the federator which subscriptions existed before its start.",
    )
    broker_pid_file: Path | None = setting(  # noqa: RUF009
        None, "The broker's `pid_file`; needed with `broker_output` if root started the broker."
    )
    broker_log: Path | None = setting(  # noqa: RUF009
        None,
        "Log file of the host broker, if it is a Mosquitto on this machine. The federator reads the subscriptions "
        "since the broker's start from it if it cannot read the subscription tree.",
    )
    broker_database: Path | None = setting(  # noqa: RUF009
        None,
        "The host broker's mosquitto.db. The federator reads the subscriptions of persistent sessions from it if it "
        "cannot read the subscription tree.",
    )
    unknown_interest: str = setting(
        "warn",
        "Reaction if the host broker counts subscriptions that are not known and cannot be looked up: a warning "
        "only, or also delivery of everything there for a while, to learn the wanted topics from the broker's answers.",
        choices=("warn", "learn"),
    )
    learn_for_s: float = duration(
        600.0, "With `unknown_interest = learn`: time for which everything is delivered.", minimum_s=1, maximum_s=86_400
    )
    broker_bridge_topics: int = setting(
        0,
        "Number of `topic` lines with `out` or `both` in the bridges of the host broker's configuration. Mosquitto "
        "counts them among its subscriptions and logs none of them.",
        minimum=0,
        maximum=1_000_000,
    )
    host_ca_file: Path | None = setting(  # noqa: RUF009
        None, "CA certificates for the host broker; the system's authorities if not given.", check=_check_file
    )
    host_cert_file: Path | None = setting(  # noqa: RUF009
        None, "Certificate of this federator for the host broker.", check=_check_file
    )
    host_key_file: Path | None = setting(None, "Key of `host_cert_file`.", check=_check_file)  # noqa: RUF009

    id: int | None = setting(
        None, "Id of this federator, unique in the federation.", minimum=0, maximum=FEDERATOR_ID_MAX
    )
    neighbour: tuple[str, ...] = setting(
        (),
        "Neighbour as URL or ID=URL: its link listener, or its broker with `link = broker`. May be repeated.",
        is_secret=True,
        check=_each(parse_neighbour, _NEIGHBOURS_MAX),
    )
    manager: tuple[str, ...] = setting(
        (),
        "URL of the topology manager; may be repeated for its standby managers.",
        aliases=("TOPOLOGY_MANAGER_URL",),
        is_secret=True,
        check=_each(parse_manager, _MANAGERS_MAX),
    )
    manager_ca_file: Path | None = setting(  # noqa: RUF009
        None, "CA certificates for the manager; the system's authorities if not given.", check=_check_file
    )
    join_token: str | None = setting(
        None,
        "Token that admits to the federation; better given by the variable.",
        is_secret=True,
        check=_check_token,
    )
    health_probe: str = setting(
        "federator",
        "The manager's check of this federator's health: it answers, its broker answers, or it reports itself.",
        choices=("federator", "broker", "self"),
    )
    advertised_listener: str | None = setting(
        None,
        "URL of the host broker for other machines.",
        aliases=("ADVERTISED_LISTENER",),
        check=_by(parse_listen),
    )

    link: str = setting(
        "direct",
        "Links directly between federators, or through the neighbours' brokers as in the papers.",
        choices=("direct", "broker"),
    )
    link_listen: str | None = setting(
        None, "Address of the listener for neighbours, mqtt://HOST:PORT or mqtts://HOST:PORT.", check=_by(parse_listen)
    )
    link_advertised: str | None = setting(None, "URL of the link listener for other machines.", check=_by(parse_listen))
    leaf: tuple[str, ...] = setting(
        (),
        "Id of a collector (`hanse collect --federation`) that may link here although no manager names it; may be "
        "repeated.",
        check=_each(parse_id, _NEIGHBOURS_MAX),
    )
    link_ca_file: Path | None = setting(  # noqa: RUF009
        None, "CA certificates for neighbours.", check=_check_file
    )
    link_cert_file: Path | None = setting(  # noqa: RUF009
        None, "Certificate of this federator on links.", check=_check_file
    )
    link_key_file: Path | None = setting(None, "Key of `link_cert_file`.", check=_check_file)  # noqa: RUF009
    insecure: bool = setting(
        False, "Allow links, and connections of gateways, beyond this machine without TLS and certificates."
    )

    gateway_listen: str | None = setting(
        None,
        "Address of the listener for gateways, tls://HOST:PORT, or tcp://HOST:PORT on one machine.",
        check=_by(parse_endpoint),
    )
    gateway_advertised: str | None = setting(
        None, "That listener's address for other machines, which the manager tells gateways.", check=_by(parse_endpoint)
    )
    gateway_token: str | None = setting(
        None,
        "Token that a gateway must show; better given by the variable. Without it, a certificate is enough.",
        is_secret=True,
        check=_check_token,
    )
    gateway_ca_file: Path | None = setting(  # noqa: RUF009
        None, "CA certificates for gateways; each must then show a certificate.", check=_check_file
    )
    gateway_cert_file: Path | None = setting(  # noqa: RUF009
        None, "Certificate of this federator for gateways.", check=_check_file
    )
    gateway_key_file: Path | None = setting(None, "Key of `gateway_cert_file`.", check=_check_file)  # noqa: RUF009

    interest: tuple[str, ...] = setting(
        ("mosquitto-log",),
        f"Sources of local interest: {_ADAPTER_WORDS}.",
        check=_each(parse_adapter, len(_ADAPTERS) + 1),
    )
    static_filter: tuple[str, ...] = setting(
        (), "Filter that is always wanted here, with its QoS as in 1:plant/+/temp; may be repeated."
    )
    retained_watch: tuple[str, ...] = setting(
        (),
        "Filter whose retained messages this federator always reads, so that the order of all writes is known; "
        "nothing more crosses. May be repeated.",
        check=_each(_check_plain_filter, _FILTERS_MAX),
    )
    retained_mirror: tuple[str, ...] = setting(
        (),
        "Filter whose retained messages are kept here before anybody subscribes; its messages cross as for a "
        "subscriber. May be repeated.",
        check=_each(_check_plain_filter, _FILTERS_MAX),
    )
    retained_linger_s: float = duration(
        600.0,
        "Time by which interest with retained messages outlives the last subscriber; then the copies are removed.",
        maximum_s=86_400,
    )
    retained_interval_s: float = duration(
        600.0, "Interval between comparisons of retained messages with the others.", minimum_s=1, maximum_s=86_400
    )
    retained_deletions_s: float = duration(
        30 * 86_400.0,
        "Time for which a deletion is remembered; a broker that was away for longer may bring the value back.",
        minimum_s=1,
    )
    retained_topics_max: int = setting(
        1_000_000, "Number of protected retained topics; beyond it, the last write may not win.", minimum=1
    )
    poll_url: str | None = setting(
        None,
        "Address of the broker's list of subscriptions, http://HOST:PORT or https://…; the path is known per vendor.",
        check=_by(parse_list_url),
    )
    poll_username: str | None = setting(None, "User name for the list.")
    poll_password: str | None = setting(None, "Password for the list; better given by the variable.", is_secret=True)
    poll_ca_file: Path | None = setting(  # noqa: RUF009
        None, "CA certificates for the list's server; the system's authorities if not given.", check=_check_file
    )
    poll_interval_s: float = duration(2.0, "Interval between requests of the list.", minimum_s=0.1, maximum_s=3600)
    poll_rows: str = setting("", "With plain poll: path of the rows in the answer, keys with dots between them.")
    poll_client: str = setting("clientid", "With plain poll: path of the client id in a row.")
    poll_filter: str = setting("topic", "With plain poll: path of the filter in a row.")
    poll_qos: str = setting("qos", "With plain poll: path of the QoS in a row; empty if there is none.")
    beacon_interval_s: float = duration(
        2.0,
        "Interval between the beacons of a subscriber.",
        aliases=("BEACON_INTERVAL",),
        minimum_s=0.01,
        maximum_s=3600,
    )

    announcement_interval_s: float = duration(
        1.0, "Interval between core announcements.", aliases=("CORE_ANN_INTERVAL",), minimum_s=0.01, maximum_s=3600
    )
    expiry_factor: int = setting(
        3, "Number of rounds that may be missed before something counts as lost.", minimum=2, maximum=100
    )
    redundancy: int = setting(
        2, "Largest number of parents of a federator in a mesh.", aliases=("FED_REDUNDANCY",), minimum=1, maximum=64
    )
    grouping: str = setting("filter", "Scope of one mesh: filter, prefix:N or single.", check=_by(Grouping.parse))
    election: str = setting("smallest", "Id that wins the election of a core.", choices=("smallest", "largest"))
    outsider: str = setting(
        "all_parents",
        "Destinations of a federator outside a mesh (papers of 2022 and 2020).",
        choices=("all_parents", "one_parent"),
    )
    announcements: str = setting(
        "per_core", "One announcement per core, or one per group as in the papers.", choices=("per_core", "per_group")
    )

    export_allow: tuple[str, ...] = setting(
        (), "Topics of this broker that may leave it; all if not given. May be repeated.", check=_FILTERS
    )
    export_deny: tuple[str, ...] = setting(
        (), "Topics that must not leave it, even if allowed. May be repeated.", check=_FILTERS
    )
    import_allow: tuple[str, ...] = setting(
        (), "Topics that may enter this broker; all if not given. May be repeated.", check=_FILTERS
    )
    import_deny: tuple[str, ...] = setting(
        (), "Topics that must not enter it, even if allowed. May be repeated.", check=_FILTERS
    )
    prefix: str | None = setting(
        None, "Levels under which this broker's topics appear elsewhere.", check=_by(_check_prefix)
    )
    federated_prefix: bool = setting(False, "Treat federated/TOPIC as a publication on TOPIC (paper of 2022).")

    state_dir: Path = setting(  # noqa: RUF009
        Path("hanse-federator"), "Directory of the state that must survive a restart."
    )
    absence_s: float = duration(
        3600.0,
        "Time for which publications are kept for a neighbour that is lost without leaving.",
        minimum_s=0,
        maximum_s=30 * 86_400,
    )
    outbox_bytes_max: int = setting(
        1 << 30, "Bytes that may wait on disk for neighbours and the host broker.", minimum=1 << 20, maximum=1 << 50
    )
    outbox_overflow: str = setting(
        "stop",
        "Action when the outbox is full: stop acknowledging, drop the oldest, or drop the newest; drops are counted.",
        choices=("stop", "drop-oldest", "drop-newest"),
    )
    metrics: str = setting(
        "127.0.0.1:9883",
        "Address of /metrics, /healthz, /groups, /accounts and POST /trace, without TLS; port 0 takes a free port, "
        "`off` disables them.",
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
        """Return the host broker, with user name and password from any source."""
        address = urls.parse(self.broker)
        if self.username is None:
            return address
        return dataclasses.replace(address, username=self.username, password=self.password)

    def mqtt_version(self) -> Version:
        """Return the version in the form for the session."""
        return "auto" if self.broker_version == "auto" else 5 if self.broker_version == "5" else 4

    def neighbours(self) -> tuple[Neighbour, ...]:
        """Return the static neighbours, in the operator's order."""
        return tuple(map(parse_neighbour, self.neighbour))

    def leaves(self) -> frozenset[int]:
        """Return the collectors that may link here."""
        return frozenset(map(parse_id, self.leaf))

    def listen_address(self) -> Address | None:
        """Return the address of the link listener; None for no listener."""
        return None if self.link_listen is None else parse_listen(self.link_listen)

    def certificates(self) -> dict[str, Path]:
        """Return the files of this federator's own certificates, by their use."""
        files = {"host": self.host_cert_file, "link": self.link_cert_file}
        return {use: file for use, file in files.items() if file is not None}

    def metrics_address(self) -> tuple[str, int] | None:
        """Return the address of the HTTP server; None for no server."""
        return None if self.metrics == OFF else parse_host_port(self.metrics)

    def adapters(self) -> tuple[AdapterChoice, ...]:
        """Return the interest adapters, with `static` if there are static filters or mirrors."""
        chosen = tuple(map(parse_adapter, self.interest))
        if self.static_filters() and all(one.kind != "static" for one in chosen):
            chosen += (AdapterChoice("static"),)
        return chosen

    def static_filters(self) -> tuple[str, ...]:
        """Return the filters that are always of interest here."""
        return (*self.static_filter, *self.retained_mirror)

    def poll_listing(self) -> Listing:
        """Return the format of the list of subscriptions."""
        named = [one.listing for one in self.adapters() if one.kind == "poll" and one.listing is not None]
        return (
            LISTINGS[named[0]] if named else by_paths(self.poll_rows, self.poll_client, self.poll_filter, self.poll_qos)
        )

    def poll_address(self) -> ListAddress:
        """Return the address of the list of subscriptions, with its login."""
        assert self.poll_url is not None, "the settings ask for it"
        return dataclasses.replace(
            parse_list_url(self.poll_url),
            username=self.poll_username,
            password=self.poll_password,
            ca_file=self.poll_ca_file,
        )

    def lane(self) -> urls.Address | None:
        """Return the WebSocket listener for streams of QoS 0."""
        return None if self.broker_lane is None else _lane_of(self.broker_lane)

    def host_tls(self) -> TlsSettings | None:
        """Return the TLS files for the host broker; None if its URL is without TLS."""
        if not urls.parse(self.broker).is_tls:
            return None
        return TlsSettings(self.host_ca_file, self.host_cert_file, self.host_key_file, prefix="host_")

    def link_tls(self) -> TlsSettings | None:
        """Return the TLS files for links, in both directions; None if no link here uses TLS."""
        listen = self.listen_address()
        asked = (listen is not None and listen.is_tls) or any(one.address.is_tls for one in self.neighbours())
        if not asked and self.link_cert_file is None and self.link_ca_file is None:
            return None
        return TlsSettings(self.link_ca_file, self.link_cert_file, self.link_key_file, prefix="link_")

    def gateway_endpoint(self) -> Endpoint | None:
        """Return the address of the listener for gateways; None for no listener."""
        return None if self.gateway_listen is None else parse_endpoint(self.gateway_listen)

    def gateway_tls(self) -> TlsSettings:
        """Return the files of the gateway listener."""
        return TlsSettings(self.gateway_ca_file, self.gateway_cert_file, self.gateway_key_file, prefix="gateway_")

    def crossing(self) -> Crossing:
        """Return the rules and names for leaving and entering."""
        return Crossing(
            export_allow=self.export_allow,
            export_deny=self.export_deny,
            import_allow=self.import_allow,
            import_deny=self.import_deny,
            prefix=self.prefix,
            federated_prefix=self.federated_prefix,
        )

    def protocol_settings(self) -> Settings:
        """Return the settings of the state machine."""
        return Settings(
            announcement_interval_s=self.announcement_interval_s,
            expiry_factor=self.expiry_factor,
            redundancy=self.redundancy,
            grouping=Grouping.parse(self.grouping),
            election=self.election,
            outsider=self.outsider,
            announcements=self.announcements,
            absence_s=self.absence_s,
            # What waited on disk for an absent neighbour must not be taken for too old when it goes on.
            seen_s=max(Settings().seen_s, 2 * self.absence_s),
            # TCP loses nothing while it is connected, but a neighbour's broker may.
            retransmission_factor=1 if self.link == "broker" else 10,
        )

    def retained_settings(self) -> RetainedSettings:
        """Return the settings of the keeper of retained state."""
        return RetainedSettings(
            topics_max=self.retained_topics_max,
            fetch_interval_s=self.retained_interval_s,
            linger_s=self.retained_linger_s,
            tombstone_s=self.retained_deletions_s,
            # RabbitMQ replays retained messages only for exact topics.
            is_exact=any(one.listing == "rabbitmq" for one in self.adapters()),
        )

    def warnings(self) -> list[str]:
        """Return warnings for the log about settings that are allowed but risky."""
        said = []
        if not self.neighbour and self.link_listen is None and not self.manager:
            said.append(
                "No neighbour, no link_listen and no manager are set: this federator is alone until one is added."
            )
        if self.insecure:
            said.append("insecure is set: links may go beyond this machine without TLS, and anyone may link.")
        if RANDOM not in self.client_id:
            said.append(
                f"client_id is {self.client_id}, without {RANDOM}: a client that the broker accepts under this id "
                "takes over the session and all messages in it. Let the broker bind the id to the federator's login."
            )
        broker = self.broker_address()
        if broker.password is not None and not broker.is_tls and not is_loopback(broker.host):
            said.append(f"The password for the host broker {broker} goes over the network without TLS; use mqtts://.")
        return said

    def _check_identity(self) -> None:
        if self.id is None and not self.manager:
            raise LocalError("This federator has no id; give --id N, or --manager URL to get one.")
        seen: set[str] = set()
        ids: set[int] = set()
        for one in self.neighbours():
            if str(one.address) in seen:
                raise LocalError(f"The neighbour {one.address} is named twice; name it once.")
            seen.add(str(one.address))
            if one.id is None:
                continue
            if one.id == self.id:
                raise LocalError(
                    f"The neighbour {one.address} has this federator's own id {one.id}; ids must be unique."
                )
            if one.id in ids:
                raise LocalError(f"The id {one.id} is given to two neighbours; ids must be unique.")
            ids.add(one.id)

    def _check_manager(self) -> None:
        if not self.manager:
            return
        if self.neighbour:
            raise LocalError("Both neighbour and manager are set; the manager names the neighbours, omit one.")
        for address in map(parse_manager, self.manager):
            if not address.is_tls and not is_loopback(address.host) and not self.insecure:
                raise LocalError(
                    f"The manager {address} is on another machine and would get requests and the token without TLS; "
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
            raise LocalError(f"The user name is both in the URL of {address} and in username; give it once.")
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
                    f"link_listen is {listen}, which other machines reach, and no setting says whose certificates to "
                    "trust; give link_ca_file, or allow anyone with --insecure."
                )
        for one in self.neighbours():
            if not one.address.is_tls and not is_loopback(one.address.host):
                raise LocalError(
                    f"The neighbour {one.address} is on another machine and its link has no TLS; write "
                    "mqtts://, or allow it with --insecure."
                )

    def _check_gateways(self) -> None:
        _check_pair("gateway", self.gateway_cert_file, self.gateway_key_file)
        listen = self.gateway_endpoint()
        if listen is None:
            return
        if self.manager and self.gateway_advertised is None and listen.host in _EVERY_INTERFACE:
            raise LocalError(
                f"gateway_listen is {listen}, which nobody can dial; give gateway_advertised, the address that gateways"
                " reach."
            )
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
                f"gateway_listen is {listen}, which other machines reach, and no setting says which gateways may ask; "
                "give gateway_ca_file or gateway_token, or allow anyone with --insecure."
            )

    def _check_links_by_broker(self) -> None:
        if self.link_listen is not None:
            raise LocalError(
                f"link_listen is {self.listen_address()} and link is broker, which needs no listener; omit one."
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
                "interest is poll and no setting names the list; add --poll-url URL."
                if is_polling
                else "poll_url is set and interest is not poll; add --interest poll:VENDOR, or omit the address."
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
                f"The login for the list would go to {address} without TLS; write https://, or use --insecure."
            )


def _check_pair(what: str, cert_file: Any, key_file: Any) -> None:  # noqa: ANN401 - a path or None
    if (cert_file is None) != (key_file is None):
        raise LocalError(f"Of {what}_cert_file and {what}_key_file only one is given; give both or none.")
