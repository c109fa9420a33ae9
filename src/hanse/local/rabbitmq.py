"""Local RabbitMQ: MQTT and the management plugin on the loopback, nothing shared with another node.

An Erlang node needs a name, a cookie and `epmd`, which tells nodes about each other and outlives them. This broker gets
its own `epmd`, in the foreground, on a port of its own, which ends with the broker. The cookie is created in the
broker's directory, which is its home. The port between nodes is on the loopback.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hanse.interest.vendor import RABBITMQ_LINES, RABBITMQ_PLUGINS
from hanse.local import ports
from hanse.local.foreign import ForeignBroker, find
from hanse.local.ports import LOOPBACK

PACKAGE: Final = "rabbitmq-server"
# The script behind Debian's wrapper, which would change to the user `rabbitmq`.
_SCRIPTS: Final = (Path("/usr/lib/rabbitmq/bin/rabbitmq-server"),)


class Rabbitmq(ForeignBroker):
    """One RabbitMQ; clients need no login.

    Args:
        lines: further lines for `rabbitmq.conf`.
    """

    name = "rabbitmq"

    def __init__(self, *lines: str, directory: Path | None = None) -> None:
        super().__init__(directory)
        self.port, self.list_port, self._epmd_port, self._node_port = ports.free(4)
        self.list_url = f"http://{LOOPBACK}:{self.list_port}"
        self._lines = lines

    def configuration(self) -> str:
        """Return the text of `rabbitmq.conf`."""
        lines = [
            "listeners.tcp = none",  # no AMQP
            f"mqtt.listeners.tcp.1 = {LOOPBACK}:{self.port}",
            "mqtt.allow_anonymous = true",
            f"management.tcp.ip = {LOOPBACK}",
            f"management.tcp.port = {self.list_port}",
            *RABBITMQ_LINES,
            *self._lines,
        ]
        return "\n".join(lines) + "\n"

    def commands(self) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        """Return the commands of `epmd` and of the broker."""
        here = self.directory
        (here / "rabbitmq.conf").write_text(self.configuration(), encoding="utf-8")
        (here / "enabled_plugins").write_text(f"[{','.join(RABBITMQ_PLUGINS)}].\n", encoding="utf-8")
        environment = {
            "HOME": str(here),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": f"hanse-{self._node_port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_MNESIA_BASE": str(here / "mnesia"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(here / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(here / "generated"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(here / "feature_flags"),
            "RABBITMQ_PID_FILE": str(here / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1} +S 2:2"
            ),
            # With this the script becomes the broker, instead of a parent that may end before the broker.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        script = next((str(path) for path in _SCRIPTS if path.exists()), None) or find("rabbitmq-server", PACKAGE)
        epmd = [find("epmd", PACKAGE), "-port", str(self._epmd_port), "-address", LOOPBACK]
        return [(epmd, environment), ([script], environment)]
