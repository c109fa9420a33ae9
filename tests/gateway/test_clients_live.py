"""Unmodified clients of several libraries, through two gateways, to three federated brokers."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from tests.federation import RunningFederation, eventually
from tests.gateway.actors.actor import Actor
from tests.gateway.placing import name_at
from tests.gateways import Gateway

pytestmark = pytest.mark.processes

BROKERS = ("0", "1", "2")
PROPERTIES = {
    "content_type": "text/plain",
    "response_topic": "answers/here",
    "correlation_data": "c-17",
    "user": [["a", "1"], ["b", "zwei"]],
}


@dataclass
class Setting:
    federation: RunningFederation
    gateways: tuple[Gateway, Gateway]

    def url(self, gateway: int, scheme: str) -> str:
        port = self.gateways[gateway].port_of(1 if scheme == "ws" else 0)
        return f"{scheme}://127.0.0.1:{port}{'/mqtt' if scheme == 'ws' else ''}"


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    directory = tmp_path_factory.mktemp("federation")
    with ExitStack() as stack:
        federation = stack.enter_context(RunningFederation(directory, len(BROKERS)))
        brokers = [f"{k}=mqtt://127.0.0.1:{federation.port(k)}" for k in range(len(BROKERS))]
        listen = ("mqtt://127.0.0.1:0", "ws://127.0.0.1:0")
        gateways = [
            stack.enter_context(Gateway(directory / name, *brokers, listen=listen, words=words))
            for name, words in (("first", ()), ("second", ("--workers", "2")))
        ]
        yield Setting(federation, (gateways[0], gateways[1]))


CLIENTS = [
    ("paho", "mqtt", 3),
    ("paho", "mqtt", 4),
    ("paho", "mqtt", 5),
    ("paho", "ws", 5),
    ("hanse", "mqtt", 4),
    ("hanse", "mqtt", 5),
    ("hanse", "ws", 5),
    # npm installs it first, which `make test` does not need otherwise.
    pytest.param("mqttjs", "mqtt", 4, marks=pytest.mark.slow),
    pytest.param("mqttjs", "mqtt", 5, marks=pytest.mark.slow),
    pytest.param("mqttjs", "ws", 4, marks=pytest.mark.slow),
    pytest.param("mqttjs", "ws", 5, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "scheme", "version"), CLIENTS)
def test_the_whole_story_of_a_client(setting: Setting, kind: str, scheme: str, version: int) -> None:
    root = f"story-{kind}-{scheme}-{version}"
    names = [name_at(one, BROKERS, f"{root}-{one}-") for one in BROKERS]
    url, other_url = setting.url(0, scheme), setting.url(1, scheme)
    with ExitStack() as stack:

        def actor(where: str = url) -> Actor:
            return stack.enter_context(Actor(kind, where, version))

        # Subscribe at one broker, publish at another.
        reader, writer = actor(), actor()
        assert not reader.connect(names[0], clean=False)
        reader.subscribe(f"{root}/#", 2)
        writer.connect(names[1])
        eventually(lambda: setting.federation.knows(f"{root}/#"), "all federators know the group")
        for qos in (0, 1, 2):
            properties = PROPERTIES if version == 5 else None
            writer.publish(f"{root}/q{qos}", f"at {qos}", qos, properties=properties)
            (got,) = reader.wait(f"{root}/q{qos}")
            assert (got["payload"], got["qos"], got["retain"]) == (f"at {qos}", qos, False)
            if version == 5:
                assert got["properties"] == {**PROPERTIES, "payload_format": 1}

        # Retained messages reach a subscriber that comes later, at the broker where they were published.
        writer.publish(f"{root}/kept", "retained", 1, retain=True)
        reader.wait(f"{root}/kept")
        later = actor()
        later.connect(name_at("1", BROKERS, f"{root}-later-"))
        later.subscribe(f"{root}/kept", 1)
        (got,) = later.wait(f"{root}/kept")
        assert (got["payload"], got["retain"]) == ("retained", True)

        # A will is published when its client dies, and not when it says goodbye.
        will = {"topic": f"{root}/will", "payload": "died", "qos": 1}
        polite, dying = actor(), actor()
        polite.connect(name_at("2", BROKERS, f"{root}-polite-"), will={**will, "payload": "said goodbye"})
        polite.disconnect()
        dying.connect(names[2], will=will)
        dying.kill()
        assert [one["payload"] for one in reader.wait(f"{root}/will")] == ["died"]

        # A session outlives its connection, and is found again through the other gateway.
        reader.disconnect()
        for k in range(5):
            writer.publish(f"{root}/queued", f"waited {k}", 1)
        again = actor(other_url)
        # MQTT 3.1 has no flag that says so.
        assert again.connect(names[0], clean=False) or version == 3
        assert [one["payload"] for one in again.wait(f"{root}/queued", 5)] == [f"waited {k}" for k in range(5)]

        # A second connection with the same id through the first gateway ends the one at the second.
        if kind != "hanse":  # which reconnects at once, as it should, and would fight for ever
            newest = actor()
            newest.connect(names[0], clean=False)
            assert again.is_closed.wait(20)
            writer.publish(f"{root}/newest", "here", 1)
            newest.wait(f"{root}/newest")
        writer.disconnect()


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquittos_own_clients(setting: Setting, version: str) -> None:
    root = f"story-{version}"
    where = ["-h", "127.0.0.1", "-p", str(setting.gateways[0].port), "-V", version]
    other = ["-h", "127.0.0.1", "-p", str(setting.gateways[1].port), "-V", version]
    reader, writer, mortal = (name_at(one, BROKERS, f"{root}-{one}-") for one in BROKERS)
    keeps = ["-c", "-x", "600"] if version == "mqttv5" else ["-c"]

    def publish(topic: str, payload: str, qos: int, *words: str) -> None:
        command = [
            "mosquitto_pub",
            *where,
            "-i",
            writer,
            "-t",
            f"{root}/{topic}",
            "-m",
            payload,
            "-q",
            str(qos),
            *words,
        ]
        subprocess.run(command, timeout=40, check=True)

    def subscribed(words: list[str]) -> "subprocess.Popen[str]":
        # Line by line: mosquitto_sub buffers what it writes into a pipe.
        command = ["stdbuf", "-oL", "mosquitto_sub", *words, "-q", "2", "-d", "-t", f"{root}/#"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert any("Subscribed" in line for line in process.stdout)
        return process

    def said(process: "subprocess.Popen[str]") -> list[str]:
        out, _ = process.communicate(timeout=40)
        return [line for line in out.splitlines() if line.startswith("say ")]

    with ExitStack() as stack:

        def started(words: list[str]) -> "subprocess.Popen[str]":
            process = stack.enter_context(subscribed(words))
            stack.callback(process.kill)
            return process

        first = started([*where, "-i", reader, *keeps, "-C", "5"])
        eventually(lambda: setting.federation.knows(f"{root}/#"), "all federators know the group")
        for qos in (0, 1, 2):
            publish("q", f"say {qos}", qos)
        publish("kept", "say kept", 1, "-r")
        dying = started([*where, "-i", mortal, "--will-topic", f"{root}/will", "--will-payload", "say died"])
        dying.kill()
        assert sorted(said(first)) == sorted(["say 0", "say 1", "say 2", "say kept", "say died"])
        for k in range(3):
            publish("queued", f"say queued {k}", 1)
        # Its session, through the other gateway. It subscribes again, which also brings what is retained.
        command = ["mosquitto_sub", *other, "-i", reader, *keeps, "-q", "2", "-t", f"{root}/#", "-C", "4", "-W", "30"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert [line for line in done.stdout.splitlines() if "queued" in line] == [f"say queued {k}" for k in range(3)]


def test_both_gateways_place_alike(setting: Setting) -> None:
    for k in range(5):
        shown = [one.command("explain", "--client", f"any{k}", "--json").stdout for one in setting.gateways]
        assert shown[0] == shown[1]
