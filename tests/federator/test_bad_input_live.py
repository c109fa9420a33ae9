"""Bad input to a real agent beside a real Mosquitto: by its link port, its broker's topics, or a client's publication.

After each input: the counter has moved, nothing of the input was forwarded or published, the agent's memory grew by at
most 20 MB, its session at the broker is still the same, and the federation forwards publications as it should.
"""

import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import mqtt5
import psutil
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, knows_all, ring, running
from tests.protocol.net import packet

from hanse.federator import broker_link
from hanse.federator.retained import TOPIC as RETAINED_TOPIC
from hanse.mqtt.publication import encode
from hanse.protocol import codec
from hanse.protocol.messages import Announcement, ClaimChange, ClaimDelta, ControlFrame, HandOver, Run, Solicit
from hanse.protocol.settings import EPOCH_MAX, MANAGEMENT_GROUP, SEQUENCE_MAX

pytestmark = pytest.mark.processes

GROWTH_BYTES_MAX = 20_000_000


class Scene:
    """Two brokers with a federator each, and a client at each that receives everything that crosses."""

    def __init__(self, brokers: list[Mosquitto], federators: list[Federator], here: Client, there: Client) -> None:
        self.brokers = brokers
        self.federator, self.other = federators
        self.here, self.there = here, there
        self._number = 0

    def prove(self) -> None:
        """Prove that one publication from each side arrives at the other, once, behind all earlier ones."""
        self._number += 1
        for source, target in ((self.here, self.there), (self.there, self.here)):
            payload = b"proof %d %d" % (self._number, source is self.here)
            source.publish("here/proof", payload)
            eventually(lambda: any(message.payload == payload for message in target.messages), "the proof has arrived")  # noqa: B023

    def after(self, bad: Callable[[], object]) -> dict[str, int]:
        """Do something bad, prove that messages still cross, and return the increase of each counter."""
        self.prove()
        before, memory = self.federator.counters(), self._memory()
        sessions = self._sessions()
        assert sessions, "the broker logged no session of the federator"
        bad()
        self.prove()
        grown = self._memory() - memory
        assert grown <= GROWTH_BYTES_MAX, f"the agent grew by {grown} bytes"
        assert self._sessions() == sessions, "the session at the broker was lost"
        after = self.federator.counters()
        return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}

    def _memory(self) -> int:
        assert self.federator.process is not None
        return int(psutil.Process(self.federator.process.pid).memory_info().rss)

    def _sessions(self) -> int:
        """Return how often the main session was opened. Sessions with a role, which come and go, end in its name."""
        return len(re.findall(r" as hanse-federator-0-[0-9a-f]{32} ", self.brokers[0].log))

    @property
    def crossed(self) -> list[str]:
        """Return the topics of all that arrived at the other side, except the proofs."""
        proofs = [message for message in self.there.messages if message.payload.startswith(b"proof")]
        # With `link = broker`, that topic reaches the federator of the other side.
        return [one.topic for one in self.there.messages if one not in proofs and not one.topic.endswith("/1/0")]

    @property
    def published_here(self) -> list[str]:
        return [message.topic for message in self.here.messages if not message.payload.startswith(b"proof")]


def scene_of(directory: Path) -> Iterator[Scene]:
    with (
        Mosquitto(*LOG_LINES) as one,
        Mosquitto(*LOG_LINES) as two,
        running(ring([one, two], directory)) as federators,
        Client(one.port, name="here") as here,
        Client(two.port, name="there") as there,
    ):
        here.subscribe("here/#")
        here.subscribe("$SYS/evil/#")
        here.subscribe("federator/evil/#")
        there.subscribe("#")
        eventually(lambda: knows_all(federators, "#") and knows_all(federators, "here/#"), "interest is known")
        yield Scene([one, two], list(federators), here, there)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    yield from scene_of(tmp_path_factory.mktemp("bad"))


