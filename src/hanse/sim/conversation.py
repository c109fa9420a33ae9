"""Golden conversations: the story of a small federation, as text that people can read and a test can play.

A conversation has one command per line. A line that begins with `#` is a comment; elsewhere `#` is a wildcard.
Durations are `200ms`, `2s`, or `3A` (announcement intervals). Lists are `1,3,4`, links are `0-1 0-2`, nothing is `-`.

| command | effect |
| --- | --- |
| `brokers 0..5` | define the brokers; the first command |
| `link 0-1 0-2` | define links; `link 0-1 50ms` gives these a latency of their own |
| `redundancy 2` | change a setting; also `outsider`, `announcements`, `election`, `grouping`, `latency`, `seed` |
| `start` | start all federators; the first command that needs them does so, too |
| `subscribe 5 app2`, `unsubscribe 5 app2` | a client at broker 5; `subscribe 5 app2 as anna` for several |
| `rank 1 app2 10`, `appoint 1 app2`, `dismiss 1 app2` | give an order of the manager |
| `publish 4 app2 hello` | publish as a client of broker 4; `qos 1` may follow |
| `stream 4 app2 50ms`, `stream stop` | publish every 50 ms as a client; stop |
| `settle`, `run 2A` | wait until the federation has converged (at most 12 A); let time pass |
| `crash 1`, `leave 1`, `restart 1` | kill a federator; stop it in good order; start it again |
| `pause 1`, `resume 1` | suspend a federator; let it continue |
| `cut 1-3`, `heal 1-3` | break links; restore them |
| `expect …` | see `_EXPECTATIONS` |
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hanse.errors import HanseError, LocalError
from hanse.protocol.grouping import Grouping
from hanse.protocol.machine import Machine
from hanse.protocol.settings import MANAGEMENT_GROUP, Settings
from hanse.sim import overlay
from hanse.sim.checkers import Checkers
from hanse.sim.convergence import why_not_converged
from hanse.sim.federation import Federation
from hanse.sim.host import Client
from hanse.sim.ledger import Message
from hanse.sim.overlay import Pair, pair

SETTLE_A = 12.0
BROKERS_MAX = 1_000
LINES_MAX = 10_000


class ConversationError(HanseError):
    """Line of a conversation that is invalid, or an expectation that is not met."""


@dataclass(slots=True)
class _Plan:
    """Settings and overlay that are defined before the start."""

    brokers: list[int] = field(default_factory=list)
    links: list[Pair] = field(default_factory=list)
    latency_s: dict[Pair, float] = field(default_factory=dict)
    common_latency_s: float = 0.010
    seed: int = 1
    settings: dict[str, object] = field(default_factory=dict)


class Conversation:
    """Player of one conversation, line by line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line = 0
        self._plan = _Plan()
        self._federation: Federation | None = None
        self._checkers = Checkers()
        self._clients: dict[str, Client] = {}
        self._number = 0
        self._stream: tuple[int, str, float] | None = None
        self._streamed: list[int] = []
        self._epochs: dict[int, int] = {}
        self._changes = 0

    def play(self, text: str) -> None:
        """Carry out every line of a conversation.

        Raises:
            ConversationError: An expectation is not met or a line is invalid. The message names the file and the line.
        """
        lines = text.splitlines()
        if len(lines) > LINES_MAX:
            raise ConversationError(f"{self._name}: {len(lines)} lines; a conversation has at most {LINES_MAX}.")
        for number, line in enumerate(lines, 1):
            self._line = number
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                self._carry_out(words)
            except ConversationError:
                raise
            except (HanseError, ValueError, KeyError, IndexError) as error:
                raise self._error(f"{' '.join(words)!r}: {error}") from error
        if self._federation is None:
            raise ConversationError(f"{self._name}: nothing happens; a conversation needs brokers and an event.")

    def _error(self, text: str) -> ConversationError:
        return ConversationError(f"{self._name}, line {self._line}: {text}")

    def _carry_out(self, words: list[str]) -> None:
        word, rest = words[0], words[1:]
        if word in _BEFORE:
            if self._federation is not None:
                raise self._error(f"{word!r} must stand before the federators start.")
            _BEFORE[word](self, rest)
        elif word in _COMMANDS:
            _COMMANDS[word](self, rest)
        else:
            raise self._error(f"the command {word!r} is unknown; expected one of {', '.join((*_BEFORE, *_COMMANDS))}.")

    # --- before the start ---

    def _brokers(self, rest: list[str]) -> None:
        for word in rest:
            low, _, high = word.partition("..")
            self._plan.brokers.extend(range(int(low), int(high or low) + 1))
        if not 0 < len(self._plan.brokers) <= BROKERS_MAX:
            raise self._error(f"{len(self._plan.brokers)} brokers; expected 1 to {BROKERS_MAX}.")

    def _link(self, rest: list[str]) -> None:
        latency = [word for word in rest if "-" not in word]
        for ends in _links(word for word in rest if "-" in word):
            self._plan.links.append(ends)
            if latency:
                self._plan.latency_s[ends] = _seconds(latency[0], 1.0)

    def _setting(self, name: str, value: object) -> None:
        self._plan.settings[name] = value

    def _latency(self, rest: list[str]) -> None:
        self._plan.common_latency_s = _seconds(rest[0], 1.0)

    def _seed(self, rest: list[str]) -> None:
        self._plan.seed = int(rest[0])

    @property
    def _running(self) -> Federation:
        if self._federation is None:
            self._start([])
        assert self._federation is not None
        return self._federation

    def _start(self, rest: list[str]) -> None:
        del rest
        if not self._plan.brokers:
            raise self._error("there are no brokers yet; begin with a line such as `brokers 0..5`.")
        settings = Settings(**self._plan.settings)  # type: ignore[arg-type]
        shape = overlay.given(self._plan.brokers, self._plan.links)
        latency_s = self._plan.common_latency_s
        federation = Federation(
            shape, settings, seed=self._plan.seed, latency_s=(latency_s, latency_s), monitor=self._checkers
        )
        for ends, seconds in self._plan.latency_s.items():
            for way in federation.links[ends].directions:
                way.latency_s = seconds
        for identity in shape.identities:
            federation.start(identity)
        self._federation = federation

    # --- events ---

    def _client(self, rest: list[str]) -> tuple[Client, str]:
        broker, topic_filter = int(rest[0]), rest[1]
        name = rest[3] if len(rest) > 3 and rest[2] == "as" else f"client of {topic_filter} at {broker}"
        return self._clients.setdefault(name, Client(name, broker)), topic_filter

    def _subscribe(self, rest: list[str]) -> None:
        client, topic_filter = self._client(rest)
        self._running.subscribe(client, topic_filter)

    def _unsubscribe(self, rest: list[str]) -> None:
        client, topic_filter = self._client(rest)
        self._running.unsubscribe(client, topic_filter)

    def _publish(self, rest: list[str]) -> None:
        qos = int(rest[rest.index("qos") + 1]) if "qos" in rest else 0
        self._number += 1
        self._running.publish(int(rest[0]), [(self._number, rest[1], qos)], " ".join(rest[2:]).encode())

    def _start_stream(self, rest: list[str]) -> None:
        if rest == ["stop"]:
            self._stream = None
            return
        self._stream = (int(rest[0]), rest[1], _seconds(rest[2], self._running.interval_s))
        self._streamed = []
        self._next_of_stream(self._stream)

    def _next_of_stream(self, stream: tuple[int, str, float]) -> None:
        if self._stream is not stream:
            return
        broker, topic, every_s = stream
        self._number += 1
        self._streamed.append(self._number)
        self._running.publish(broker, [(self._number, topic, 1)])
        self._running.engine.after(every_s, self._next_of_stream, stream)

    def _settle(self, rest: list[str]) -> None:
        federation = self._running
        limit_a = float(rest[0].rstrip("A")) if rest else SETTLE_A
        end_s = federation.engine.now + limit_a * federation.interval_s
        # Let one round pass first. A federation that has not noticed the change yet looks converged.
        federation.run(min(1.0, limit_a) * federation.interval_s)
        while (trouble := why_not_converged(federation)) is not None:
            if federation.engine.now >= end_s:
                raise self._error(f"not settled after {limit_a} A: {trouble}.")
            federation.run(0.1 * federation.interval_s)
        # Everything that was under way has arrived by then.
        federation.run(1.0 * federation.interval_s)

    def _run(self, rest: list[str]) -> None:
        self._running.run(_seconds(rest[0], self._running.interval_s))

    def _crash(self, rest: list[str]) -> None:
        for identity in _numbers(rest):
            self._remember_epoch(identity)
            self._running.stop(identity)

    def _leave(self, rest: list[str]) -> None:
        for identity in _numbers(rest):
            self._remember_epoch(identity)
            self._running.leave(identity)

    def _remember_epoch(self, identity: int) -> None:
        self._epochs[identity] = self._running.nodes[identity].running.epoch

    def _restart(self, rest: list[str]) -> None:
        for identity in _numbers(rest):
            self._running.start(identity)

    def _pause(self, rest: list[str]) -> None:
        for identity in _numbers(rest):
            self._running.pause(identity)

    def _resume(self, rest: list[str]) -> None:
        for identity in _numbers(rest):
            self._running.resume(identity)

    def _cut(self, rest: list[str]) -> None:
        for ends in _links(rest):
            self._running.close_link(ends, is_silent=False)

    def _heal(self, rest: list[str]) -> None:
        for ends in _links(rest):
            self._running.open_link(ends, is_silent=False)

    def _rank(self, rest: list[str]) -> None:
        self._running.rank(int(rest[0]), rest[1], int(rest[2]))

    def _appoint(self, rest: list[str]) -> None:
        self._running.appoint(int(rest[0]), rest[1])

    def _dismiss(self, rest: list[str]) -> None:
        self._running.appoint(int(rest[0]), rest[1], is_appointed=False)

    # --- expectations ---

    def _expect(self, rest: list[str]) -> None:
        if not rest or rest[0] not in _EXPECTATIONS:
            seen = rest[0] if rest else "nothing"
            raise self._error(f"`expect {seen}` is unknown; expected one of {', '.join(_EXPECTATIONS)}.")
        left, _, right = " ".join(rest[1:]).partition("=")
        seen_text, expected_text = _EXPECTATIONS[rest[0]](self, left.split(), right.split())
        if seen_text != expected_text:
            raise self._error(f"expected {' '.join(rest)}, but it is {seen_text or '-'}.")

    def _machine(self, word: str) -> Machine:
        machine = self._running.nodes[int(word)].machine
        if machine is None:
            raise self._error(f"federator {word} is down.")
        return machine

    def _machines(self) -> Iterator[Machine]:
        return (node.machine for node in self._running.nodes.values() if node.machine is not None)

    def _expect_core(self, left: list[str], right: list[str]) -> tuple[str, str]:
        """Check `core app2 = 1`: the core that all name; `core app2 at 3,4 = 1`: the core that 3 and 4 name."""
        asked = _numbers(left[2:]) if len(left) > 1 else [machine.identity for machine in self._machines()]
        cores = {self._machine(str(identity)).core_of(_group(left[0])) for identity in asked}
        return _text("-" if core is None else core for core in cores), _text(right)

    def _expect_parents(self, left: list[str], right: list[str]) -> tuple[str, str]:
        machine = self._machine(left[0])
        core = machine.core_of(_group(left[1]))
        return _text(machine.parents_of(core) if core is not None else ()), _text(right)

    def _expect_distance(self, left: list[str], right: list[str]) -> tuple[str, str]:
        machine = self._machine(left[0])
        core = machine.core_of(_group(left[1]))
        return _text([machine.distance_to(core) if core is not None else "-"]), _text(right)

    def _expect_members(self, left: list[str], right: list[str]) -> tuple[str, str]:
        group = _group(left[0])
        return _text(machine.identity for machine in self._machines() if machine.is_member(group)), _text(right)

    def _expect_mesh_links(self, left: list[str], right: list[str]) -> tuple[str, str]:
        group = _group(left[0])
        seen = {pair(one.identity, other) for one in self._machines() for other in one.mesh_neighbours(group)}
        return _link_text(seen), _link_text(_links(right))

    def _expect_subscribed(self, left: list[str], right: list[str]) -> tuple[str, str]:
        """Check `host-subscriptions 4 = app2`: the filters that a federator holds at its host broker."""
        return _text(self._machine(left[0]).host_subscriptions()), _text(right)

    def _message(self) -> Message:
        if not self._number:
            raise self._error("nothing has been published yet.")
        return self._checkers.ledger.messages[self._number]

    def _expect_delivered(self, left: list[str], right: list[str]) -> tuple[str, str]:
        """Check `delivered 5,1`: the brokers at which subscribers got the last publication, once each."""
        del right
        message = self._message()
        federation = self._running
        seen = {k for k in message.delivered_at if federation.nodes[k].host.receivers(message.topic)}
        if federation.nodes[message.origin].host.receivers(message.topic):
            seen.add(message.origin)
        return _text(seen), _text(left)

    def _expect_path(self, left: list[str], right: list[str]) -> tuple[str, str]:
        """Check `path 4-1 4-5`: the links that the last publication crossed, each with its direction."""
        del right
        seen = sorted(set(self._message().path))
        expected = sorted(_directed(left))
        return " ".join(f"{a}-{b}" for a, b in seen), " ".join(f"{a}-{b}" for a, b in expected)

    def _expect_enters(self, left: list[str], right: list[str]) -> tuple[str, str]:
        """Check `enters 3 before 1`: the last publication reached 3 before 1."""
        del right
        arrived_s = self._message().arrived_s
        first, second = int(left[0]), int(left[2])
        is_so = first in arrived_s and arrived_s[first] < arrived_s.get(second, float("inf"))
        seen = left if is_so else [str(second), "before", str(first)]
        return " ".join(seen), " ".join(left)

    def _expect_stream(self, left: list[str], right: list[str]) -> tuple[str, str]:
        """Check `stream lossless 5`: the subscribers at 5 got everything streamed since the stream began."""
        del right
        messages = self._checkers.ledger.messages
        brokers = set(_numbers(left[1:]))
        missed = [k for k in self._streamed if not brokers <= messages[k].delivered_at]
        seen = f"{left[0]} but {len(missed)} of {len(self._streamed)}" if missed or not self._streamed else left[0]
        return seen, left[0]

    def _expect_epoch(self, left: list[str], right: list[str]) -> tuple[str, str]:
        """Check `epoch 1 = grown`: the epoch is larger than before the last crash of 1; or `same`."""
        epoch = self._machine(left[0]).epoch
        before = self._epochs.get(int(left[0]))
        if before is None:
            raise self._error(f"federator {left[0]} has not been stopped yet.")
        return ("grown" if epoch > before else "same"), " ".join(right)

    def _expect_quiet(self, left: list[str], right: list[str]) -> tuple[str, str]:
        """Check `quiet 3`: no distance and no parent changes in three more rounds."""
        del right
        before = self._checkers.route_changes
        self._running.run(int(left[0]) * self._running.interval_s)
        changes = self._checkers.route_changes - before
        return (f"not quiet: {changes} changes" if changes else left[0]), left[0]

    def _expect_counter(self, left: list[str], right: list[str]) -> tuple[str, str]:
        """Check `counter 3 duplicates = 2`: a counter of a machine."""
        return str(self._machine(left[0]).counters[left[1]]), " ".join(right)


