"""A gateway's knowledge about topics, and the brokers that have them. It is a part of the supervisor's process.

Rules:

1. Answers name only brokers of the directory, even if a federator, a manager or a broker names others.
2. Groups come from the manager, or from the pages of federators (`groups = ID=URL`). Without a manager, brokers
   without such a page and without a federator are listened to if `discover` is on (`hanse.gateway.discovery`). With a
   manager every broker has a federator.
3. The last data of a source that does not answer is kept for `STALE_S`.
4. A client that has come back from a broker makes the gateway look again, if `discover` is on (figures 3 and 4 of the
   TD-MQTT paper). The client waits at most `LOOK_S` for that.
5. A broker's report about itself is a retained JSON object on `<vitals_topic>/<broker id>` at that broker: `{"load":
   0.4, "memory_free": 0.5, "battery": 0.9}`, each from 0 to 1, each optional.
"""

import asyncio
import json
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from hanse.errors import HanseError
from hanse.federator.manager_client import ManagerClient
from hanse.gateway.addresses import ListenAddress
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.brokers.directory import Directory
from hanse.gateway.discovery.listening import Credentials, listen
from hanse.gateway.discovery.topics import Topics
from hanse.gateway.discovery.watch import LOOK_S, TopicWatch
from hanse.gateway.placement import Broker, Ranking
from hanse.gateway.redirect.choice import Place, Vitals, Wish, rank
from hanse.gateway.redirect.groups import ROWS_MAX, Groups
from hanse.gateway.redirect.targets import parse_moved, parse_source, reference_of
from hanse.gateway.settings import GatewaySettings
from hanse.mqtt.reference import FILTER_NOT_ACCEPTED, SERVER_MOVED, USE_ANOTHER_SERVER
from hanse.mqtt.refusal import SERVER_BUSY
from hanse.protocol.topics import covers

_log = logging.getLogger(__name__)

STALE_S: Final = 60.0
ASK_S: Final = 5.0
# Federators or brokers that are asked at once.
AT_ONCE: Final = 16
VITALS_S: Final = 10.0
VITALS_FOR_S: Final = 1.0
HALF_S: Final = 60.0
# Stands for the manager where brokers are named.
MANAGER: Final = ""
_PAGE: Final = 1_000