class Neighbour:
    """Neighbour that was accepted at the link port, and may send anything there."""

    def __init__(self, federator: Federator, identity: str = "9") -> None:
        self.wire = socket.create_connection(("127.0.0.1", federator.link_port), timeout=10)
        self.federator = federator
        connect = mqtt5.ConnectPacket(identity, user_properties=[("protocol", "1")], clean_start=True, keep_alive=0)
        self.wire.sendall(connect.write())
        assert self.wire.recv(1)[0] == 0x20
        eventually(lambda: int(identity) in federator.neighbours(), "the neighbour is let in")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()
        eventually(lambda: 9 not in self.federator.neighbours(), "the neighbour is gone")

    def say(self, payload: bytes, topic: str = "c", qos: int = 0, number: int = 1) -> None:
        packet_id = number if qos else None
        self.wire.sendall(mqtt5.PublishPacket(topic, payload, qos=mqtt5.QoS(qos), packet_id=packet_id).write())

    def hand_in(self, group: str, *packets: bytes, first: int = 0, qos: int = 0) -> None:
        body = b"".join(packets)
        run = Run(9, 1_000, first, len(packets), qos, 1, (group,), body)
        self.say(codec.encode_data([run]), "d", min(qos, 1), first + 1)


def drain(wire: socket.socket) -> bytes:
    """Return all that the other side sends until it ends the connection."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while more := wire.recv(4_096):
            said += more
    return said


CONTROL = codec.encode_control(
    ControlFrame(9, 1_000, 1, 0, 0, announcements=(Announcement(9, 1_000, 1, 0, 1),), solicits=(Solicit(3, 1, 1),))
)
DATA = codec.encode_data([Run(9, 1_000, 0, 1, 0, 1, ("here/#",), packet("here/x"))])


def flips(frame: bytes) -> list[bytes]:
    return [frame[: n // 8] + bytes((frame[n // 8] ^ 1 << n % 8,)) + frame[n // 8 + 1 :] for n in range(16)]


BAD_FRAMES = {
    "empty": [b""],
    "one byte": [b"\x01", b"\x00", b"\xff"],
    "every strict prefix": [DATA[:end] for end in range(len(DATA))],
    "bit flips of the head": [
        frame for frame in flips(CONTROL) + flips(DATA) if frame[:2] not in (b"\x01\x01", b"\x01\x02")
    ],
    "wrong version": [b"\x02" + CONTROL[1:], b"\x00" + DATA[1:]],
    "unknown type": [b"\x01\x03" + CONTROL[2:], b"\x01\xff"],
    "trailing bytes": [CONTROL + b"\xff", DATA + b"\0"],
    "lengths beyond the frame": [
        b"\x01\x02\xff\xff\xff\xff\x0f",
        b"\x01\x02\x01\xff\xff\x03a",
        b"\x01\x01" + b"\xff" * 40,
    ],
    "numbers out of range": [b"\x01\x01" + b"\xff" * 8 + b"\x7f", CONTROL[:2] + b"\x80\x00" + CONTROL[3:]],
    "json": [b"[" * 100_000, b'{"a": NaN}', b"9" * 1_000_000],
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_malformed_frame_is_refused_and_counted(scene: Scene, name: str) -> None:
    with Neighbour(scene.federator) as neighbour:

        def bad() -> None:
            for frame in BAD_FRAMES[name]:
                neighbour.say(frame, "d" if frame[:2] != b"\x01\x01" else "c")
                neighbour.say(frame, "unheard/of")
            eventually(lambda: 9 in scene.federator.neighbours(), "the link stands")

        moved = scene.after(bad)
    assert moved["frames_refused"] == 2 * len(BAD_FRAMES[name])
    assert scene.crossed == []
    assert scene.published_here == []


LIES = {
    "sender not this neighbour": (ControlFrame(1, 1_000, 1, 0, 0), "rejected_stranger"),
    "sequence backwards": (ControlFrame(9, 1, 1, 0, 0), "ignored_stale_frame"),
    "distance 0 from a non-core": (
        ControlFrame(9, 2_000, 2, 0, 0, announcements=(Announcement(1, EPOCH_MAX, SEQUENCE_MAX, 0, 0),)),
        "rejected_distance",
    ),
    "a hand-over of what nobody claims": (
        ControlFrame(9, 2_000, 3, 0, 0, hand_overs=(HandOver(0, "nobody/has/this"),)),
        "ignored_hand_over",
    ),
    "claims from the middle": (
        ControlFrame(9, 2_000, 4, 0, 0, claim_deltas=(ClaimDelta(1, 5, 7, (ClaimChange("x", 1),)),)),
        "ignored_claim_delta",
    ),
}


def test_messages_that_break_a_rule_are_counted_and_change_nothing(scene: Scene) -> None:
    with Neighbour(scene.federator) as neighbour:
        neighbour.say(codec.encode_control(ControlFrame(9, 1_000, 5, 0, 0)))
        scene.prove()
        cores = [scene.federator.core_of(group) for group in ("#", "here/#", MANAGEMENT_GROUP)]
        for name, (frame, counter) in LIES.items():
            moved = scene.after(lambda frame=frame: neighbour.say(codec.encode_control(frame)))  # type: ignore[misc]
            assert moved.get(counter, 0) >= 1, name
        assert [scene.federator.core_of(group) for group in ("#", "here/#", MANAGEMENT_GROUP)] == cores
    assert scene.crossed == []


def test_mqtt_packets_that_a_link_forbids_end_only_the_link(scene: Scene) -> None:
    packets = [
        mqtt5.SubscribePacket(1, [mqtt5.TopicFilter("#")]).write(),
        mqtt5.PublishPacket("c", b"", qos=mqtt5.QoS.EXACTLY_ONCE, packet_id=1).write(),
        mqtt5.PublishPacket("c", b"", user_properties=[("a", "b")] * 10_000).write(),
        mqtt5.PublishPacket("c", b"", topic_alias=1).write(),
        b"\x32\x05\x00\x01c\x00\x00",
        b"\x30\xff\xff\xff\xff\x01",
        b"\x30\xff\xff\xff\x7f",
        b"\xf0\x00",
        b"GET / HTTP/1.1\r\n" + b"Host: x\r\n" * 10,
    ]

    def bad() -> None:
        for one in packets:
            with Neighbour(scene.federator) as neighbour:
                neighbour.wire.sendall(one)
                drain(neighbour.wire)

    scene.after(bad)
    assert scene.crossed == []


def test_an_invalid_handshake_is_refused(scene: Scene) -> None:
    def connect(identity: str, *properties: tuple[str, str]) -> bytes:
        return mqtt5.ConnectPacket(identity, user_properties=list(properties)).write()

    greetings = [
        b"\0" * 100,
        b"\x10\xff\xff\xff\x7f",
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
        b"\x16\x03\x01\x02\x00\x01",
        mqtt5.PublishPacket("c", CONTROL).write(),
        *(
            connect(identity, ("protocol", "1"))
            for identity in ("", "0", "+", "#", "a/b", "-1", "4294967296", "9" * 60_000)
        ),
        connect("9"),
        connect("9", ("protocol", "2")),
        connect("9", ("protocol", "1"), ("protocol", "1")),
    ]

    def bad() -> None:
        for greeting in greetings:
            with socket.create_connection(("127.0.0.1", scene.federator.link_port), timeout=10) as wire:
                wire.sendall(greeting)
                answer = drain(wire)
                assert not answer or (answer[0] == 0x20 and answer[3]), answer

    scene.after(bad)
    assert scene.federator.neighbours() == [1]


def test_attack_a_neighbour_cannot_publish_on_topics_that_never_cross(scene: Scene) -> None:
    closed = ["$SYS/evil/x", "$CONTROL/dynamic-security/v1", "$share/g/evil", "federator/evil/x", "hanse/probe/x"]
    with Neighbour(scene.federator) as neighbour:

        def bad() -> None:
            for number, topic in enumerate(closed):
                neighbour.hand_in("here/#", packet(topic, b"evil"), first=number)
                neighbour.hand_in("here/#", packet(topic, b"evil", 1), first=100 + number, qos=1)

        moved = scene.after(bad)
    assert moved["gate_closed_topic"] == 2 * len(closed)
    assert scene.published_here == []
    assert scene.crossed == []


def test_attack_a_neighbours_malformed_publications_do_not_end_the_session_at_the_host(scene: Scene) -> None:
    """Mosquitto ends a session for each of these. At QoS 1 it would be sent again after every reconnect."""
    malformed = [
        packet("here/+", b"", 1),
        packet("here/\x01", b"", 1),
        packet("", b"", 1),
        b"\x32\x02\x00\x00",
        b"\x32\x06\xff\xff\x61\x00\x00\x00",
        b"\x32\x06\x00\x01\xff\x00\x00\x00",
        b"\x32\x08\x00\x01\x61\x00\x00\x02\x0b\x01",
        encode("here/x", b"", qos=1, response_topic="r").replace(b"\x08\0\x01r", b"\x08\0\x01#"),
        packet("/".join(["here"] * 201), b"", 1),
    ]
    with Neighbour(scene.federator) as neighbour:
        moved = scene.after(lambda: neighbour.hand_in("here/#", *malformed, first=1_000, qos=1))
    assert moved["gate_malformed"] + moved["gate_unportable"] == len(malformed)
    assert scene.published_here == []
    assert scene.crossed == []


def test_malformed_messages_between_federators_are_counted(scene: Scene) -> None:
    words = [
        b"",
        b"[" * 100_000,
        b"{}",
        b'{"kind": "shares"}',
        b'{"kind": "shares", "names": 1}',
        b"\xff",
    ]
    words += [
        b'{"kind": "bridges", "names": 1e999}',
        b'{"kind": "shares", "names": {"a": [1]}}',
        b"9" * 5_000,
    ]
    with Neighbour(scene.federator) as neighbour:

        def bad() -> None:
            for number, word in enumerate(words):
                neighbour.hand_in(MANAGEMENT_GROUP, encode(MANAGEMENT_GROUP, word), first=2_000 + number)
            for number, word in enumerate((b"", b"\x01", b"\x01\x10\xff", b"\x01\x12\xff\xff\x7f", b"\x02\x10\x01")):
                neighbour.hand_in(MANAGEMENT_GROUP, encode(RETAINED_TOPIC, word), first=2_500 + number)
            neighbour.hand_in(MANAGEMENT_GROUP, b"\x30\x00", first=3_000)

        moved = scene.after(bad)
    assert moved["management_refused"] >= 12
    assert scene.crossed == []


def test_attack_a_client_cannot_become_core_or_move_a_mesh_by_publishing(scene: Scene) -> None:
    """With `link = direct`, no protocol messages pass through the broker, and the protocol's topics do not cross."""
    forged = ControlFrame(
        1,
        EPOCH_MAX,
        SEQUENCE_MAX,
        0,
        0,
        announcements=(Announcement(1, EPOCH_MAX, SEQUENCE_MAX, 0, 1),),
        claim_deltas=(ClaimDelta(1, EPOCH_MAX, 0, (ClaimChange("#", 0), ClaimChange("here/#", 0))),),
    )

    def groups() -> list[dict[str, Any]]:
        """Return all groups except a federator's own, which it leaves some time after the answers to a trace."""
        pages: list[Any] = [one.page("/groups") for one in (scene.federator, scene.other)]
        rows = [row for page in pages for row in page["groups"]]
        return [row for row in rows if not row["group"].startswith("$hanse/federator/")]

    before = groups()
    assert [row["group"] for row in before] == ["#", "$hanse/management", "here/#"] * 2

    def bad() -> None:
        for _ in range(200):
            for kind in ("core_ann", "memb_ann", "routing", "ack"):
                scene.here.publish(f"federator/{kind}/0/1", codec.encode_control(forged), 0)
            scene.here.publish("federated_topology_ann", json.dumps({"id": 0, "mac": "\ud800"}).encode(), 0)
        scene.here.publish("federator/core_ann/0/1", codec.encode_control(forged), 1, retain=True)

    scene.after(bad)
    assert groups() == before
    assert scene.crossed == []


