"""The second session of a member, at a real broker and at one that refuses it."""

import asyncio
import os
import signal
from typing import Any

import pytest
from tests.brokers import Mosquitto
from tests.client.referrer import Referrer
from tests.client.stories import run, until
from tests.gateway import packets as p

from hanse.client import Client
from hanse.errors import RemoteError, Unavailable
from hanse.gateway.session.publication import read_publish
from hanse.gateway.share.link import ShareLink

pytestmark = pytest.mark.processes


class Member:
    """Reports of a second session."""

    def __init__(self, port: int, **connect: Any) -> None:
        self.got: list[bytes] = []
        self.lost: list[ShareLink] = []
        self.port = port
        self.link = ShareLink("b", p.connect(**connect), b"me", self, self._take, self._lose)

    async def dial(self) -> ShareLink:
        await asyncio.get_running_loop().create_connection(lambda: self.link, "127.0.0.1", self.port)
        await self.link.wait_accepted()
        return self.link

    def _take(self, link: ShareLink, packet: bytes, qos: int, broker_id: int) -> None:
        self.got.append(read_publish(packet, 5).payload)
        if qos:
            link.acknowledge(0x40 if qos == 1 else 0x50, broker_id, 0)

    def _lose(self, link: ShareLink) -> None:
        self.lost.append(link)


def test_it_is_clean_without_a_will_and_under_another_id() -> None:
    async def story() -> None:
        async with Referrer(0x87, None) as server:
            member = Member(server.port, clean=False, will=(b"w", b"gone", 1), properties=b"\x11\x00\x00\x00\x64")
            with pytest.raises(RemoteError, match="ACL"):
                await member.dial()
            (connect,) = server.connects
            assert connect.client_id == "me~share"
            assert connect.clean_start
            assert connect.will is None
            assert (connect.session_expiry_interval, connect.topic_alias_max) == (0, 0)
            assert member.lost == [member.link]

    run(story)


def test_it_subscribes_gets_messages_and_unsubscribes() -> None:
    async def story() -> None:
        with Mosquitto() as broker:
            member = Member(broker.port)
            link = await member.dial()
            assert await link.subscribe([(b"$share/g/a/#", 2), (b"$share/g/b", 1)], 7) == [2, 1]
            async with Client(broker.url) as publisher:
                for qos in (0, 1, 2):
                    await publisher.publish("a/1", str(qos), qos=qos)
                await until(lambda: len(member.got) == 3, "three messages")
                assert await link.unsubscribe([b"$share/g/a/#"]) == [0]
                await publisher.publish("a/1", "late")
                await publisher.publish("b", "last")
                await until(lambda: len(member.got) == 4, "one more")
            assert member.got == [b"0", b"1", b"2", b"last"]
            link.close()
            assert member.lost == [member.link]
            with pytest.raises(Unavailable):
                await link.subscribe([(b"$share/g/c", 1)], 0)

    run(story)


def test_it_pings_and_gives_up_a_silent_broker() -> None:
    async def story() -> None:
        with Mosquitto() as broker:
            member = Member(broker.port, keep_alive_s=1)
            link = await member.dial()
            loop = asyncio.get_running_loop()
            until_s = loop.time() + 2.5
            while loop.time() < until_s:
                link.tick(loop.time())
                await asyncio.sleep(0.1)
            assert member.lost == []
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                while len(member.lost) < 1:
                    link.tick(loop.time())
                    await asyncio.sleep(0.1)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            assert member.lost == [member.link]

    run(story)