class Knowledge:
    """Knowledge of one gateway about topics."""

    def __init__(self, settings: GatewaySettings, directory: Directory, dialler: Dialler) -> None:
        self.groups = Groups()
        self.topics = Topics(settings.discover_topics_max)
        self._settings = settings
        self._directory = directory
        self._dialler = dialler
        self._loop = asyncio.get_running_loop()
        self._moved = [parse_moved(text) for text in settings.redirect_moved]
        self._sources = dict(parse_source(text) for text in settings.groups)
        self._said_at: dict[str, float] = {}
        self._vitals: dict[str, tuple[float, Vitals]] = {}
        # Clients that were sent to each broker recently, and the time of the last count: halved every `HALF_S`.
        self._sent: dict[str, tuple[float, float]] = {}
        self._silent: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        credentials = Credentials(settings.probe_username, settings.probe_password)
        self._credentials = credentials
        self.watch = TopicWatch(
            self.topics,
            dialler,
            self._listened,
            credentials=credentials,
            interval_s=settings.discover_interval_s,
            listen_s=settings.discover_for_s,
            expiry_s=settings.discover_expiry_s,
        )

    def start(self) -> None:
        """Begin to ask and to listen."""
        if self._settings.manager:
            self._begin(self._ask_manager(), "groups")
        elif self._sources:
            self._begin(self._ask_for_groups(), "groups")
        if self._settings.vitals_topic:
            self._begin(self._read_vitals(), "vitals")
        if self._settings.discover:
            self.watch.start()

    def _begin(self, work: Any, name: str) -> None:  # noqa: ANN401 - a coroutine
        self._tasks.append(self._loop.create_task(work, name=name))

    async def stop(self) -> None:
        """End all that is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.watch.stop()

    async def _each(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run all of them, a few at a time."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one(part: Coroutine[Any, Any, None]) -> None:
            async with places:
                await part

        await asyncio.gather(*map(one, work))

    def _listened(self) -> list[Broker]:
        if self._settings.manager:
            return []
        return [
            view.broker
            for view in self._directory.members
            if view.verdict == "up" and not view.broker.federator and view.broker.id not in self._sources
        ]

    # --- sources ------------------------------------------------------------------------------------------------------

    async def _ask_for_groups(self) -> None:
        clients = {one: ManagerClient([url], self._settings.manager_ca_file) for one, url in self._sources.items()}
        while True:
            await self._each([self._ask_one(one, client) for one, client in clients.items()])
            await asyncio.sleep(self._settings.groups_interval_s)

    async def _ask_one(self, broker_id: str, client: ManagerClient) -> None:
        now = self._loop.time()
        try:
            document = await client.ask("GET", "/groups", shown=None, timeout_s=ASK_S)
        except HanseError as error:
            if broker_id not in self._silent:
                self._silent.add(broker_id)
                _log.warning("a federator shows no groups", extra={"broker": broker_id, "why": str(error)})
            if now - self._said_at.get(broker_id, float("-inf")) > STALE_S:
                self.groups.forget(broker_id)
            return
        self._silent.discard(broker_id)
        self._said_at[broker_id] = now
        self.groups.take_federator(broker_id, document)

    async def _ask_manager(self) -> None:
        settings = self._settings
        client = ManagerClient(settings.manager, settings.manager_ca_file)

        async def get(path: str) -> dict[str, Any]:
            return await client.ask("GET", path, shown=settings.manager_token, timeout_s=ASK_S)

        while True:
            now = self._loop.time()
            try:
                topology = await get("/api/v1/topology")
                rows: list[object] = []
                for offset in range(0, ROWS_MAX, _PAGE):
                    document = await get(f"/api/v1/groups?offset={offset}&limit={_PAGE}")
                    found = document.get("groups")
                    if not isinstance(found, list) or not found:
                        break
                    rows += found
            except HanseError as error:
                if MANAGER not in self._silent:
                    self._silent.add(MANAGER)
                    _log.warning("the manager shows no groups", extra={"why": str(error)})
                if now - self._said_at.get(MANAGER, float("-inf")) > STALE_S:
                    self.groups.take_manager([], [], {})
            else:
                self._silent.discard(MANAGER)
                self._said_at[MANAGER] = now
                self.groups.take_manager([view.broker.id for view in self._directory.views], rows, topology)
            await asyncio.sleep(settings.groups_interval_s)

    async def _read_vitals(self) -> None:
        while True:
            views = [view for view in self._directory.members if view.verdict == "up"]
            await self._each([self._read_vitals_of(view.broker) for view in views])
            await asyncio.sleep(VITALS_S)

    async def _read_vitals_of(self, broker: Broker) -> None:
        topic = f"{self._settings.vitals_topic}/{broker.id}"
        if "+" in topic or "#" in topic:
            return
        came = asyncio.Event()

        def on_payload(payload: bytes) -> None:
            vitals = parse_vitals(payload)
            if vitals is not None:
                self._vitals[broker.id] = (self._loop.time(), vitals)
                self._sent.pop(broker.id, None)
            came.set()

        await listen(
            self._dialler,
            broker,
            lambda *_: None,
            on_payload=on_payload,
            filters=[topic],
            for_s=VITALS_FOR_S,
            bytes_max=65_536,
            credentials=self._credentials,
            enough=came,
        )

    # --- the answer ---------------------------------------------------------------------------------------------------

    def needs_look(self, wish: Wish) -> bool:
        """Return whether the brokers should be checked again for this client (rule 4)."""
        return bool(wish.came_from and wish.filters) and self._settings.discover

    async def where(self, wish: Wish, listener: ListenAddress) -> dict[str, Any]:
        """Return the place of a client's topics, after another look."""
        await self.watch.look(wish.filters, LOOK_S)
        return self.where_now(wish, listener)

    def where_now(self, wish: Wish, listener: ListenAddress) -> dict[str, Any]:
        """Return the place of a client's topics: `code`, and with 0x9C and 0x9D `broker` and `reference`."""
        wish = wish._replace(moved_to=self._moved_to(wish.filters))
        if wish.filters and self._settings.redirect_unknown == "refuse" and not self._knows(wish):
            return {"code": FILTER_NOT_ACCEPTED}
        ranking, references = self.rank(wish, listener)
        chosen = ranking.chosen
        if chosen is None:
            return {"code": SERVER_BUSY}
        now = self._loop.time()
        self._sent[chosen.id] = (now, self._sent_to(chosen.id, now) + 1)
        code = SERVER_MOVED if chosen.id == wish.moved_to else USE_ANOTHER_SERVER
        return {"code": code, "broker": chosen.id, "reference": references[chosen.id]}

    def wish(self, client: bytes, filters: tuple[str, ...], *, is_publisher: bool) -> Wish:
        """Return the request of a client that has never been here."""
        return Wish(client, filters, is_publisher, "", self._moved_to(filters))

    def rank(self, wish: Wish, listener: ListenAddress) -> tuple[Ranking, dict[str, str]]:
        """Return the ranking for a client, and its address for each broker."""
        now = self._loop.time()
        presences = [self.topics.presence(one) for one in wish.filters]
        places: list[Place] = []
        references: dict[str, str] = {}
        for view in self._directory.members:
            broker = view.broker
            reference, obstacle = reference_of(broker, listener)
            references[broker.id] = reference
            at, vitals = self._vitals.get(broker.id, (0.0, Vitals()))
            places.append(
                Place(
                    view,
                    reference,
                    obstacle,
                    standings=[self.groups.standing(broker.id, one) for one in wish.filters],
                    presences=[found.get(broker.id) for found in presences],
                    vitals=vitals if now - at < STALE_S else Vitals(),
                    sent=round(self._sent_to(broker.id, now)),
                )
            )
        return rank(wish, places), references

    def _sent_to(self, broker_id: str, now: float) -> float:
        """Return how many clients were sent to a broker recently.

        Without the decay a broker that joins later would get every client until it has caught up.
        """
        at, count = self._sent.get(broker_id, (now, 0.0))
        return count * float(0.5 ** ((now - at) / HALF_S))

    def _knows(self, wish: Wish) -> bool:
        """Return whether any broker of the set has any of the topics."""
        ids = [view.broker.id for view in self._directory.members]
        return bool(wish.moved_to) or any(
            any(
                (standing := self.groups.standing(one, filter_)) is not None and (standing.role or wish.is_publisher)
                for one in ids
            )
            or any(one in found for found in [self.topics.presence(filter_)] for one in ids)
            for filter_ in wish.filters
        )

    def _moved_to(self, filters: Sequence[str]) -> str:
        """Return the broker that all of a client's topics have moved to for good; empty if there is none."""
        found = {
            next((broker_id for wide, broker_id in self._moved if wide == one or covers(wide, one)), "")
            for one in filters
        }
        return found.pop() if len(found) == 1 else ""


def parse_vitals(payload: bytes) -> Vitals | None:
    """Return a broker's report; None if it cannot be read. Values out of range are left out."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    values = [document.get(name) for name in Vitals._fields]
    return Vitals(
        *(
            float(one) if isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one <= 1 else None
            for one in values
        )
    )
