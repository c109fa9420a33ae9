"""Process of a manager: store, probes, HTTP server, and an orderly end."""

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType

import uvicorn

from hanse.errors import LocalError
from hanse.topology.admission import check_listen
from hanse.topology.api import create_app
from hanse.topology.manager import Manager
from hanse.topology.probes import MqttProber
from hanse.topology.settings import ManagerSettings, split_listen
from hanse.topology.stores import open_store

log = logging.getLogger("hanse.manager")

FILES_PER_FEDERATOR = 2  # one connection to its broker, one poll of its own
GRACE_S = 5
LISTEN_QUEUE = 2048
EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104 - only compared with, not bound to


async def serve(settings: ManagerSettings) -> None:
    """Run a manager until SIGTERM or SIGINT."""
    host, port = split_listen(settings.listen)
    requires_token = check_listen(
        host,
        settings.tls_certificate,
        settings.tls_key,
        require_token=settings.require_token,
        insecure=settings.insecure,
    )
    _check_certificate(settings)
    _raise_file_limit()
    listener = _listen(host, port)
    url = _url(settings, listener)
    if not settings.advertised_url and host not in EVERY_INTERFACE:
        settings = replace(settings, advertised_url=url)
    store = await open_store(settings)

    def make_prober(manager: str, on_lost: Callable[[int], None]) -> MqttProber:
        return MqttProber(
            manager,
            on_lost,
            username=settings.probe_username,
            password=settings.probe_password,
            ca_file=settings.probe_ca,
        )

    manager = Manager(settings, store, make_prober, requires_token=requires_token)
    try:
        await manager.start()
        try:
            log.info("the manager listens", extra={"url": url, "manager": manager.id})
            await _serve_http(settings, manager, listener)
        finally:
            await manager.stop()
    finally:
        await store.close()
        listener.close()


async def _serve_http(settings: ManagerSettings, manager: Manager, listener: socket.socket) -> None:
    config = uvicorn.Config(
        create_app(manager),
        # uvicorn's loggers write through ours.
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=GRACE_S,
        # Limits on slow or hostile clients: an idle connection is closed after this time, and headers are bounded.
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=64 * 1024,
        server_header=False,
        proxy_headers=False,
    )
    server = _Server(config, manager)
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """HTTP server that ends open event streams and polls when it is told to end; uvicorn would wait for them."""

    def __init__(self, config: uvicorn.Config, manager: Manager) -> None:
        super().__init__(config)
        self._manager = manager
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self._loop.call_soon_threadsafe(self._manager.begin_stop)
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture signals as uvicorn does, but without raising them again: the manager must still stop in order."""
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def _check_certificate(settings: ManagerSettings) -> None:
    """Check the certificate before anything is open. The HTTP server would raise a traceback instead of a sentence."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key, "")
    except (OSError, ssl.SSLError) as error:
        raise LocalError(
            f"tls_certificate {settings.tls_certificate} with tls_key {settings.tls_key} cannot be used ({error}); "
            "give a certificate and its own key, without a password, as PEM."
        ) from error


def _url(settings: ManagerSettings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.tls_certificate else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise LocalError(f"--listen {host}:{port}: {error}; name an address of this machine.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # From here on, connections wait in the queue until the application is ready to answer.
        listener.listen(LISTEN_QUEUE)
    except OSError as error:
        listener.close()
        raise LocalError(f"--listen {host}:{port}: {error.strerror}; choose another port or address.") from error
    return listener


def _raise_file_limit() -> None:
    """Raise the soft limit of open files. The usual 1,024 would break a federation of 1,000 silently."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    log.info("open files: at most %d, enough for about %d federators", soft, soft // FILES_PER_FEDERATOR)