def play(text: str, name: str) -> None:
    """Play one conversation. Its errors begin with `name`."""
    Conversation(name).play(text)


_Step = Callable[[Conversation, list[str]], None]
_Check = Callable[[Conversation, list[str], list[str]], tuple[str, str]]

# ruff: noqa: SLF001 - the tables name the methods of the class above; they are its dispatch.
_BEFORE: dict[str, _Step] = {
    "brokers": Conversation._brokers,
    "link": Conversation._link,
    "latency": Conversation._latency,
    "seed": Conversation._seed,
    "redundancy": lambda self, rest: self._setting("redundancy", int(rest[0])),
    "outsider": lambda self, rest: self._setting("outsider", rest[0]),
    "announcements": lambda self, rest: self._setting("announcements", rest[0]),
    "election": lambda self, rest: self._setting("election", rest[0]),
    "grouping": lambda self, rest: self._setting("grouping", Grouping.parse(rest[0])),
}
_COMMANDS: dict[str, _Step] = {
    "start": Conversation._start,
    "subscribe": Conversation._subscribe,
    "unsubscribe": Conversation._unsubscribe,
    "rank": Conversation._rank,
    "appoint": Conversation._appoint,
    "dismiss": Conversation._dismiss,
    "publish": Conversation._publish,
    "stream": Conversation._start_stream,
    "settle": Conversation._settle,
    "run": Conversation._run,
    "crash": Conversation._crash,
    "leave": Conversation._leave,
    "restart": Conversation._restart,
    "pause": Conversation._pause,
    "resume": Conversation._resume,
    "cut": Conversation._cut,
    "heal": Conversation._heal,
    "expect": Conversation._expect,
}
_EXPECTATIONS: dict[str, _Check] = {
    "core": Conversation._expect_core,
    "parents": Conversation._expect_parents,
    "distance": Conversation._expect_distance,
    "members": Conversation._expect_members,
    "mesh-links": Conversation._expect_mesh_links,
    "host-subscriptions": Conversation._expect_subscribed,
    "delivered": Conversation._expect_delivered,
    "path": Conversation._expect_path,
    "enters": Conversation._expect_enters,
    "stream": Conversation._expect_stream,
    "epoch": Conversation._expect_epoch,
    "quiet": Conversation._expect_quiet,
    "counter": Conversation._expect_counter,
}


