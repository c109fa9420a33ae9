"""Credentials are checked at a real broker, seldom and without a trace."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.brokers import Mosquitto
from tests.gateway.test_redirect_live import hello

from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.front.connect import Connect, read_connect
from hanse.gateway.placement import Broker
from hanse.gateway.redirect import credentials as module
from hanse.gateway.redirect.credentials import ACCEPTED, BUSY, REFUSED, UNAVAILABLE, Credentials
from hanse.mqtt.tls import TlsSettings

pytestmark = [pytest.mark.processes, pytest.mark.anyio]


class Clock:
    """A clock that stands still until it is set."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    path = tmp_path_factory.mktemp("login") / "passwords"
    program = shutil.which("mosquitto_passwd")
    assert program, "mosquitto_passwd comes with mosquitto"
    subprocess.run([program, "-c", "-b", str(path), "anna", "secret"], check=True, capture_output=True)
    with Mosquitto(f"password_file {path}", anonymous=False) as broker:
        yield broker


@asynccontextmanager
async def checking(clock: Clock, rate: float = 100.0) -> AsyncIterator[Credentials]:
    made = Credentials(Dialler(TlsSettings()), rate=rate, timeout_s=20.0, clock=clock)
    try:
        yield made
    finally:
        await made.stop()


def login(name: bytes = b"anna", password: bytes = b"secret", client_id: bytes = b"c") -> Connect:
    return read_connect(hello(client_id, login=(name, password)))


async def test_a_verdict_is_kept_for_its_time_and_then_requested_again(mosquitto: Mosquitto) -> None:
    broker, clock = Broker("b", f"mqtt://127.0.0.1:{mosquitto.port}"), Clock()
    async with checking(clock) as credentials:
        good, bad = credentials.key(login()), credentials.key(login(password=b"wrong"))
        assert good != bad
        assert credentials.key(login(client_id=b"other")) == good
        assert credentials.known(good) == ""
        assert await credentials.check(good, login(), broker) == ACCEPTED
        assert await credentials.check(bad, login(password=b"wrong"), broker) == REFUSED
        assert (credentials.known(good), credentials.known(bad)) == (ACCEPTED, REFUSED)
        clock.now += module.REFUSED_S + 1
        assert (credentials.known(good), credentials.known(bad)) == (ACCEPTED, "")
        clock.now += module.ACCEPTED_S
        assert credentials.known(good) == ""


async def test_checks_are_limited_in_rate_and_shared(mosquitto: Mosquitto) -> None:
    broker, clock = Broker("b", f"mqtt://127.0.0.1:{mosquitto.port}"), Clock()
    async with checking(clock, rate=3) as credentials:
        names = [b"name%d" % k for k in range(5)]
        asked = [credentials.check(credentials.key(login(name)), login(name), broker) for name in names]
        assert await asyncio.gather(*asked) == [REFUSED] * 3 + [BUSY] * 2
        clock.now += 1
        same = [credentials.check(credentials.key(login()), login(), broker) for _ in range(20)]
        assert await asyncio.gather(*same) == [ACCEPTED] * 20
        assert credentials.checks == 4


async def test_a_broker_that_is_away_gives_no_verdict() -> None:
    async with checking(Clock()) as credentials:
        key = credentials.key(login())
        assert await credentials.check(key, login(), Broker("b", "mqtt://127.0.0.1:1")) == UNAVAILABLE
        assert credentials.known(key) == ""


async def test_the_broker_sees_a_fresh_id_and_a_clean_end(mosquitto: Mosquitto) -> None:
    broker = Broker("b", f"mqtt://127.0.0.1:{mosquitto.port}")
    async with checking(Clock()) as credentials:
        client = login(client_id=b"the-clients-own")
        assert await credentials.check(credentials.key(client), client, broker) == ACCEPTED
    async with asyncio.timeout(20):
        while "Received DISCONNECT from hanse-check-" not in mosquitto.log:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    assert "the-clients-own" not in mosquitto.log


async def test_no_credentials_are_kept(mosquitto: Mosquitto) -> None:
    broker = Broker("b", f"mqtt://127.0.0.1:{mosquitto.port}")
    async with checking(Clock()) as credentials:
        client = login(password=b"pass-phrase")
        await credentials.check(credentials.key(client), client, broker)
        assert "pass-phrase" not in repr(vars(credentials))
        assert len(credentials.key(login())) == 16
    async with checking(Clock()) as other:
        assert other.key(login()) != credentials.key(login()), "the hash has a key of its own in each process"
