"""Every kind of listener of a real gateway: TLS, WebSocket, both, and behind a balancer."""

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.certificates import authority, certificate
from tests.gateway import packets as p
from tests.gateway.test_proxy_header import v2
from tests.gateways import Gateway, RawClient, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus, NegotiationError
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

pytestmark = pytest.mark.processes

MQTT = Subprotocol("mqtt")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for ca in ("ours", "strangers"):
        authority(folder, ca)
    certificate(folder, "ours", "server")
    certificate(folder, "ours", "broker")
    certificate(folder, "strangers", "stranger")
    return folder


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with Mosquitto() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(broker: Mosquitto, certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    urls = ("mqtt://127.0.0.1:0", "mqtts://127.0.0.1:0", "ws://127.0.0.1:0", "wss://127.0.0.1:0/there")
    words = ("--cert-file", str(certificates / "server.crt"), "--key-file", str(certificates / "server.key"),
             "--websocket-origin", "https://pages.example", "--connect-bytes-max", "4096",
             "--packet-bytes-max", "3000000", "--connect-timeout", "5s")  # fmt: skip
    directory = tmp_path_factory.mktemp("gateway")
    with Gateway(directory, f"mqtt://127.0.0.1:{broker.port}", listen=urls, words=words) as running:
        yield running


def trusting(certificates: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates / "ours.crt")


def websocket(gateway: Gateway, certificates: Path, listener: int, path: str = "/mqtt") -> ClientConnection:
    scheme, context = ("ws", None) if listener == 2 else ("wss", trusting(certificates))
    url = f"{scheme}://127.0.0.1:{gateway.port_of(listener)}{path}"
    return connect(url, subprotocols=[MQTT], ssl=context, compression="deflate", max_size=None)


def test_a_client_over_tls(gateway: Gateway, certificates: Path) -> None:
    where = ["-h", "127.0.0.1", "-p", str(gateway.port_of(1)), "--cafile", str(certificates / "ours.crt")]
    done = subprocess.run(["mosquitto_pub", *where, "-t", "a", "-m", "x", "-q", "1"], timeout=20, check=False)
    assert done.returncode == 0
    for version in (3, 4, 5):
        with (
            socket.create_connection(("127.0.0.1", gateway.port_of(1)), 10) as bare,
            trusting(certificates).wrap_socket(bare, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(p.connect(version, b"tls").packet)
            assert secure.recv(100)[:1] == b"\x20"


def test_plain_mqtt_at_a_tls_listener_ends_that_connection_only(gateway: Gateway) -> None:
    with RawClient(gateway.port_of(1)) as client:
        client.send(p.connect(4, b"plain").packet)
        client.packet()
        assert client.is_closed()
    wait_until(lambda: gateway.metric('hanse_gateway_refused_total{reason="tls"}') >= 1, "the refusal is counted")


@pytest.mark.parametrize(("listener", "path"), [(2, "/mqtt"), (3, "/there")])
def test_packets_may_span_frames_and_share_one(gateway: Gateway, certificates: Path, listener: int, path: str) -> None:
    large = p.publish(b"w", bytes(2_000_000))
    packets = p.connect(5, b"ws%d" % listener).packet + p.subscribe(1, (b"w", 0))
    with websocket(gateway, certificates, listener, path) as client:
        assert client.subprotocol == "mqtt"
        for byte in packets:
            client.send(bytes((byte,)))
        got = b""
        while len(got) < 5 or got.count(b"\x90\x04\0\x01\0\0") == 0:
            got += bytes(client.recv(10))  # type: ignore[arg-type]
        # One message in many fragments, and a packet in several messages.
        client.send(large[k : k + 60_000] for k in range(0, len(large), 60_000))
        client.send(large[:1_000_000])
        client.send(large[1_000_000:] + b"\xc0\x00")
        got = b""
        while len(got) < 2 * len(large) + 2:
            got += bytes(client.recv(10))  # type: ignore[arg-type]
        assert got == large + large + b"\xd0\x00" or got == large + b"\xd0\x00" + large
        assert client.ping().wait(10)
        client.send(p.disconnect())
        with pytest.raises(ConnectionClosed):
            client.recv(10)


def test_web_pages_of_other_origins_and_wrong_paths_are_refused(gateway: Gateway) -> None:
    url = f"ws://127.0.0.1:{gateway.port_of(2)}"
    for origin, path, status in (
        ("https://evil.example", "/mqtt", 403),
        ("https://pages.example", "/other", 404),
    ):
        with pytest.raises(InvalidStatus) as refused:
            connect(url + path, subprotocols=[MQTT], origin=Origin(origin))
        assert refused.value.response.status_code == status
    with connect(url + "/mqtt", subprotocols=[MQTT], origin=Origin("https://pages.example")):
        pass
    with pytest.raises((InvalidStatus, NegotiationError)):
        connect(url + "/mqtt", subprotocols=[Subprotocol("chat")])


def test_wrong_frames_close_their_connection_only(gateway: Gateway, certificates: Path) -> None:
    with websocket(gateway, certificates, 2) as other:
        other.send(p.connect(4, b"other").packet)
        assert other.recv(10) == b"\x20\x02\0\0"
        for sent, code in (("text", 1003), (bytes(20_000), 1009)):
            with websocket(gateway, certificates, 2) as client:
                client.send(sent)
                with pytest.raises(ConnectionClosed):
                    client.recv(10)
                assert client.close_code == code
        with RawClient(gateway.port_of(2)) as raw:
            raw.send(b"GET /mqtt HTTP/1.1\r\nX: " + b"a" * 20_000)
            assert raw.is_closed()
        with RawClient(gateway.port_of(2)) as raw:
            raw.send(p.connect(4, b"no-http").packet)
            raw.packet()
        with RawClient(gateway.port_of(2)) as silent:
            assert silent.is_closed(), "the handshake has the deadline of CONNECT"
        other.send(b"\xc0\x00")
        assert other.recv(10) == b"\xd0\x00"


def test_a_broker_by_tls_and_by_unix_socket_and_from_several_addresses(certificates: Path, tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.sock"
    tls = [
        f"cafile {certificates}/ours.crt",
        f"certfile {certificates}/broker.crt",
        f"keyfile {certificates}/broker.key",
    ]
    with ExitStack() as stack:
        secure = stack.enter_context(Mosquitto(*tls))
        local = stack.enter_context(Mosquitto(f"listener 0 {path}", "allow_anonymous true"))
        wait_until(path.exists, "the socket")
        plain = stack.enter_context(Mosquitto())
        for broker, url, words in (
            (secure, f"mqtts://localhost:{secure.port}", ("--broker-ca-file", str(certificates / "ours.crt"))),
            (local, f"unix:{path}", ()),
            (plain, f"mqtt://127.0.0.1:{plain.port}",
             ("--source-address", "127.0.0.2", "--source-address", "127.0.0.3")),
        ):  # fmt: skip
            with Gateway(tmp_path / str(broker.port), f"x={url}", words=words) as gateway:
                clients = [stack.enter_context(RawClient(gateway.port)) for _ in range(4)]
                for k, client in enumerate(clients):
                    client.send(p.connect(5, b"c%d" % k).packet)
                    assert client.packet()[0] == 0x20
        assert "New connection from 127.0.0.2" in plain.log
        assert "New connection from 127.0.0.3" in plain.log
        strangers = ("--broker-ca-file", str(certificates / "strangers.crt"))
        with Gateway(tmp_path / "wrong", f"x=mqtts://localhost:{secure.port}", words=strangers) as gateway:
            assert gateway.page("/healthz")[0] == 503
            assert "check broker_ca_file" in gateway.log


def test_headers_count_from_listed_addresses_only(broker: Mosquitto, certificates: Path, tmp_path: Path) -> None:
    words = ("--proxy-from", "127.0.0.2/32", "--connect-timeout", "3s", "--connections-per-address-max", "2",
             "--cert-file", str(certificates / "server.crt"), "--key-file", str(certificates / "server.key"),
            )  # fmt: skip
    listen = ("mqtt://127.0.0.1:0", "mqtts://127.0.0.1:0")
    header = b"PROXY TCP4 192.0.2.7 198.51.100.1 51234 1883\r\n"
    hello = p.connect(5, b"behind").packet
    with (
        Gateway(tmp_path, f"mqtt://127.0.0.1:{broker.port}", words=words, listen=listen) as gateway,
        ExitStack() as stack,
    ):

        def opened(source: str, listener: int = 0) -> socket.socket:
            place = ("127.0.0.1", gateway.port_of(listener))
            return stack.enter_context(socket.create_connection(place, 10, (source, 0)))

        def answer(source: str, sent: bytes) -> bytes:
            one = opened(source)
            one.sendall(sent)
            try:
                return one.recv(4)
            except ConnectionResetError:
                return b""

        # Not listed: its header is not MQTT. Listed: without a header it has no address.
        assert answer("127.0.0.1", header + hello) == b""
        assert answer("127.0.0.2", hello) == b""
        assert answer("127.0.0.1", hello)[:1] == b"\x20"
        assert answer("127.0.0.2", header + p.connect(5, b"b1").packet)[:1] == b"\x20"
        assert answer("127.0.0.2", v2("192.0.2.7") + p.connect(5, b"b2").packet)[:1] == b"\x20"
        # The limit per address counts the client's address, not the balancer's.
        assert answer("127.0.0.2", v2("192.0.2.7") + p.connect(5, b"b3").packet)[3] == 0x97
        assert answer("127.0.0.2", v2("192.0.2.8") + p.connect(5, b"b4").packet)[:1] == b"\x20"
        # The gateway waits for a header that never ends as long as for CONNECT.
        slow = opened("127.0.0.2")
        slow.sendall(header[:20])
        assert slow.recv(10) == b""
        # The header comes before TLS, and may share a segment with it.
        bare = opened("127.0.0.2", 1)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = trusting(certificates).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            secure.do_handshake()
        bare.sendall(v2("192.0.2.9") + outgoing.read())
        incoming.write(bare.recv(65536))
        secure.do_handshake()
        secure.write(p.connect(5, b"b5").packet)
        bare.sendall(outgoing.read())
        got = b""
        while not got:
            incoming.write(bare.recv(65536))
            try:
                got = secure.read(4)
            except ssl.SSLWantReadError:
                continue
        assert got[0] == 0x20
        refused = 'hanse_gateway_refused_total{reason="%s"}'
        assert gateway.metric(refused % "proxy_header") == 1
        assert gateway.metric(refused % "connect_timeout") >= 1
        assert gateway.metric(refused % "connections_per_address") == 1


def test_a_listener_may_want_certificates_and_listen_by_ipv6(
    broker: Mosquitto, certificates: Path, tmp_path: Path
) -> None:
    words = ("--cert-file", str(certificates / "server.crt"), "--key-file", str(certificates / "server.key"),
             "--ca-file", str(certificates / "ours.crt"))  # fmt: skip
    listen = ("mqtts://127.0.0.1:0", "mqtt://[::1]:0")
    with Gateway(tmp_path, f"b=mqtt://127.0.0.1:{broker.port}", words=words, listen=listen) as gateway:
        for name, is_admitted in (("broker", True), ("stranger", False), (None, False)):
            context = trusting(certificates)
            if name is not None:
                context.load_cert_chain(certificates / f"{name}.crt", certificates / f"{name}.key")
            got = b""
            # In TLS 1.3 a client learns of the refusal with its first read.
            with (
                suppress(ssl.SSLError, ConnectionResetError),
                socket.create_connection(("127.0.0.1", gateway.port_of(0)), 10) as bare,
                context.wrap_socket(bare, server_hostname="127.0.0.1") as secure,
            ):
                secure.sendall(p.connect(5, b"certified").packet)
                got = secure.recv(1)
            assert got == (b"\x20" if is_admitted else b""), name
        with socket.create_connection(("::1", gateway.port_of(1)), 10) as plain:
            plain.sendall(p.connect(5, b"six").packet)
            assert plain.recv(1) == b"\x20"
