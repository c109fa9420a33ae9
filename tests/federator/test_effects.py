"""Effects of the protocol, carried out by real modules: a state directory, a custodian, a host session, links."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from hanse.federator.crossing import Crossing
from hanse.federator.custodian import Custodian
from hanse.federator.effects import Effects
from hanse.federator.host import HostSession
from hanse.federator.linking import make_links
from hanse.federator.links_by_broker import BrokerLinkBook
from hanse.federator.metrics import LinkTraffic
from hanse.federator.settings import FederatorSettings
from hanse.federator.store import StateDirectory
from hanse.federator.wanted import Wanted
from hanse.mqtt.client import ClientSettings
from hanse.mqtt.publication import encode
from hanse.protocol.effects import (
    Acknowledge,
    Deliver,
    Discard,
    Effect,
    Emit,
    Fetch,
    SendRuns,
    Store,
    StoreEpoch,
    SubscribeHost,
    UnsubscribeHost,
)
from hanse.protocol.events import Event, Fetched, Stored
from hanse.protocol.messages import HOST, Run

RUN = Run(3, 1, 0, 1, 1, 1, ("g",), encode("t", b"x", qos=1))


def nothing(*_: object) -> None:
    pass


class Scene:
    def __init__(self, state: StateDirectory, crossing: Crossing, link: str) -> None:
        session = ClientSettings("mqtt://127.0.0.1:1", "hanse-federator-1")
        self.state = state
        self.events: list[Event] = []
        self.done: list[object] = []
        self.written: list[list[str]] = []
        self.groups = {"g"}
        self.custodian = Custodian(
            state.path, bytes_max=1 << 20, overflow="stop", step=self.events.append, counters=Counter()
        )
        self.host = HostSession(
            session,
            on_publications=nothing,
            on_internal=nothing,
            on_state=nothing,
            on_credit=nothing,
            journal=self.custodian.journal,
            ring=self.custodian.ring,
        )
        self.wanted = Wanted(
            self.host,
            crossing=crossing,
            groups=lambda: self.groups,
            write=lambda groups: self.written.append(sorted(groups)),
        )
        self.links = make_links(
            1,
            FederatorSettings(id=1, link=link),
            session,
            epoch=lambda: 5,
            admit=lambda _: None,
            on_link=nothing,
            on_frames=nothing,
            on_taken=nothing,
            on_double=nothing,
            client_id_at=lambda neighbour: f"hanse-federator-1-at-{neighbour}",
        )
        self.effects = Effects(
            links=self.links,
            custodian=self.custodian,
            wanted=self.wanted,
            state=state,
            sent=defaultdict(LinkTraffic),
            send_runs=lambda *words: self.done.append(("send", *words)),
            deliver=lambda *words: self.done.append(("deliver", *words)),
            finish_batch=lambda number: self.done.append(("finish", number)),
            tell=lambda event: self.done.append(("tell", event.name)),
        )

    def carry_out(self, *effects: Effect) -> None:
        self.effects.carry_out(effects)

    @property
    def subscribed(self) -> list[str]:
        return sorted(self.host._identifiers)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - several objects' state
                await asyncio.sleep(0.001)


def play(
    directory: Path, steps: Callable[[Scene], object], *, crossing: Crossing | None = None, link: str = "direct"
) -> None:
    async def all_steps() -> None:
        with StateDirectory(directory) as state:
            scene = Scene(state, crossing or Crossing(), link)
            result = steps(scene)
            if asyncio.iscoroutine(result):
                await result
            await scene.links.stop()
            scene.custodian.stop()

    asyncio.run(all_steps())


def test_an_epoch_is_on_disk_before_later_effects_follow_in_order(tmp_path: Path) -> None:
    def steps(scene: Scene) -> None:
        scene.carry_out(
            StoreEpoch(41),
            SendRuns(2, (RUN,), 7),
            Deliver((RUN,), 8),
            Acknowledge(HOST, (5, 6)),
            Acknowledge(2, (9,)),
            Emit("core_elected", group="g"),
        )
        assert scene.state.read_epoch() == 41
        assert scene.done == [
            ("send", 2, (RUN,), 7),
            ("deliver", [RUN], 8),
            ("finish", 5),
            ("finish", 6),
            ("tell", "core_elected"),
        ]

    play(tmp_path, steps)


def test_records_are_written_read_and_discarded(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.carry_out(Store(2, 0, ((RUN,),)))
        await scene.until(lambda: scene.events)
        assert scene.events == [Stored(2, 1)]
        scene.carry_out(Fetch(2, 0, 1))
        await scene.until(lambda: len(scene.events) == 2)
        assert scene.events[1] == Fetched(2, ((0, (RUN,)),), 1)
        assert scene.custodian.outbox.records == 1
        scene.carry_out(Discard(2, (0,)))
        assert scene.custodian.outbox.records == 0

    play(tmp_path, steps)


def test_groups_that_others_want_are_subscribed_to_under_local_names_and_stored(tmp_path: Path) -> None:
    def steps(scene: Scene) -> None:
        scene.wanted.save_if_changed()
        assert scene.written == []
        scene.carry_out(SubscribeHost("plants/7/a"), SubscribeHost("plants/+/a"), SubscribeHost("elsewhere"))
        assert scene.subscribed == ["a"]
        scene.wanted.save_if_changed()
        scene.wanted.save_if_changed()
        assert scene.written == [["g"]]
        scene.carry_out(UnsubscribeHost("plants/7/a"))
        assert scene.subscribed == ["a"], "another still leads to it"
        scene.carry_out(UnsubscribeHost("plants/+/a"))
        assert scene.subscribed == []
        scene.wanted.save()
        assert len(scene.written) == 2

    play(tmp_path, steps, crossing=Crossing(prefix="plants/7"))


def test_filters_that_are_always_wanted_are_subscribed_to_at_the_start(tmp_path: Path) -> None:
    def steps(scene: Scene) -> None:
        assert scene.subscribed == []
        scene.wanted.start()
        assert scene.subscribed == ["federated/#"]

    play(tmp_path, steps, crossing=Crossing(federated_prefix=True))


def test_links_by_brokers_learn_of_lost_and_leaving_neighbours(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        assert isinstance(scene.links, BrokerLinkBook)
        for neighbour in (4, 5, 6):
            await scene.links.add(neighbour, "mqtt://127.0.0.1:1")
            scene.links._neighbours[neighbour].owed[1] = 1
        scene.carry_out(
            Emit("neighbour_lost", neighbour=4), Emit("neighbour_left", neighbour=5), Emit("member_left", neighbour=6)
        )
        assert [scene.links.owed(neighbour) for neighbour in (4, 5, 6)] == [0, 0, 1]
        assert [scene.links._neighbours[neighbour].has_left for neighbour in (4, 5, 6)] == [False, True, False]
        assert len(scene.done) == 3

    play(tmp_path, steps, link="broker")
