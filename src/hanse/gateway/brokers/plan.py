"""The manager's part in a gateway's knowledge: the brokers, those that are up, and those that are drained.

Rules:

1. A gateway asks once per `manager_interval`, and tells what it sees. It says which version it applies, so that the
   manager knows when all do.
2. The last plan is on disk. A gateway that starts without a manager uses it; brokers that come back then stay out until
   a manager says otherwise.
3. A drain that an operator asks for here takes effect at once, and is reported until the plan says the same or somebody
   said otherwise later.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.federator.manager_client import ManagerClient
from hanse.gateway.addresses import parse_broker
from hanse.gateway.brokers.directory import UP, Directory
from hanse.gateway.placement import Broker

_log = logging.getLogger(__name__)

_ASK_S: Final = 5.0
PLAN_FILE: Final = "plan.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """One version of the facts that all gateways must share.

    Attributes:
        up: brokers that may take clients.
        drains: the latest word on each broker: drained or not, rate, and when it was said.
    """

    version: int
    brokers: tuple[Broker, ...]
    up: frozenset[str]
    drains: Mapping[str, tuple[bool, float | None, float]]


def read_plan(document: Mapping[str, Any]) -> tuple[Plan, list[str]]:
    """Return the plan in a manager's answer, and the unreadable parts.

    Raises:
        Unavailable: it is no plan.
    """
    try:
        brokers: list[Broker] = []
        problems: list[str] = []
        up: set[str] = set()
        drains: dict[str, tuple[bool, float | None, float]] = {}
        for entry in document["brokers"]:
            broker_id, url = str(entry["id"]), str(entry["url"])
            try:
                federator = entry.get("federator")
                option = f"?federator={federator}" if federator else ""
                brokers.append(parse_broker(f"{broker_id}={url if '://' in url else f'mqtt://{url}'}{option}"))
            except HanseError as error:
                problems.append(f"broker {broker_id!r}: {error}")
                continue
            if entry["state"] == UP:
                up.add(broker_id)
            drain = entry["drain"]
            if drain is not None:
                rate = drain["rate"]
                drains[broker_id] = (bool(drain["drained"]), None if rate is None else float(rate), float(drain["at"]))
        return Plan(int(document["version"]), tuple(brokers), frozenset(up), drains), problems
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"The manager's plan cannot be read ({error!r}); is it as new as this gateway?") from None


class Planner:
    """Keeps a directory in the state of the manager's plan.

    Args:
        name: this gateway's, at the manager.
        drains: drains by operators; the supervisor's own, changed here when the plan has newer ones.
        on_changed: called when the directory or the drains have changed.
    """

    def __init__(
        self,
        client: ManagerClient,
        token: str | None,
        name: str,
        directory: Directory,
        drains: dict[str, tuple[bool, float | None, float]],
        state_dir: Path,
        *,
        interval_s: float,
        on_changed: Callable[[], None],
        write: Callable[[Path, object], None],
    ) -> None:
        self.failures = 0
        self.is_reached = False
        self._client = client
        self._token = token
        self._name = name
        self._directory = directory
        self._drains = drains
        self._path = state_dir / PLAN_FILE
        self._interval_s = interval_s
        self._on_changed = on_changed
        self._write = write
        self._known = 0
        self._hurry = asyncio.Event()
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self, wait_s: float) -> None:
        """Use the last plan, and wait a moment for a newer one.

        Raises:
            LocalError: there is a plan of an earlier start and it cannot be read.
        """
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise LocalError(f"{self._path} cannot be read ({error}); repair or remove it.") from error
        else:
            self._apply(document)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="ask the manager")
        try:
            async with asyncio.timeout(wait_s):
                await self._first.wait()
        except TimeoutError:
            _log.warning("no manager answers yet", extra={"brokers": len(self._directory.views)})

    async def stop(self) -> None:
        """Stop asking."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def hurry(self) -> None:
        """Report now: something has changed here."""
        self._hurry.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._ask()
            except HanseError as error:
                self.failures += 1
                if self.is_reached or self.failures == 1:
                    _log.warning("no manager answers; nobody is moved back", extra={"reason": str(error)})
                self.is_reached = False
            except Exception:  # noqa: BLE001 - a task that ended would leave the gateway with an old plan for ever
                self.failures += 1
                self.is_reached = False
                _log.exception("the manager's answer could not be applied")
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._hurry.wait()
            except TimeoutError:
                continue
            finally:
                self._hurry.clear()

    async def _ask(self) -> None:
        views = self._directory.views
        report = {
            "known": self._known,
            "down": [view.broker.id for view in views if view.verdict != UP],
            "held": [view.broker.id for view in views if view.verdict == UP and not view.is_agreed],
            "drains": {
                broker_id: {"drained": is_drained, "rate": rate, "at": at}
                for broker_id, (is_drained, rate, at) in self._drains.items()
            },
        }
        path = f"/api/v1/gateways/{self._name}/report"
        document = await self._client.ask("POST", path, report, shown=self._token, timeout_s=_ASK_S)
        if not self.is_reached:
            _log.info("a manager answers", extra={"manager": self._client.address})
        self.is_reached = True
        if document.get("version") != self._known:
            self._apply(document)
            self._write(self._path, document)
        self._first.set()

    def _apply(self, document: Mapping[str, Any]) -> None:
        plan, problems = read_plan(document)
        for problem in problems:
            _log.warning("a broker of the plan cannot be used", extra={"reason": problem})
        self._known = plan.version
        for broker_id, word in plan.drains.items():
            mine = self._drains.get(broker_id)
            if mine is None or word[2] > mine[2]:
                self._drains[broker_id] = word
        drained = [broker_id for broker_id, (is_drained, _, _) in self._drains.items() if is_drained]
        self._directory.update(plan.version, plan.brokers, drained=drained, up=plan.up)
        self._on_changed()


def now_s() -> float:
    """Return the time by which the latest word on a drain counts."""
    return time.time()