def _group(word: str) -> str:
    return MANAGEMENT_GROUP if word == "management" else word


def _seconds(word: str, interval_s: float) -> float:
    for suffix, factor in (("ms", 1e-3), ("A", interval_s), ("s", 1.0)):
        if word.endswith(suffix):
            return float(word.removesuffix(suffix)) * factor
    raise LocalError(f"The duration {word!r} was given; expected one such as 200ms, 2s or 3A.")


def _numbers(words: list[str]) -> list[int]:
    return [int(part) for word in words for part in word.split(",") if part not in {"", "-"}]


def _directed(words: Iterator[str] | list[str]) -> list[Pair]:
    found = []
    for word in words:
        if word == "-":
            continue
        one, _, other = word.partition("-")
        found.append((int(one), int(other)))
    return found


def _links(words: Iterator[str] | list[str]) -> list[Pair]:
    return [pair(one, other) for one, other in _directed(words)]


def _link_text(links: set[Pair] | list[Pair]) -> str:
    return " ".join(f"{one}-{other}" for one, other in sorted(set(links)))


def _text(items: object) -> str:
    """Return the items of a list as sorted text, numbers before words, so that their order does not matter."""
    words = [part for item in items for part in str(item).split(",")]  # type: ignore[attr-defined]
    kept = {word for word in words if word not in {"", "-", "None"}}
    return ",".join(sorted(kept, key=lambda word: (not word.isdigit(), int(word) if word.isdigit() else 0, word)))
