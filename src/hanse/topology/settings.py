"""The manager's settings, and what of them it hands out to federators."""

from dataclasses import dataclass
from pathlib import Path

from hanse import logs
from hanse.settings import duration, format_duration, setting
from hanse.topology.placement import STRATEGIES

_COUNT_WORDS = "host:port, for example 127.0.0.1:8080 or [::1]:8080"


def split_listen(text: str) -> tuple[str, int]:
    """Host and port of a listening address; a ValueError says what is allowed."""
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
    """Where the topology is kept; all that `hanse token` needs."""

    store: Path = setting(Path("hanse-topology.db"), "The SQLite file that keeps the topology.")  # noqa: RUF009
    mongo_url: str | None = setting(
        None, "A MongoDB database that keeps it instead.", aliases=("MONGO_URL",), is_secret=True
    )


@dataclass(frozen=True, slots=True)
class ManagerSettings(StoreSettings):
    """All of `hanse manager`."""

    listen: str = setting("127.0.0.1:8080", "Where to listen for HTTP.", check=_check_listen)
    advertised_url: str = setting("", "This manager's URL as others reach it, told by its standby.")
    manager_id: str = setting("", "This manager's name; made up anew at every start if empty.")
    announcement_interval_s: float = duration(
        1.0, "Between two core announcements.", aliases=("CORE_ANN_INTERVAL",), minimum_s=0.01, maximum_s=3600
    )
    beacon_interval_s: float = duration(
        2.0, "Between two beacons of a subscriber.", aliases=("BEACON_INTERVAL",), minimum_s=0.01, maximum_s=3600
    )
    redundancy: int = setting(
        2, "Parents of a federator in a mesh, at most.", aliases=("FED_REDUNDANCY",), minimum=1, maximum=64
    )
    # Two is the least that lets three federators be connected; 64 is what a federator's links are built for.
    overlay_degree_max: int = setting(
        5, "Neighbours of a federator, at most.", aliases=("TOP_MAX_REDUNDANCY",), minimum=2, maximum=64
    )
    placement: str = setting("seeds", "How a joining federator is placed.", choices=sorted(STRATEGIES))
    federators_max: int = setting(10_000, "Federators to take in, at most.", minimum=1, maximum=100_000)
    # The seeds' five seconds: a loss is then known within ten. Each probe costs a broker two publications.
    health_interval_s: float = duration(5.0, "Between two health rounds.", minimum_s=0.1, maximum_s=3600)
    probe_username: str = setting("", "User name for the probes at host brokers.")
    probe_password: str = setting("", "Password for the probes at host brokers.", is_secret=True)
    probe_ca: Path | None = setting(  # noqa: RUF009
        None, "Certificate authority of the host brokers, for mqtts:// addresses."
    )
    lease_s: float = duration(6.0, "How long a manager leads without a sign of life.", minimum_s=0.3, maximum_s=600)
    remember_s: float = duration(7 * 24 * 3600.0, "How long one that is away keeps its id.", minimum_s=60)
    tls_certificate: Path | None = setting(None, "The certificate, as PEM.")  # noqa: RUF009
    tls_key: Path | None = setting(None, "Its key, as PEM.")  # noqa: RUF009
    require_token: bool = setting(False, "Want a token also on loopback.")
    insecure: bool = setting(False, "Listen beyond loopback without TLS and tokens.")
    log_format: str = setting("plain", logs.FORMAT_HELP, choices=logs.FORMATS)
    log_level: str = setting("info", logs.LEVEL_HELP, choices=logs.LEVELS)
    secret: str | None = setting(
        None, "The federation's secret; kept in the store if not given.", is_secret=True, check=_check_secret
    )

    @property
    def probe_timeout_s(self) -> float:
        """A quarter of the interval: probe, pause, second look at suspects and verdict fit into one."""
        return self.health_interval_s / 4

    def handed_out(self) -> dict[str, object]:
        """What every federator of the federation gets, under the names that its own settings have."""
        return {
            "announcement_interval": format_duration(self.announcement_interval_s),
            "beacon_interval": format_duration(self.beacon_interval_s),
            "redundancy": self.redundancy,
            "overlay_degree_max": self.overlay_degree_max,
            "health_interval": format_duration(self.health_interval_s),
        }
