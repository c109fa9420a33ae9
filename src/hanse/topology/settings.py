"""The manager's settings, and those that it hands out to federators."""

from dataclasses import dataclass
from pathlib import Path

from hanse import logs
from hanse.settings import duration, format_duration, setting
from hanse.topology.placement import STRATEGIES

_COUNT_WORDS = "host:port, for example 127.0.0.1:8080 or [::1]:8080"


def split_listen(text: str) -> tuple[str, int]:
    """Return host and port of a listening address. A ValueError says which form is allowed."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(_COUNT_WORDS)
    host = host.removeprefix("[").removesuffix("]")
    if not host:
        raise ValueError(_COUNT_WORDS + "; 0.0.0.0 for every interface")
    return host, int(port)


def _check_listen(text: str) -> str | None:
    try:
        split_listen(text)
    except ValueError as error:
        return str(error)
    return None


def _check_secret(text: str) -> str | None:
    return None if len(text.encode()) >= 16 else "at least 16 characters"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings of the store; `hanse token` needs no others."""

    store: Path = setting(Path("hanse-topology.db"), "SQLite file that stores the topology.")  # noqa: RUF009
    mongo_url: str | None = setting(
        None, "MongoDB database that stores the topology instead.", aliases=("MONGO_URL",), is_secret=True
    )


@dataclass(frozen=True, slots=True)
class ManagerSettings(StoreSettings):
    """All settings of `hanse manager`."""

    listen: str = setting("127.0.0.1:8080", "Address on which to listen for HTTP.", check=_check_listen)
    advertised_url: str = setting("", "URL under which others reach this manager; its standby refers to it.")
    manager_id: str = setting("", "Name of this manager; if empty, a new one is made at every start.")
    announcement_interval_s: float = duration(
        1.0, "Interval between core announcements.", aliases=("CORE_ANN_INTERVAL",), minimum_s=0.01, maximum_s=3600
    )
    beacon_interval_s: float = duration(
        2.0,
        "Interval between the beacons of a subscriber.",
        aliases=("BEACON_INTERVAL",),
        minimum_s=0.01,
        maximum_s=3600,
    )
    redundancy: int = setting(
        2, "Largest number of parents of a federator in a mesh.", aliases=("FED_REDUNDANCY",), minimum=1, maximum=64
    )
    # Two is the smallest maximum that lets three federators be connected; 64 is the design limit for a federator's
    # links.
    overlay_degree_max: int = setting(
        5, "Largest number of neighbours of a federator.", aliases=("TOP_MAX_REDUNDANCY",), minimum=2, maximum=64
    )
    placement: str = setting("seeds", "Strategy that places a joining federator.", choices=sorted(STRATEGIES))
    federators_max: int = setting(10_000, "Largest number of federators.", minimum=1, maximum=100_000)
    # The papers' five seconds: a loss is then known within ten. Each probe costs a broker two publications.
    health_interval_s: float = duration(5.0, "Interval between health rounds.", minimum_s=0.1, maximum_s=3600)
    probe_username: str = setting("", "User name for the probes at host brokers.")
    probe_password: str = setting("", "Password for the probes at host brokers.", is_secret=True)
    probe_ca: Path | None = setting(  # noqa: RUF009
        None, "CA certificate of the host brokers, for mqtts:// addresses."
    )
    lease_s: float = duration(
        6.0, "Time that a manager leads without renewing its lease.", minimum_s=0.3, maximum_s=600
    )
    remember_s: float = duration(7 * 24 * 3600.0, "Time that an absent federator keeps its id.", minimum_s=60)
    tls_certificate: Path | None = setting(None, "Certificate of the HTTP server, as PEM.")  # noqa: RUF009
    tls_key: Path | None = setting(None, "Key of that certificate, as PEM.")  # noqa: RUF009
    require_token: bool = setting(False, "Require a token also on loopback.")
    insecure: bool = setting(False, "Listen beyond loopback without TLS and tokens.")
    log_format: str = setting("plain", logs.FORMAT_HELP, choices=logs.FORMATS)
    log_level: str = setting("info", logs.LEVEL_HELP, choices=logs.LEVELS)
    secret: str | None = setting(
        None, "Secret of the federation; kept in the store if not given.", is_secret=True, check=_check_secret
    )

    @property
    def probe_timeout_s(self) -> float:
        """A quarter of the interval: probe, pause, second look at suspects and verdict fit into one interval."""
        return self.health_interval_s / 4

    def handed_out(self) -> dict[str, object]:
        """Return the settings that every federator gets, under the names of its own settings."""
        return {
            "announcement_interval": format_duration(self.announcement_interval_s),
            "beacon_interval": format_duration(self.beacon_interval_s),
            "redundancy": self.redundancy,
            "overlay_degree_max": self.overlay_degree_max,
            "health_interval": format_duration(self.health_interval_s),
        }
