"""The gateway of a federation on one machine: its command and its address."""

import sys
from collections.abc import Sequence

from hanse.local import ports
from hanse.local.ports import LOOPBACK
from hanse.local.supervise import FederationSettings, Service, Site
from hanse.mqtt import urls


class LocalGateway:
    """One gateway in front of all brokers. Each broker's id is its number.

    Args:
        port: where clients connect; None for a free port.
    """

    def __init__(self, settings: FederationSettings, port: int | None = None) -> None:
        assert settings.base_port is not None or not settings.brokers, "the ports of the brokers must be known"
        if port is not None:
            ports.require_free([port])
        self._port = port or ports.free(1)[0]
        self._state_dir = settings.directory / "gateway"
        started = [f"mqtt://{LOOPBACK}:{(settings.base_port or 0) + k}" for k in range(settings.brokers)]
        # Without the logins: clients bring their own.
        given = [str(urls.parse(url)) for url in settings.broker_urls]
        urls_of = [*started, *given]
        # Where each federator listens for the gateway, by its number.
        self.listeners = [f"tcp://{LOOPBACK}:{one}" for one in ports.free(len(urls_of))]
        self._brokers = [
            f"{k}={url}?federator={listener}"
            for k, (url, listener) in enumerate(zip(urls_of, self.listeners, strict=True))
        ]
        self.url = f"mqtt://{LOOPBACK}:{self._port}"

    def service(self) -> Service:
        """Return the service for the supervisor to run."""
        words = [sys.executable, "-m", "hanse", "gateway", "--state-dir", str(self._state_dir)]
        # Clients that follow a Server Reference are sent to the broker of their topics.
        words += ["--listen", f"{self.url}?mode=auto", "--groups-interval", "1s"]
        words += ["--metrics", f"{LOOPBACK}:0", "--shutdown-grace", "0s"]
        for broker in self._brokers:
            words += ["--broker", broker]
        return Service("gateway", self.url, words, _pages)

    def is_ready(self) -> bool:
        """Return whether clients may connect."""
        return ports.answers(self._port)


def _pages(sites: Sequence[Site]) -> list[str]:
    """Return the flags that say where each federator shows its groups."""
    return [word for site in sites for word in ("--groups", f"{site.k}={site.metrics_url}")]
