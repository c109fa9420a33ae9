"""The supervisor: it owns the listening sockets, judges the brokers, keeps drains, and serves the pages.

Rules:

1. The sockets outlive the workers. Each worker gets its own socket per listener (SO_REUSEPORT), so that the kernel
   spreads the clients; connections that a crashed worker had not accepted wait for its successor.
2. Verdicts are made here, once for all workers, and sent as a whole directory.
3. A drain is written to disk before it takes effect, so that it survives a restart.
4. On SIGTERM `/healthz` answers 503 for `shutdown_grace` while clients are still served. Then the listeners close and
   the clients learn that the server shuts down. A second signal shortens the grace.
"""

import asyncio
import dataclasses
import json
import logging
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from hanse.errors import LocalError
from hanse.federator.manager_client import ManagerClient
from hanse.gateway.addresses import ListenAddress, parse_listen
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.brokers.directory import Directory
from hanse.gateway.brokers.health import suspects_to_judge
from hanse.gateway.brokers.plan import Planner, now_s
from hanse.gateway.brokers.probe import Probe
from hanse.gateway.discovery.brokers import brokers_found, scan
from hanse.gateway.explain import explain, rows
from hanse.gateway.placement import Broker
from hanse.gateway.redirect.choice import Wish
from hanse.gateway.redirect.knowledge import Knowledge
from hanse.gateway.redirect.redirector import Redirector
from hanse.gateway.session import BrokerLimits, limits_of_connack
from hanse.gateway.settings import GatewaySettings
from hanse.gateway.traffic import added
from hanse.mqtt.refusal import Refusal
from hanse.mqtt.tls import TlsSettings

_log = logging.getLogger(__name__)

# Time for which the start waits for the first answers of the brokers.
FIRST_S: Final = 2.0
BACKLOG: Final = 4096
RUNNING_FILE: Final = "gateway.json"
DRAINS_FILE: Final = "drains.json"
SET_FILE: Final = "brokers.json"


class SetOnDisk(NamedTuple):
    """The brokers among which clients are placed, and those among which they were placed before."""

    members: list[Broker]
    former: list[Broker]


