"""The settings of `hanse gateway`."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hanse import logs
from hanse.errors import HanseError, LocalError
from hanse.gateway.addresses import MODES, ListenAddress, parse_broker, parse_brokers, parse_listen
from hanse.gateway.discovery.ranges import TARGETS_MAX, Target, parse_ports, parse_targets
from hanse.gateway.placement import POLICIES, Broker
from hanse.gateway.redirect.targets import check_reference, parse_moved, parse_source
from hanse.protocol.topics import check_filter
from hanse.request_channel import parse_endpoint
from hanse.settings import duration, setting


def _each(read: Callable[[str], object]) -> Callable[[tuple[str, ...]], str | None]:
    """Return a check that parses each text of a list."""

    def check(texts: tuple[str, ...]) -> str | None:
        for text in texts:
            try:
                read(text)
            except (HanseError, ValueError) as error:
                raise LocalError(f"{str(error).rstrip('.')}.") from error
        return None

    return check


def _check_file(path: Path) -> str | None:
    return None if path.is_file() else "the path of a file that exists"


def _check_metrics(text: str) -> str | None:
    host, colon, port = text.rpartition(":")
    is_good = bool(colon and host) and port.isascii() and port.isdigit() and int(port) < 65_536
    return None if is_good else "HOST:PORT, for example 127.0.0.1:9280"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """All settings of `hanse gateway`."""

    listen: tuple[str, ...] = setting(
        ("mqtt://127.0.0.1:1883",),
        "Address for clients: mqtt://, mqtts://, ws:// or wss://, with ?mode=proxy|redirect|auto.",
        check=_each(parse_listen),
    )
    broker: tuple[str, ...] = setting(
        (), "Broker, as ID=URL; URL is mqtt://, mqtts:// or unix:. It replaces a manager.", check=_each(parse_broker)
    )
    scan: tuple[str, ...] = setting(
        (), "Addresses that are scanned for brokers once, at the start, instead of a list. See docs/gateway.md."
    )
    scan_port: str = setting("1883", "Ports of scan, such as 1883,8883/tls.")
    scan_targets_max: int = setting(
        TARGETS_MAX, "Largest number of addresses times ports of a scan.", minimum=1, maximum=1 << 20
    )
    manager: tuple[str, ...] = setting(
        (),
        "URL of the topology manager, which knows the brokers; several are asked in order.",
        aliases=("TOPOLOGY_MANAGER_URL",),
    )
    manager_ca_file: Path | None = setting(None, "CA certificates for an https:// manager.", check=_check_file)  # noqa: RUF009
    manager_token: str | None = setting(None, "Token of the manager with the role `gateway`.", is_secret=True)
    manager_interval_s: float = duration(1.0, "Interval between requests to the manager.", minimum_s=0.1, maximum_s=60)
    gateway_id: str = setting("", "Name of this gateway at the manager; if empty, a new one is made at every start.")
    site: str = setting("", "Place clients only at brokers of this site; all brokers if empty.")

    mode: str = setting("proxy", "Treatment of clients: proxied, redirected, or by their own request.", choices=MODES)
    policy: str = setting(
        "hash", "Placement of clients without a session; all others are placed by the hash.", choices=POLICIES
    )
    redirect_return_s: float = duration(
        30.0, "A redirected client that returns within this time is proxied.", minimum_s=0.1, maximum_s=3600
    )
    redirect_idle_s: float = duration(
        5.0, "Time from CONNACK to the redirect of a client without requests.", minimum_s=0.1, maximum_s=3600
    )
    redirect_unknown: str = setting(
        "any", "Treatment of a client whose topics no known broker has: any broker, or 0x8F.", choices=("any", "refuse")
    )
    redirect_deny: tuple[str, ...] = setting(
        (), "Filters that are not accepted from redirected clients (0x8F).", check=_each(check_filter)
    )
    redirect_moved: tuple[str, ...] = setting(
        (), "Topics that have moved to a broker for good (0x9D), as FILTER=BROKER.", check=_each(parse_moved)
    )
    redirect_check_rate: float = setting(
        200.0, "Checks of credentials at the brokers, per second over all workers.", minimum=1, maximum=1e6
    )
    groups: tuple[str, ...] = setting(
        (), "Page of a broker's federator with its groups, as BROKER=http://HOST:PORT.", check=_each(parse_source)
    )
    groups_interval_s: float = duration(5.0, "Interval between requests to a federator.", minimum_s=0.1, maximum_s=3600)
    discover: bool = setting(False, "Listen at brokers without a federator to learn their topics.")
    discover_interval_s: float = duration(
        60.0, "Interval between rounds of discovery.", minimum_s=0.1, maximum_s=86_400
    )
    discover_for_s: float = duration(5.0, "Time that it listens at one broker.", minimum_s=0.1, maximum_s=3600)
    discover_expiry_s: float = duration(
        600.0, "Time after which an unseen topic is forgotten.", minimum_s=0.1, maximum_s=604_800
    )
    discover_topics_max: int = setting(100_000, "Largest number of known topics.", minimum=1, maximum=10_000_000)
    vitals_topic: str = setting("", "Topic on which brokers report load, memory and battery; see docs/gateway.md.")

    placement_key: str = setting("client-id", "Input of the hash.", choices=("client-id", "username"))

    failover: bool = setting(True, "Keep the state that is needed to move clients to another broker if theirs is lost.")
    will: str = setting(
        "gateway",
        "Publisher of a client's will: the gateway, or its broker, which also does so if the gateway is cut off.",
        choices=("gateway", "broker"),
    )
    will_backup: bool = setting(
        True, "Report clients' wills to federators, which publish them if this gateway dies; see docs/gateway.md."
    )
    will_grace_s: float = duration(
        60.0, "Time that a federator waits for a lost gateway before it publishes the wills.", maximum_s=3600
    )
    replay_window_s: float = duration(
        1.0, "Publications acknowledged within this time before the loss of a broker are sent again.", maximum_s=60
    )
    qos2_in_doubt: str = setting(
        "resend",
        "Treatment of a QoS 2 publication that the lost broker may have delivered: send it again, or close the client.",
        choices=("resend", "close"),
    )
    drain_old: str = setting(
        "missing",
        "Messages that a moved client gets from its former broker's queue: those that it lacks, or none.",
        choices=("missing", "discard"),
    )

    # One process fills one core with about 50,000 small messages per second.
    workers: int = setting(1, "Processes that serve clients.", minimum=1, maximum=256)
    connections_max: int = setting(
        100_000, "Largest number of clients, over all workers.", minimum=1, maximum=10_000_000
    )
    connections_per_address_max: int = setting(
        0, "Largest number of clients from one address; 0 for no separate limit.", minimum=0, maximum=10_000_000
    )
    connect_rate: float = setting(2_000.0, "New connections per second, over all workers.", minimum=1, maximum=1e6)
    connect_rate_per_address: float = setting(
        0.0, "New connections per second from one address; 0 for no separate limit.", minimum=0, maximum=1e6
    )
    connect_timeout_s: float = duration(
        10.0, "Time from a connection to its complete CONNECT.", minimum_s=0.1, maximum_s=600
    )
    connect_bytes_max: int = setting(65_536, "Largest CONNECT, in bytes.", minimum=128, maximum=1 << 20)
    # Mosquitto's own default is 256 MiB; a smaller one bounds what one client makes the gateway keep.
    packet_bytes_max: int = setting(
        16 * 1024 * 1024 + 128 * 1024, "Largest packet of a client, in bytes.", minimum=1024, maximum=268_435_460
    )
    client_bytes_rate: int = setting(
        0, "Bytes per second that one client may send; beyond it, the gateway reads more slowly. 0 for no limit.",
        minimum=0, maximum=10**12,
    )  # fmt: skip
    buffer_bytes: int = setting(
        256 * 1024,
        "Bytes that wait for one slow side before the other is no longer read.",
        minimum=4096,
        maximum=1 << 30,
    )

    proxy_from: tuple[str, ...] = setting(
        (), "Addresses or networks of balancers, which begin with a PROXY header.", check=_each(ipaddress.ip_network)
    )
    websocket_origin: tuple[str, ...] = setting(
        (), "Origins of web pages that may connect by WebSocket; all if none is given."
    )
    cert_file: Path | None = setting(None, "Certificate of the mqtts:// and wss:// listeners.", check=_check_file)  # noqa: RUF009
    key_file: Path | None = setting(None, "Key of `cert_file`.", check=_check_file)  # noqa: RUF009
    ca_file: Path | None = setting(  # noqa: RUF009
        None, "Authority of client certificates; with it, each client must show one.", check=_check_file
    )
    insecure: bool = setting(False, "Listen beyond this machine, and dial federators there, without TLS.")

    broker_ca_file: Path | None = setting(None, "CA certificates for mqtts:// brokers.", check=_check_file)  # noqa: RUF009
    broker_cert_file: Path | None = setting(None, "Certificate of the gateway for brokers.", check=_check_file)  # noqa: RUF009
    broker_key_file: Path | None = setting(None, "Key of `broker_cert_file`.", check=_check_file)  # noqa: RUF009
    # One address and one broker port give some 28,000 connections; a user stalls at 30,000 per broker.
    source_address: tuple[str, ...] = setting(
        (), "Own addresses for connections to brokers, used in turn, for more than 25,000 clients per broker.",
        check=_each(ipaddress.ip_address),
    )  # fmt: skip
    dial_timeout_s: float = duration(
        2.0, "Timeout of a connection to a broker, TLS included.", minimum_s=0.05, maximum_s=60
    )

    share: str = setting(
        "broker",
        "Receivers of a message of a shared subscription: one member per broker, or one member across all brokers, "
        "if all members connect through gateways.",
        choices=("broker", "once"),
    )
    federator_token: str | None = setting(
        None, "Token for federators (their gateway_token); better given by the variable.", is_secret=True
    )
    federator_ca_file: Path | None = setting(None, "CA certificates for federators.", check=_check_file)  # noqa: RUF009
    federator_cert_file: Path | None = setting(  # noqa: RUF009
        None, "Certificate of the gateway for federators.", check=_check_file
    )
    federator_key_file: Path | None = setting(None, "Key of `federator_cert_file`.", check=_check_file)  # noqa: RUF009
    subscribe_barrier: bool = setting(
        False,
        "Hold a SUBACK until every reachable federator knows of the subscription, so that the next publication at any "
        "broker arrives.",
    )
    barrier_timeout_s: float = duration(1.0, "Longest time that it is held.", minimum_s=0.01, maximum_s=30)

    probe_username: str | None = setting(None, "User name of the health sessions at the brokers.")
    probe_password: str | None = setting(None, "Its password.", is_secret=True)
    health_interval_s: float = duration(0.5, "Interval between pings of a broker.", minimum_s=0.05, maximum_s=60)
    health_timeout_s: float = duration(1.0, "Silence after which a broker is hung.", minimum_s=0.05, maximum_s=60)

    drain_rate: float = setting(
        100.0, "Clients per second that are moved from or back to a broker.", minimum=0.1, maximum=1e6
    )
    shutdown_grace_s: float = duration(
        5.0, "Time from SIGTERM to the end of the listeners, while /healthz answers 503.", maximum_s=3600
    )
    state_dir: Path = setting(Path(".hanse-gateway"), "Directory of drains, which survive a restart.")  # noqa: RUF009
    metrics: str = setting(
        "127.0.0.1:9280", "Address of /metrics and /healthz; port 0 takes a free port.", check=_check_metrics
    )
    log_format: str = setting("plain", logs.FORMAT_HELP, choices=logs.FORMATS)
    log_level: str = setting("info", logs.LEVEL_HELP, choices=logs.LEVELS)

    def __post_init__(self) -> None:
        """Check settings that are wrong only together."""
        self._check_brokers()
        for pair, first, second in (
            ("cert_file and key_file", self.cert_file, self.key_file),
            ("broker_cert_file and broker_key_file", self.broker_cert_file, self.broker_key_file),
            ("federator_cert_file and federator_key_file", self.federator_cert_file, self.federator_key_file),
        ):
            if (first is None) != (second is None):
                raise LocalError(f"Of {pair} only one is given; give both or none.")
        for listener in self.listeners():
            if listener.is_tls and self.cert_file is None:
                raise LocalError(f"The listener {listener.url()} needs a certificate; give cert_file and key_file.")
            if listener.is_websocket and listener.mode in ("redirect", "auto"):
                raise LocalError(
                    f"The listener {listener.url()} cannot redirect, because a reference names an MQTT port and not a "
                    "WebSocket; write ?mode=proxy."
                )
            if not listener.is_tls and not listener.is_loopback and not self.insecure:
                raise LocalError(
                    f"The listener {listener.url()} would accept passwords without TLS from beyond this machine; write "
                    f"{'wss' if listener.is_websocket else 'mqtts'}://, or allow it with --insecure."
                )
        if self.ca_file is not None and not any(one.is_tls for one in self.listeners()):
            raise LocalError("ca_file asks for client certificates and no listener has TLS; add an mqtts:// listener.")

    def _check_brokers(self) -> None:
        sources = [name for name in ("broker", "manager", "scan") if getattr(self, name)]
        if not sources:
            raise LocalError(
                "The gateway knows no brokers; give --manager URL, --broker ID=URL for each, or --scan RANGE."
            )
        if len(sources) > 1:
            raise LocalError(f"The brokers come from {' and '.join(sources)}; give one of them.")
        self.scan_targets()
        known = self.brokers()
        for one in known:
            check_reference(one)
            if one.federator and parse_endpoint(one.federator).is_open_to_others and not self.insecure:
                raise LocalError(
                    f"The federator of the broker {one.id} is at {one.federator}, on another machine and without TLS; "
                    "write tls://, or allow it by --insecure."
                )
        ids = {one.id for one in known}
        named = [("groups", parse_source(text)[0]) for text in self.groups]
        named += [("redirect_moved", parse_moved(text)[1]) for text in self.redirect_moved]
        for name, broker_id in named:
            if self.broker and broker_id not in ids:
                raise LocalError(f"{name} names the broker {broker_id!r}; known: {', '.join(sorted(ids))}.")
        if self.subscribe_barrier and self.broker and not any(one.federator for one in known):
            raise LocalError(
                "subscribe_barrier is set and no broker names its federator; write --broker "
                "ID=URL?federator=tls://HOST:PORT."
            )
        if self.manager and self.site:
            raise LocalError("A manager does not tell the sites of brokers; list the brokers, or leave site empty.")
        if self.broker and self.site and not any(one.site == self.site for one in known):
            raise LocalError(f"No broker belongs to the site {self.site!r}; write --broker ID=URL?site={self.site}.")

    def listeners(self) -> list[ListenAddress]:
        """Return the listeners."""
        return [parse_listen(text) for text in self.listen]

    def scan_targets(self) -> list[Target]:
        """Return the addresses of the scan for brokers at the start; none by default."""
        return parse_targets(self.scan, parse_ports(self.scan_port), self.scan_targets_max) if self.scan else []

    def brokers(self) -> list[Broker]:
        """Return the brokers of the list."""
        return parse_brokers(self.broker)

    def metrics_address(self) -> tuple[str, int]:
        """Return host and port of the pages."""
        host, _, port = self.metrics.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)