TOPICS = {
    "/": True,
    "//": True,
    "here": True,
    "/".join("a" * 200): True,
    "x" * 65_535: True,
    "$SYS/evil/x": False,
    "$share/g/t": False,
    "$hanse/management": False,
    "federator/evil/x": False,
    "hanse/probe/x": False,
    "federated_topology_ann": False,
    "../../etc/passwd": True,
    "<script>alert(1)</script>": True,
    "'; drop table": True,
    "%2e%2e/%00": True,
    "e\u0301": True,
    "\u00e9": True,
    "\u202eabc/\U0001f600": True,
    "\ufeffa": True,
}


def test_topics_of_clients_cross_unchanged_or_not_at_all(scene: Scene) -> None:
    def bad() -> None:
        for topic in TOPICS:
            scene.here.publish(topic, b"topic", 1)

    scene.after(bad)
    expected = [topic for topic, crosses in TOPICS.items() if crosses]
    assert scene.crossed == expected
    assert [message.topic for message in scene.there.messages if message.payload == b"topic"] == expected
    scene.there.messages.clear()


def test_payloads_of_clients_cross_whole_or_are_counted(scene: Scene) -> None:
    def properties(count: int, **more: object) -> Properties:
        made = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if count:
            made.UserProperty = [(f"k{n}", "v") for n in range(count)]
        for name, value in more.items():
            setattr(made, name, value)
        return made

    def bad() -> None:
        scene.here.publish("p/empty", b"", 1)
        scene.here.publish("p/many", b"x", 1, properties=properties(900))
        scene.here.publish("p/too-many", b"x", 1, properties=properties(10_000))
        scene.here.publish("p/expired", b"x", 1, properties=properties(0, MessageExpiryInterval=1))
        scene.here.publish("p/binary", bytes(range(256)), 2)

    scene.after(bad)
    assert scene.crossed == ["p/empty", "p/many", "p/expired", "p/binary"]
    found = {message.topic: message for message in scene.there.messages}
    assert found["p/empty"].payload == b""
    assert found["p/binary"].payload == bytes(range(256))
    assert len(found["p/many"].properties.UserProperty) == 900  # type: ignore[union-attr]
    metrics = scene.federator.metrics()
    assert any("properties" in line and not line.endswith(" 0") for line in metrics.splitlines()), metrics
    scene.there.messages.clear()


