"""Brokers of a network: found by a scan (algorithm 1 of the TD-MQTT paper), or named by a manager.

The paper's scan opens a TCP connection to each address in turn and waits for a timeout. Here several addresses are
tried at once, and a port that accepts connections is not yet a broker: it must answer CONNECT with CONNACK.

Rules:

1. A scan is bounded in addresses (`ranges`), in connections at once, and in time per address.
2. A scan sends no credentials, so it may speak TLS without checking certificates. The certificate of a found broker is
   checked when the broker is used.
3. A broker that refuses the session counts as found: it speaks MQTT. MQTT 5 is tried first, then 3.1.1.
4. A manager names brokers; none of them gets a request here.
"""

import asyncio
import secrets
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from hanse.errors import HanseError, LocalError
from hanse.gateway.addresses import parse_broker
from hanse.gateway.discovery.asking import Connection, Greeter, connack_of
from hanse.gateway.discovery.packets import connack_code, connect
from hanse.gateway.discovery.ranges import Target
from hanse.gateway.front.connect import MQTT_3_1_1, MQTT_5
from hanse.gateway.placement import Broker

# Simultaneous connections. More would find nothing more, and fill the tables of small routers.
CONCURRENCY: Final = 128
TIMEOUT_S: Final = 1.0

# Refusals of the version: 1 in 3.1.1, 0x84 in MQTT 5.
_BAD_VERSION: Final = frozenset({1, 0x84})

# States of a federator in the manager's topology that do not come back by themselves.
_GONE: Final = frozenset({"left", "revoked"})

BROKER: Final = "broker"
NO_ANSWER: Final = "no answer"
REFUSED: Final = "refused"
NOT_MQTT: Final = "not MQTT"


class Finding(NamedTuple):
    """Result of a scan for one address and port.

    Attributes:
        what: `broker`, `no answer` (within the timeout), `refused` (nobody listens) or `not MQTT`.
        version: of MQTT: 5 or 3.1.1; empty if it is no broker.
        code: reason code of CONNACK; 0 if it accepts clients without credentials.
        ms: time from the first packet to CONNACK, TCP included.
    """

    target: Target
    what: str
    version: str = ""
    code: int = 0
    ms: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON can carry it."""
        return {
            "url": self.target.url,
            "what": self.what,
            "version": self.version,
            "code": self.code,
            "ms": round(self.ms, 3),
        }


async def scan(
    targets: Sequence[Target],
    *,
    concurrency: int = CONCURRENCY,
    timeout_s: float = TIMEOUT_S,
    on_found: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """Try every target; return the result of each, in the given order.

    Args:
        targets: from `ranges.parse_targets`, which bounds them.
        concurrency: number of simultaneous attempts.
        timeout_s: for each attempt.
        on_found: called with each broker at once.
    """
    findings: list[Finding | None] = [None] * len(targets)
    waiting = iter(enumerate(targets))

    async def work() -> None:
        for k, target in waiting:
            finding = findings[k] = await look(target, timeout_s)
            if on_found is not None and finding.what == BROKER:
                on_found(finding)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(targets))):
            group.create_task(work())
    return [finding for finding in findings if finding is not None]


async def look(target: Target, timeout_s: float = TIMEOUT_S) -> Finding:
    """Try one address and port (algorithm 1 for one address)."""
    try:
        async with asyncio.timeout(timeout_s):
            finding = await _greet(target, MQTT_5)
            if finding.what == NOT_MQTT or finding.code in _BAD_VERSION:
                # NATS closes on a CONNECT of MQTT 5, without an answer.
                finding = await _greet(target, MQTT_3_1_1)
            return finding
    except TimeoutError:
        return Finding(target, NO_ANSWER)
    except ssl.SSLError:
        return Finding(target, NOT_MQTT)
    except OSError:
        return Finding(target, REFUSED)


async def _greet(target: Target, level: int) -> Finding:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    greeter = Greeter(connect(f"hanse-scan-{secrets.token_hex(8)}", level))
    connection = Connection(greeter)
    try:
        await loop.create_connection(
            lambda: connection, target.host, target.port, ssl=_any_certificate() if target.is_tls else None
        )
        await connack_of(connection, greeter)
    except BaseException:
        connection.abort()
        raise
    if greeter.connack is None:
        connection.abort()
        return Finding(target, NOT_MQTT)
    connection.close()
    version = "5" if level == MQTT_5 else "3.1.1"
    return Finding(target, BROKER, version, connack_code(greeter.connack), (loop.time() - begin) * 1e3)


def _any_certificate() -> ssl.SSLContext:
    """Return a context that checks nothing (rule 2)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def brokers_found(findings: Sequence[Finding]) -> list[Broker]:
    """Return the brokers of a scan; the address of each is its id."""
    return [parse_broker(one.target.url) for one in findings if one.what == BROKER]


# Asks a manager for a document: `GET path`.
Ask = Callable[[str], Awaitable[dict[str, Any]]]


async def brokers_of_manager(ask: Ask) -> tuple[int, list[Broker], list[str]]:
    """Return the version of a manager's topology, its brokers, and the entries that could not be read.

    The id of a federator is the id of its broker. Federators that have left are omitted.

    Raises:
        HanseError: the manager does not answer or refuses.
    """
    document = await ask("/api/v1/topology")
    brokers: list[Broker] = []
    problems: list[str] = []
    entries = document.get("federators")
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or entry.get("state") in _GONE:
            continue
        try:
            brokers.append(_broker_of(entry))
        except HanseError as error:
            problems.append(f"federator {entry.get('id')!r}: {error}")
    version = document.get("epoch")
    return version if isinstance(version, int) else 0, brokers, problems


def _broker_of(entry: dict[str, Any]) -> Broker:
    address, number = entry.get("ip"), entry.get("id")
    if not isinstance(address, str) or not isinstance(number, int):
        raise LocalError("it has no address or no id.")
    url = address if "://" in address else f"mqtt://{address}"
    return parse_broker(f"{number}={url}")