class WorkerHandle(Protocol):
    """A worker, in this process or another."""

    @property
    def restarts(self) -> int:
        """Return how often it was replaced."""

    def send(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - whatever JSON can carry
        """Send it a message."""

    def heard(self) -> dict[str, float]:
        """Return when it last heard each broker."""

    def count(self) -> dict[str, Any]:
        """Return what it counted."""

    async def stop(self) -> None:
        """End its clients, and the worker itself."""


class Supervisor:
    """Knowledge and decisions of a gateway.

    Args:
        listeners: its listeners, with the actual ports.
    """

    def __init__(self, settings: GatewaySettings, listeners: list[ListenAddress]) -> None:
        self.settings = settings
        self.listeners = listeners
        self.directory = Directory(settings.site, is_sole=not settings.manager)
        self.workers: list[WorkerHandle] = []
        self.limits: dict[str, BrokerLimits] = {}
        self.is_ending = False
        # Verdicts that were not carried out because more than half of the brokers were suspect.
        self.doubts = 0
        self.verdicts: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        broker_tls = TlsSettings(settings.broker_ca_file, settings.broker_cert_file, settings.broker_key_file)
        self._dialler = Dialler(broker_tls, settings.source_address, settings.dial_timeout_s)
        self._probes: dict[str, Probe] = {}
        self._judging: asyncio.Task[None] | None = None
        self._is_doubting = False
        # The latest request of an operator for each broker: drained or not, rate, and time.
        self._drains: dict[str, tuple[bool, float | None, float]] = {}
        # Counts of workers that have ended, and open connections by worker and address.
        self._gone: dict[str, Any] = {}
        self._opened: dict[int, dict[str, int]] = {}
        self.knowledge = None
        if Redirector.is_wanted(settings):
            self.knowledge = Knowledge(settings, self.directory, self._dialler)
        self._looks: set[asyncio.Task[None]] = set()
        self._is_started = False
        # The set of brokers as it is on disk, and as it was there at the start.
        self._set: SetOnDisk | None = None
        self._last_set: SetOnDisk | None = None
        self.planner = self._make_planner() if settings.manager else None

    def _make_planner(self) -> Planner:
        settings = self.settings
        return Planner(
            ManagerClient(settings.manager, settings.manager_ca_file),
            settings.manager_token,
            settings.gateway_id or f"gateway-{secrets.token_hex(4)}",
            self.directory,
            self._drains,
            settings.state_dir,
            interval_s=settings.manager_interval_s,
            on_changed=self._on_plan,
            write=write_file,
        )

    def _on_plan(self) -> None:
        """Watch the brokers of a new plan, and tell the workers."""
        if not self._is_started:
            return
        write_drains(self.settings.state_dir, self._drains)
        self._remember_set(self._set or self._last_set)
        self._watch()
        self._tell()

    def _remember_set(self, last: SetOnDisk | None) -> None:
        """Keep the set of brokers and the one before it on disk, so that sessions are found over a restart."""
        members = [view.broker for view in self.directory.members]
        if not members:
            return
        if last is not None and not self.directory.former_set:
            is_same = {one.id for one in last.members} == {one.id for one in members}
            self.directory.former_set = last.former if is_same else last.members
        now = SetOnDisk(members, self.directory.former_set)
        if now != self._set:
            self._set = now
            rows = {
                "members": [one.as_tuple() for one in now.members],
                "former": [one.as_tuple() for one in now.former],
            }
            write_file(self.settings.state_dir / SET_FILE, rows)

    def _drained(self) -> list[str]:
        return [broker_id for broker_id, (is_drained, _, _) in self._drains.items() if is_drained]

    # --- beginning and end --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Check the brokers, and wait a moment for their first answers."""
        self._drains.update(read_drains(self.settings.state_dir))
        if self.planner is not None:
            await self.planner.start(FIRST_S)
        else:
            brokers = await self._scan() if self.settings.scan else self.settings.brokers()
            self.directory.update(0, brokers, drained=self._drained())
        self._last_set = read_set(self.settings.state_dir)
        self._remember_set(self._last_set)
        for broker_id in self._drained():
            _log.warning("a broker is drained since before this start", extra={"broker": broker_id})
        self._watch()
        self._is_started = True
        self._judging = self._loop.create_task(self._judge(), name="judge brokers")
        if self.knowledge is not None:
            self.knowledge.start()
        until = self._loop.time() + FIRST_S
        for probe in self._probes.values():
            # At most FIRST_S in all: a broker that is silent is judged later.
            while probe.is_unknown and self._loop.time() < until:  # noqa: ASYNC110 - once; it can learn from many sources
                await asyncio.sleep(0.01)

    async def _scan(self) -> list[Broker]:
        """Return the brokers that answer in the configured ranges.

        Raises:
            LocalError: there are none.
        """
        targets = self.settings.scan_targets()
        found = brokers_found(await scan(targets))
        if not found:
            raise LocalError(
                f"No broker answered at any of {len(targets)} addresses and ports; check scan and scan_port, or list "
                "the brokers."
            )
        _log.info("brokers found", extra={"tried": len(targets), "brokers": [one.id for one in found]})
        return found

    def _watch(self) -> None:
        """Begin to watch new brokers; stop watching those that are gone or have another address."""
        settings = self.settings
        known = {view.broker.id: view.broker for view in self.directory.views}
        for broker_id, probe in list(self._probes.items()):
            if known.get(broker_id) != probe.broker:
                del self._probes[broker_id]
                self.limits.pop(broker_id, None)
                task = self._loop.create_task(probe.stop(), name="stop watching")
                self._looks.add(task)
                task.add_done_callback(self._looks.discard)
        for broker in known.values():
            if broker.id in self._probes:
                continue
            probe = self._probes[broker.id] = Probe(
                broker,
                self._dialler,
                f"hanse-health-{secrets.token_hex(8)}",
                username=settings.probe_username,
                password=settings.probe_password,
                interval_s=settings.health_interval_s,
                timeout_s=settings.health_timeout_s,
                on_changed=self._on_changed,
                on_connack=self._on_connack,
                clock=self._loop.time,
            )
            probe.start()

    async def stop(self) -> None:
        """End the workers and the health sessions."""
        await asyncio.gather(*(worker.stop() for worker in self.workers))
        for look in list(self._looks):
            look.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)
        if self.planner is not None:
            await self.planner.stop()
        if self.knowledge is not None:
            await self.knowledge.stop()
        if self._judging is not None:
            self._judging.cancel()
            await asyncio.gather(self._judging, return_exceptions=True)
        await asyncio.gather(*(probe.stop() for probe in self._probes.values()))
        (self.settings.state_dir / RUNNING_FILE).unlink(missing_ok=True)

    def write_running(self, metrics_url: str) -> None:
        """Write the gateway's address for the commands of this machine."""
        document = {
            "pid": os.getpid(),
            "metrics": metrics_url,
            "listeners": [one.url() for one in self.listeners],
        }
        write_file(self.settings.state_dir / RUNNING_FILE, document)

    # --- workers ------------------------------------------------------------------------------------------------------

    def add(self, worker: WorkerHandle) -> None:
        """Take a worker in, and tell it everything."""
        self.workers.append(worker)
        self.tell(worker)

    def tell(self, worker: WorkerHandle) -> None:
        """Send a worker that has just started everything that the others know."""
        worker.send("directory", **self._document())

    def on_worker_gone(self, worker: WorkerHandle, counts: dict[str, Any]) -> None:
        """Keep the counts of a worker that has ended; its clients are gone."""
        self._gone = added([self._gone, {**counts, "clients": 0, "at_brokers": {}}])
        if worker in self.workers:
            self._share_addresses(self.workers.index(worker), None)

    @property
    def restarts(self) -> int:
        """Return how many workers ended unexpectedly."""
        return sum(worker.restarts for worker in self.workers)

    def counts(self) -> dict[str, Any]:
        """Return the sums of all workers' counts."""
        return added([self._gone, *(worker.count() for worker in self.workers)])

    def on_report(self, kind: str, worker: int = 0, **fields: Any) -> None:  # noqa: ANN401 - as JSON brings it
        """Take a message of a worker."""
        if kind == "ended":
            probe = self._probes.get(fields["broker"])
            if probe is not None:
                probe.hint()
        elif kind == "addresses":
            self._share_addresses(worker, fields["opened"])
        elif kind == "where" and self.knowledge is not None:
            self._answer(worker, fields)
        elif kind == "redirected":
            for index, other in enumerate(self.workers):
                if index != worker:
                    other.send("redirected", **fields)

    def _answer(self, worker: int, question: dict[str, Any]) -> None:
        """Send a worker the place of a client's topics: at once, or after another look at the brokers."""
        assert self.knowledge is not None
        number, handle = question["number"], self.workers[worker]
        wish = Wish(
            bytes.fromhex(question["client"]), tuple(question["filters"]), question["publisher"], question["came_from"]
        )
        listener = parse_listen(question["listener"])
        if not self.knowledge.needs_look(wish):
            handle.send("there", number=number, answer=self.knowledge.where_now(wish, listener))
            return

        async def look() -> None:
            assert self.knowledge is not None
            handle.send("there", number=number, answer=await self.knowledge.where(wish, listener))

        task = self._loop.create_task(look(), name="look for topics")
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    def _share_addresses(self, worker: int, opened: dict[str, int] | None) -> None:
        """Tell each worker how many connections of an address the others have, so that a limit holds for the sum.

        Args:
            worker: the worker that has these connections.
            opened: addresses whose number changed; None if the worker is gone.
        """
        mine = self._opened.setdefault(worker, {})
        if opened is None:
            opened = dict.fromkeys(mine, 0)
        for address, count in opened.items():
            if count:
                mine[address] = count
            else:
                mine.pop(address, None)
        for index, other in enumerate(self.workers):
            if index != worker and opened:
                elsewhere = {
                    address: sum(one.get(address, 0) for owner, one in self._opened.items() if owner != index)
                    for address in opened
                }
                other.send("elsewhere", opened=elsewhere)

    def _document(self) -> dict[str, Any]:
        return {
            "snapshot": self.directory.snapshot(),
            "incarnations": {broker_id: probe.health.incarnation for broker_id, probe in self._probes.items()},
            "rates": {broker_id: rate for broker_id, (_, rate, _) in self._drains.items() if rate is not None},
            "limits": {broker_id: list(dataclasses.astuple(limits)) for broker_id, limits in self.limits.items()},
        }

    def _tell(self) -> None:
        document = self._document()
        for worker in self.workers:
            worker.send("directory", **document)

    # --- brokers ------------------------------------------------------------------------------------------------------

    def _on_changed(self, probe: Probe) -> None:
        health = probe.health
        if self.directory.judge(probe.broker.id, health.verdict):
            self.verdicts[health.verdict] = self.verdicts.get(health.verdict, 0) + 1
            log = _log.info if health.verdict == "up" else _log.warning
            log(
                "verdict on a broker",
                extra={"broker": probe.broker.id, "verdict": health.verdict, "why": health.detail},
            )
            if self.planner is not None:
                self.planner.hurry()
        else:
            _log.warning("a broker has restarted", extra={"broker": probe.broker.id})
        self._tell()

    def _on_connack(self, probe: Probe, packet: bytes, level: int) -> None:
        try:
            limits = limits_of_connack(packet, level)
        except Refusal as refusal:
            _log.warning("a CONNACK cannot be read", extra={"broker": probe.broker.id, "reason": str(refusal)})
            return
        if self.limits.get(probe.broker.id) != limits:
            self.limits[probe.broker.id] = limits
            self._tell()

    async def _judge(self) -> None:
        timeout_s = self.settings.health_timeout_s
        pause_s = min(self.settings.health_interval_s, timeout_s) / 4
        while True:
            await asyncio.sleep(pause_s)
            try:
                self._judge_now(timeout_s)
            except Exception:  # noqa: BLE001 - brokers that are not judged any more would be up for ever
                _log.exception("the brokers could not be judged")

    def _judge_now(self, timeout_s: float) -> None:
        for worker in self.workers:
            for broker_id, at in worker.heard().items():
                if broker_id in self._probes:
                    self._probes[broker_id].health.heard(at)
        named = [(broker_id, probe.health) for broker_id, probe in self._probes.items()]
        hung, is_doubted = suspects_to_judge(named, self._loop.time(), timeout_s)
        if is_doubted and not self._is_doubting:
            self.doubts += 1
            _log.error("more than half of the brokers do not answer; the fault may be here, so no client is moved")
        self._is_doubting = is_doubted
        for broker_id in hung:
            probe = self._probes[broker_id]
            if probe.health.hung(timeout_s):
                self._on_changed(probe)
        rtt_ms = {
            broker_id: probe.health.rtt_s * 1e3
            for broker_id, probe in self._probes.items()
            if probe.health.rtt_s is not None
        }
        for broker_id, rtt in rtt_ms.items():
            view = self.directory.view(broker_id)
            if view is not None:
                view.rtt_ms = rtt
        for worker in self.workers:
            worker.send("measured", rtt_ms=rtt_ms)

    # --- requests of an operator --------------------------------------------------------------------------------------

    def drain(self, broker_id: str, rate: float | None, *, is_drained: bool) -> dict[str, Any]:
        """Begin or end a drain, and keep that over a restart (rule 3).

        Raises:
            LocalError: there is no such broker.
        """
        view = self.directory.view(broker_id)
        if view is None:
            known = ", ".join(one.broker.id for one in self.directory.views)
            raise LocalError(f"There is no broker {broker_id!r}; known: {known}.")
        earlier = self._drains.get(broker_id)
        if is_drained and rate is None and earlier is not None:
            rate = earlier[1]
        drains = {**self._drains, broker_id: (is_drained, rate, now_s())}
        write_drains(self.settings.state_dir, drains)
        self._drains.update(drains)
        is_changed = self.directory.set_drained(broker_id, is_drained=is_drained)
        _log.info("drain", extra={"broker": broker_id, "drained": is_drained, "rate": rate})
        self._tell()
        if self.planner is not None:
            self.planner.hurry()
        return {
            "broker": broker_id,
            "drained": is_drained,
            "changed": is_changed,
            "clients": self.clients_at(broker_id),
        }

    def clients_at(self, broker_id: str) -> int:
        """Return how many clients are at a broker now."""
        found: int = self.counts()["at_brokers"].get(broker_id, 0)
        return found

    def explain(self, client: str, topic: str | None, *, is_clean: bool) -> dict[str, Any]:
        """Return where a client is placed, and why."""
        at_brokers = self.counts()["at_brokers"]
        for view in self.directory.views:
            view.connections = at_brokers.get(view.broker.id, 0)
        found = explain(self.settings, self.directory, self.limits, client, topic, is_clean=is_clean)
        if topic is not None and self.knowledge is not None:
            found["by_topic"] = self._explain_topic(client, topic)
        return found

    def _explain_topic(self, client: str, topic: str) -> list[dict[str, Any]]:
        """Return where a subscriber and a publisher of a topic would be redirected, per redirecting listener."""
        assert self.knowledge is not None
        tables: list[dict[str, Any]] = []
        for listener in self.listeners:
            mode = listener.mode or self.settings.mode
            if mode == "proxy" or listener.is_websocket:
                continue
            for is_publisher in (False, True):
                wish = self.knowledge.wish(client.encode(), (topic,), is_publisher=is_publisher)
                ranking, references = self.knowledge.rank(wish, listener)
                tables.append(
                    {
                        "listener": listener.url(),
                        "mode": mode,
                        "as": "publisher" if is_publisher else "subscriber",
                        "broker": ranking.chosen.id if ranking.chosen is not None else None,
                        "why": ranking.policy_reason,
                        "ranking": [{**row, "reference": references[row["broker"]]} for row in rows(ranking)],
                    }
                )
        return tables

    @property
    def is_ready(self) -> bool:
        """Return whether a balancer should send clients here."""
        return not self.is_ending and any(not view.obstacle for view in self.directory.members)

    def health(self) -> dict[str, Any]:
        """Return the document of `/healthz`."""
        counts = self.counts()
        status = "ok" if self.is_ready else "ending" if self.is_ending else "no broker"
        members = {view.broker.id for view in self.directory.members}
        return {
            "status": status,
            "listeners": [one.url() for one in self.listeners],
            "workers": len(self.workers),
            "clients": counts["clients"],
            "version": self.directory.version,
            "manager": None if self.planner is None else "reached" if self.planner.is_reached else "away",
            "brokers": [
                {
                    "id": view.broker.id,
                    "url": view.broker.url,
                    "in_set": view.broker.id in members,
                    "verdict": view.verdict,
                    "drained": view.is_drained,
                    "takes_clients": not view.obstacle,
                    "rtt_ms": view.rtt_ms,
                    "clients": counts["at_brokers"].get(view.broker.id, 0),
                }
                for view in self.directory.views
            ],
        }


