"""Configuration of a local Mosquitto, with the reason for each line, and the search for its program.

These settings make a local broker reliable: sessions survive a restart, queues are bounded but large enough to bridge a
federator's pause without loss, and the log topics report subscriptions. The broker listens on the loopback only.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from hanse.errors import LocalError
from hanse.interest.vendor import MOSQUITTO_LOG_TYPES
from hanse.local.ports import LOOPBACK
from hanse.mqtt.limits import SOCKET_PATH_BYTES_MAX

# Debian keeps it out of an ordinary user's PATH; Homebrew uses yet another directory.
_OTHER_PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/usr/bin", "/usr/local/bin")
HOW_TO_GET_IT = (
    "The program mosquitto was not found in PATH or the usual places; install it (Debian and Ubuntu: "
    "`apt install mosquitto`, macOS: `brew install mosquitto`), or name it in HANSE_MOSQUITTO."
)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of one local broker.

    Attributes:
        port: on the loopback.
        directory: holds its configuration, log and database.
        autosave_s: how much a killed broker may forget of its sessions, queues and retained messages. Mosquitto's
            own default is 1,800; every save writes the whole database and stops the broker for that long.
        inflight_max: QoS 1 and 2 messages in flight to one client. Mosquitto's 20 limits a federator to a few
            thousand messages per second; 0 (no limit) breaks MQTT 5 bridges in 2.0.11.
        queued_max: further messages that wait for one client. Mosquitto's 1,000 drops messages silently within
            milliseconds at our rates; no limit would let one absent client use up the memory.
        lane_port: port for its federator's WebSocket connection; None for no such listener.
        extra: further lines, appended unchanged.
    """

    port: int
    directory: Path
    autosave_s: int = 30
    inflight_max: int = 20_000
    queued_max: int = 100_000
    queued_bytes_max: int = 256 * 1024 * 1024
    persistence: bool = True
    lane_port: int | None = None
    extra: tuple[str, ...] = ()


def find_program() -> str:
    """Return the path of mosquitto.

    Raises:
        LocalError: it was not found; the message says how to install it.
    """
    named = os.environ.get("HANSE_MOSQUITTO")
    if named:
        found = shutil.which(named)
        if found is None:
            raise LocalError(f"HANSE_MOSQUITTO names {named!r}, which is not a program; correct it or unset it.")
        return found
    places = os.pathsep.join([os.environ.get("PATH", ""), *_OTHER_PLACES])
    found = shutil.which("mosquitto", path=places)
    if found is None:
        raise LocalError(HOW_TO_GET_IT)
    return found


def has_websockets(program: str) -> bool:
    """Return whether this mosquitto supports WebSocket; one that does not refuses to start with such a listener."""
    try:
        return b"libwebsockets" in Path(program).read_bytes()
    except OSError:
        return False


def socket_path(directory: Path) -> Path | None:
    """Return the path of the broker's Unix socket for its federator; None if the directory's name is too long."""
    path = directory / "mosquitto.sock"
    return path if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX else None


def configuration(settings: BrokerSettings) -> str:
    """Return the text of `mosquitto.conf`."""
    path = socket_path(settings.directory)
    lines = [
        f"listener {settings.port} {LOOPBACK}",
        # A write to this socket costs Mosquitto 4 us less than one to the loopback, of the 14 us that a message costs
        # it.
        *([f"listener 0 {path}"] if path else []),
        *(_websocket_listener(settings.lane_port) if settings.lane_port else []),
        "allow_anonymous true",
        # Without this, a small message may wait 40 ms for the acknowledgement of the previous one.
        "set_tcp_nodelay true",
        f"max_inflight_messages {settings.inflight_max}",
        f"max_queued_messages {settings.queued_max}",
        f"max_queued_bytes {settings.queued_bytes_max}",
        # An absent client with a persistent session misses QoS 0, as MQTT defines.
        "queue_qos0_messages false",
        f"persistence {'true' if settings.persistence else 'false'}",
        f"persistence_location {settings.directory}/",
        f"autosave_interval {settings.autosave_s}",
        "connection_messages true",
        "log_timestamp false",
        "log_dest topic",
        f"log_dest file {settings.directory / 'mosquitto.log'}",
        # Lets the federator make Mosquitto flush its output, where it reads the subscription tree. It is written in
        # blocks, so the file above is the better one to read.
        "log_dest stdout",
        *(f"log_type {kind}" for kind in MOSQUITTO_LOG_TYPES),
        "sys_interval 1",
        # Mosquitto started by root would change to a user who cannot write to the directory.
        *(["user root"] if os.geteuid() == 0 else []),
        *settings.extra,
    ]
    return "\n".join(lines) + "\n"


def _websocket_listener(port: int) -> list[str]:
    """Return the lines of a WebSocket listener on the loopback.

    Mosquitto 2.0 opens an IPv6 socket for it on all interfaces, whatever address the listener has. Only with
    `socket_domain ipv4` does it use the address.
    """
    return [f"listener {port} {LOOPBACK}", "protocol websockets", "socket_domain ipv4"]


def write_configuration(settings: BrokerSettings) -> Path:
    """Write the configuration to the broker's directory; return its path.

    Raises:
        LocalError: the directory cannot hold it.
    """
    if any(character.isspace() for character in str(settings.directory)):
        raise LocalError(
            f"The directory {str(settings.directory)!r} has a space in its name, which Mosquitto's configuration "
            "cannot hold; choose another with --dir."
        )
    path = settings.directory / "mosquitto.conf"
    try:
        settings.directory.mkdir(parents=True, exist_ok=True)
        path.write_text(configuration(settings), encoding="utf-8")
    except OSError as error:
        raise LocalError(f"{path} could not be written ({error.strerror}); choose another --dir.") from error
    return path


def command(settings: BrokerSettings) -> list[str]:
    """Return the command line that starts this broker, after writing its configuration."""
    return [find_program(), "-c", str(write_configuration(settings))]