def test_attack_one_large_publication_does_not_end_the_broker(scene: Scene) -> None:
    """A little above 16 MiB, Mosquitto with that limit drops it, logs the drop to us, drops the log line, and dies."""

    def bad() -> None:
        for qos in (0, 1, 2):
            scene.here.publish("p/too-large", bytes(17 << 20), qos)

    scene.after(bad)
    assert scene.crossed == []
    assert 'dropped_total{reason="packet_too_large"} 3' in scene.federator.metrics()


def test_attack_a_flood_of_announcements_leaves_the_federation_as_it_is(scene: Scene) -> None:
    cores = [scene.federator.core_of(group) for group in ("#", "here/#")]
    with Neighbour(scene.federator) as neighbour:

        def bad() -> None:
            for number in range(3_000):
                announced = (Announcement(1_000 + number, 1_000, 1, 1, 1),)
                claimed = (ClaimDelta(1_000 + number, 1_000, 0, (ClaimChange(f"flood/{number}", 0),)),)
                frame = ControlFrame(9, 3_000, number + 1, 0, 0, announcements=announced, claim_deltas=claimed)
                neighbour.say(codec.encode_control(frame))

        scene.after(bad)
    assert [scene.federator.core_of(group) for group in ("#", "here/#")] == cores
    assert scene.crossed == []