def write_file(path: Path, document: object) -> None:
    """Replace a small file as a whole.

    Raises:
        LocalError: it cannot be written.
    """
    beside = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise LocalError(f"{path} cannot be written ({error.strerror}); give another state_dir.") from error


def write_drains(directory: Path, drains: Mapping[str, tuple[bool, float | None, float]]) -> None:
    """Write the latest request for each broker.

    Raises:
        LocalError: the file cannot be written.
    """
    document = {broker_id: {"drained": word[0], "rate": word[1], "at": word[2]} for broker_id, word in drains.items()}
    write_file(directory / DRAINS_FILE, document)


def read_drains(directory: Path) -> dict[str, tuple[bool, float | None, float]]:
    """Return the latest request for each broker.

    Raises:
        LocalError: the file exists and cannot be read. A start without it would send clients to a drained broker.
    """
    path = directory / DRAINS_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(broker_id): (
                bool(word["drained"]),
                None if word["rate"] is None else float(word["rate"]),
                float(word["at"]),
            )
            for broker_id, word in found.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LocalError(f"{path} cannot be read ({error}); repair or remove it.") from error


def read_set(directory: Path) -> SetOnDisk | None:
    """Return the set of brokers of the last start; None if there was none."""
    path = directory / SET_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return SetOnDisk([Broker(*row) for row in found["members"]], [Broker(*row) for row in found["former"]])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("the former set of brokers cannot be read", extra={"path": str(path), "reason": str(error)})
        return None


def listen(address: ListenAddress, count: int) -> list[socket.socket]:
    """Return listening sockets for as many workers, all on one address and port.

    Raises:
        LocalError: the address is not available.
    """
    try:
        rows = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, place = rows[0]
        # Alone first: with SO_REUSEPORT a second gateway would silently share the port.
        made = [_bound(family, place, is_shared=False)]
        if count > 1:
            port = made[0].getsockname()[1]
            made[0].close()
            made = [_bound(family, (place[0], port, *place[2:]), is_shared=True) for _ in range(count)]
    except OSError as error:
        raise LocalError(
            f"Cannot listen on {address.url()}: {error.strerror or error}; choose another address."
        ) from error
    for one in made:
        one.listen(BACKLOG)
    return made


def _bound(family: int, place: Any, *, is_shared: bool) -> socket.socket:  # noqa: ANN401 - an address of any family
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if is_shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        made.bind(place)
    except OSError:
        made.close()
        raise
    return made
