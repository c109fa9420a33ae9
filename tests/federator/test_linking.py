"""Links of a federator, and the neighbours that it accepts."""

import asyncio
from collections.abc import Callable

from hanse.federator.linking import Links, link_up, make_links, properties, refusal, unlinked
from hanse.federator.links import LinkBook
from hanse.federator.links_by_broker import BrokerLinkBook
from hanse.federator.settings import FederatorSettings
from hanse.mqtt.client import ClientSettings
from hanse.mqtt.urls import Address, parse


def links_of(
    settings: FederatorSettings,
    admit: Callable[[int], str | None] = lambda _: None,
    on_link: Callable[[int, bool], None] = lambda *_: None,
    identity: int = 1,
) -> Links:
    return make_links(
        identity,
        settings,
        ClientSettings("mqtt://127.0.0.1:1", "hanse-federator-1"),
        epoch=lambda: 5,
        admit=admit,
        on_link=on_link,
        on_frames=lambda *_: None,
        on_taken=lambda *_: None,
        on_double=lambda *_: None,
        client_id_at=lambda neighbour: f"hanse-federator-1-at-{neighbour}",
    )


def test_a_federator_of_another_protocol_is_refused_with_both_versions() -> None:
    assert refusal(7, properties()) is None
    assert refusal(7, {"protocol": "0"}) == f"federator 7 speaks protocol '0', this one {properties()['protocol']}"
    assert "None" in str(refusal(7, {}))


def test_a_neighbour_is_admitted_by_its_version_and_by_the_manager() -> None:
    def admit(identity: int) -> str | None:
        return None if identity == 2 else f"federator {identity} is unknown"

    links = links_of(FederatorSettings(id=1), admit)
    assert isinstance(links, LinkBook)
    assert links._admit(2, properties()) is None
    assert links._admit(3, properties()) == "federator 3 is unknown"
    assert "speaks protocol" in str(links._admit(2, {}))


def test_links_by_brokers_use_the_own_broker_and_the_neighbours_in_the_settings() -> None:
    async def steps() -> None:
        settings = FederatorSettings(id=1, link="broker", neighbour=("2=mqtt://127.0.0.1:1",))
        links = links_of(settings)
        assert isinstance(links, BrokerLinkBook)
        heard: list[str] = []
        await link_up(links, settings, heard.extend)
        assert heard == links.filters()
        assert heard
        assert list(links._neighbours) == [2]
        await links.stop()

    asyncio.run(steps())


def test_two_federators_link_if_one_listens_and_the_other_dials() -> None:
    """Link over loopback, on a port that the kernel chooses."""

    async def steps() -> None:
        changes: list[tuple[int, bool]] = []
        came = asyncio.Event()

        def note(neighbour: int, is_up: bool) -> None:
            changes.append((neighbour, is_up))
            came.set()

        listening = FederatorSettings(id=1, link_listen="mqtt://127.0.0.1:0")
        one = links_of(listening, on_link=note)
        assert isinstance(one, LinkBook)
        await link_up(one, listening, lambda _: None)
        assert one._listener is not None
        dialling = FederatorSettings(id=2, neighbour=(f"mqtt://127.0.0.1:{one._listener.port}",))
        other = make_links(
            2,
            dialling,
            ClientSettings("mqtt://127.0.0.1:1", "hanse-federator-2"),
            epoch=lambda: 5,
            admit=lambda _: None,
            on_link=lambda *_: None,
            on_frames=lambda *_: None,
            on_taken=lambda *_: None,
            on_double=lambda *_: None,
            client_id_at=lambda neighbour: f"hanse-federator-1-at-{neighbour}",
        )
        await link_up(other, dialling, lambda _: None)
        async with asyncio.timeout(10):
            await came.wait()
            assert changes == [(2, True)]
            came.clear()
            await other.stop()
            await came.wait()
        assert changes == [(2, True), (2, False)]
        await one.stop()

    asyncio.run(steps())


def test_a_neighbour_by_address_is_linked_whichever_side_dialled() -> None:
    """Both sides dial: the larger one's connection is refused, and it has the smaller one's."""

    async def steps() -> None:
        one, two = links_of(FederatorSettings(id=1)), links_of(FederatorSettings(id=2), identity=2)
        assert isinstance(one, LinkBook)
        assert isinstance(two, LinkBook)
        urls = [await book.listen(Address("127.0.0.1", 0)) for book in (one, two)]
        port = parse(urls[1]).port
        of_one = FederatorSettings(id=1, neighbour=(urls[1],))
        of_two = FederatorSettings(id=2, neighbour=(urls[0], "9=mqtt://127.0.0.1:1"))
        two_is_named = FederatorSettings(id=1, neighbour=(f"2={urls[1]}",))
        try:
            assert unlinked(one, FederatorSettings(id=1)) == []
            assert unlinked(one, of_one) == [f"127.0.0.1:{port}"]
            one.dial(urls[1])
            async with asyncio.timeout(10):
                while unlinked(one, of_one):  # noqa: ASYNC110 - the state of another object
                    await asyncio.sleep(0.01)
                two.dial(urls[0])
                while unlinked(two, of_two) != ["9"]:  # noqa: ASYNC110 - the state of another object
                    await asyncio.sleep(0.01)
                assert one.is_dialled(2)
                assert unlinked(one, two_is_named) == []
                assert unlinked(one, two_is_named, silent=[2]) == ["2"]
                await one.stop()
                while len(unlinked(two, of_two)) < 2:  # noqa: ASYNC110 - the state of another object
                    await asyncio.sleep(0.01)
        finally:
            await one.stop()
            await two.stop()

    asyncio.run(steps())