def test_raw_packets_of_a_client_that_the_broker_must_refuse_touch_nobody_else(scene: Scene) -> None:
    """QoS 3, identifier 0, alias 0, a length of five bytes: the broker ends that client, and only that one."""
    bad_packets = [
        b"\x36\x05\x00\x01a\x00\x01\x00",
        b"\x32\x06\x00\x01a\x00\x00\x00",
        b"\x30\x07\x00\x01a\x03\x23\x00\x00",
        b"\x30\xff\xff\xff\xff\x01",
        b"\x30\x04\x00\x01+\x00",
        b"\x30\x04\x00\x01\x00\x00",
        b"\x30\x05\x00\x02\xc0\x80\x00",
        b"\x30\x06\x00\x03\xed\xa0\x80\x00",
        b"\x30\x04\x00\x01\x01\x00",
    ]

    def bad() -> None:
        for one in bad_packets:
            with socket.create_connection(("127.0.0.1", scene.brokers[0].port), timeout=10) as wire:
                wire.sendall(mqtt5.ConnectPacket("", clean_start=True).write())
                assert wire.recv(4_096)[0] == 0x20
                wire.sendall(one + b"\xe0\x00")
                drain(wire)

    scene.after(bad)
    assert scene.crossed == []


@pytest.fixture(scope="module")
def by_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run the same with `link = broker`: the protocol passes through the brokers, and no ACL closes its topics."""
    directory = tmp_path_factory.mktemp("bad-by-broker")
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*LOG_LINES) as two:
        federators = [
            Federator(0, one.url, directory, "--link", "broker", "--neighbour", f"1={two.url}"),
            Federator(1, two.url, directory, "--link", "broker", "--neighbour", f"0={one.url}"),
        ]
        with (
            running(federators),
            Client(one.port, name="here") as here,
            Client(two.port, name="there") as there,
        ):
            here.subscribe("here/#")
            there.subscribe("#")
            eventually(lambda: knows_all(federators, "#") and knows_all(federators, "here/#"), "interest is known")
            yield Scene([one, two], federators, here, there)


def test_bad_messages_on_the_control_topics_are_refused_and_counted(by_broker: Scene) -> None:
    scene = by_broker
    control = codec.encode_control(ControlFrame(9, 1_000, 1, 0, 0))
    data = broker_link.encode_data(1_000, 1, DATA)
    messages = [
        ("federator/core_ann/0/9", control),  # not a neighbour
        ("federator/core_ann/0/0", control),  # ourselves, reflected
        ("federator/core_ann/0/01", control),
        ("federator/core_ann/0/4294967296", control),
        ("federator/core_ann/0/1", b""),
        ("federator/core_ann/0/1", control[:-1]),
        ("federator/core_ann/0/1", control + b"\0"),
        ("federator/core_ann/0/1", b"[" * 50_000),
        ("federator/memb_ann/0/1", b"\x02" + control[1:]),
        ("federator/routing/0/1", data[:-1]),
        ("federator/routing/0/1", b"\x01\x03" + b"\xff" * 20),
        ("federator/routing/0/9", data),
        ("federator/ack/0/1", b"\x01\x04\x05"),
        ("federator/ack/0/1", broker_link.encode_acknowledgements(1, range(1, 9))[0] + b"\0"),
        ("federator/ack/0/1", b"\x01\x04\x00\x01\x01" + b"\xff" * 8 + b"\x3f"),
    ]

    def bad() -> None:
        for topic, payload in messages:
            scene.here.publish(topic, payload, 1)

    moved = scene.after(bad)
    assert moved["frames_refused"] == len(messages)
    assert scene.crossed == []


def test_attack_a_retained_control_message_is_refused_live(by_broker: Scene) -> None:
    scene = by_broker
    topic = "federator/core_ann/0/1"
    stale = codec.encode_control(ControlFrame(1, 1, 1, 0, 0, is_leaving=True))
    moved = scene.after(lambda: scene.here.publish(topic, stale, 1, retain=True))
    # An existing subscription receives it like any other. Its number makes it stale.
    assert moved.get("frames_refused", 0) + moved.get("ignored_stale_frame", 0) == 1
    assert scene.federator.neighbours() == [1]
    scene.here.publish(topic, b"", 1, retain=True)


@pytest.mark.parametrize(
    "document",
    [
        '{"version": 1, "saved_at_s": 0, "subscriptions": [7]}',
        *(pytest.param(document, marks=pytest.mark.slow) for document in ('{"version": 99}', "{", "7")),
    ],
)
def test_a_damaged_state_directory_does_not_stop_a_start(tmp_path: Path, document: str) -> None:
    with Mosquitto(*LOG_LINES) as broker:
        federator = Federator(0, broker.url, tmp_path)
        state = tmp_path / "federator-0"
        state.mkdir()
        (state / "interest.json").write_text(document)
        (state / "epoch").write_text("not a number")
        with running([federator]):
            assert (state / "interest.json.damaged").read_text() == document
            assert (state / "epoch.damaged").exists()
