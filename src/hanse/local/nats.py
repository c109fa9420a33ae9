"""Local NATS: MQTT, the JetStream that MQTT needs, and the monitoring pages, all on the loopback."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hanse.local import ports
from hanse.local.foreign import ForeignBroker, find
from hanse.local.ports import LOOPBACK

PACKAGE: Final = "nats-server"


class Nats(ForeignBroker):
    """One NATS server; clients need no login.

    Args:
        mqtt_lines: further lines for the block `mqtt`.
    """

    name = "nats"

    def __init__(self, *mqtt_lines: str, directory: Path | None = None) -> None:
        super().__init__(directory)
        self.port, self.list_port, self._client_port = ports.free(3)
        self.list_url = f"http://{LOOPBACK}:{self.list_port}"
        self._mqtt_lines = mqtt_lines

    def configuration(self) -> str:
        """Return the text of `nats.conf`."""
        mqtt = "\n".join(f"  {line}" for line in (f'host: "{LOOPBACK}"', f"port: {self.port}", *self._mqtt_lines))
        return (
            f"server_name: hanse-{self.port}\n"
            f'listen: "{LOOPBACK}:{self._client_port}"\n'
            f'http: "{LOOPBACK}:{self.list_port}"\n'
            f'jetstream {{\n  store_dir: "{self.directory / "store"}"\n}}\n'
            f"mqtt {{\n{mqtt}\n}}\n"
        )

    def commands(self) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        """Return the command of the broker."""
        path = self.directory / "nats.conf"
        path.write_text(self.configuration(), encoding="utf-8")
        return [([find("nats-server", PACKAGE), "-c", str(path)], {})]
