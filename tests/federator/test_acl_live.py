"""Access list that `hanse interest config --acl` prints, in force at real Mosquittos: allowed and denied actions."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode
from tests.brokers import Mosquitto
from tests.federation import eventually
from tests.federators import LOG_LINES, Federator, knows_all, running
from typer.testing import CliRunner

from hanse.cli import build
from hanse.protocol import codec
from hanse.protocol.messages import Announcement, ClaimChange, ClaimDelta, ControlFrame
from hanse.protocol.settings import EPOCH_MAX, SEQUENCE_MAX

pytestmark = pytest.mark.processes

DOCS = Path(__file__).parents[2] / "docs" / "security.md"
USERS = ("hanse-1", "hanse-2", "app")
CLIENTS = "\nuser app\ntopic readwrite plant/#\n"


def printed(identity: int, *neighbours: int) -> str:
    words = ["interest", "config", "--vendor", "mosquitto", "--acl", "--id", str(identity)]
    for neighbour in neighbours:
        words += ["--neighbour", str(neighbour)]
    found = CliRunner().invoke(build(words), words)
    assert found.exit_code == 0, found.output
    return found.output


class Login:
    """Client with a login, which records the outcome of its publications."""

    def __init__(self, broker: Mosquitto, user: str) -> None:
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=f"as-{user}", protocol=MQTTProtocolVersion.MQTTv5
        )
        self.client.username_pw_set(user, user)
        self.answers: list[ReasonCode] = []
        self.topics: list[str] = []
        self.client.on_publish = lambda _client, _data, _number, code, _properties: self.answers.append(code)
        self.client.on_message = lambda _client, _data, message: self.topics.append(message.topic)
        self.client.connect("127.0.0.1", broker.port)
        self.client.loop_start()
        eventually(self.client.is_connected, f"{user} is let in")

    def may_publish(self, topic: str, payload: bytes = b"") -> bool:
        """Return whether the broker accepts a publication."""
        before = len(self.answers)
        self.client.publish(topic, payload, 1)
        eventually(lambda: len(self.answers) > before, "PUBACK")
        return not self.answers[-1].is_failure

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


Scene = tuple[list[Mosquitto], list[Federator]]


@pytest.fixture(scope="module", params=["broker", "direct"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run two brokers that require a login, each with its printed access list, and a federator at each."""
    folder = tmp_path_factory.mktemp("acl")
    brokers = []
    for identity, neighbour in ((1, 2), (2, 1)):
        home = folder / f"broker-{identity}"
        home.mkdir()
        passwords, acl = home / "passwords", home / "acl"
        passwords.touch()
        for user in USERS:
            subprocess.run(["mosquitto_passwd", "-b", passwords, user, user], check=True, capture_output=True)
        acl.write_text(printed(identity, *([neighbour] if request.param == "broker" else [])) + CLIENTS)
        for file in (passwords, acl):
            file.chmod(0o600)
        lines = (*LOG_LINES, f"password_file {passwords}", f"acl_file {acl}")
        brokers.append(Mosquitto(*lines, directory=home, anonymous=False))
    with brokers[0] as one, brokers[1] as two:
        federators = []
        for identity, here, there in ((1, one, two), (2, two, one)):
            login = ["--username", f"hanse-{identity}", "--password", f"hanse-{identity}"]
            federators.append(Federator(identity, here.url, folder, *login, "--link", request.param))
            if request.param == "broker":
                federators[-1].words += ["--neighbour", f"{3 - identity}={there.url}"]
        if request.param == "direct":
            federators[0].words += ["--link-listen", federators[0].link_url]
            federators[1].words += ["--neighbour", federators[0].link_url]
        with running(federators):
            yield [one, two], federators


@pytest.fixture
def app(scene: Scene) -> Iterator[Login]:
    login = Login(scene[0][0], "app")
    yield login
    login.end()


def test_the_federation_works_with_the_access_list(scene: Scene, app: Login) -> None:
    brokers, federators = scene
    far = Login(brokers[1], "app")
    try:
        far.client.subscribe("plant/#", 1)
        eventually(lambda: knows_all(federators, "plant/#"), "the subscription is known by the log topics")
        assert app.may_publish("plant/7/temp", b"21")
        eventually(lambda: far.topics == ["plant/7/temp"], "it has crossed")
        assert all("host_subscriptions_refused 0" in one.metrics() for one in federators)
    finally:
        far.end()


def test_attack_a_client_with_a_login_cannot_publish_on_the_control_topics(scene: Scene, app: Login) -> None:
    _, federators = scene
    forged = codec.encode_control(
        ControlFrame(
            2,
            EPOCH_MAX,
            SEQUENCE_MAX,
            0,
            0,
            announcements=(Announcement(2, EPOCH_MAX, SEQUENCE_MAX, 0, 1),),
            claim_deltas=(ClaimDelta(2, EPOCH_MAX, 0, (ClaimChange("stolen/#", 0),)),),
        )
    )
    before = federators[0].counters()
    for kind in ("core_ann", "memb_ann", "routing", "ack"):
        assert not app.may_publish(f"federator/{kind}/1/2", forged)
    assert not app.may_publish("federated_topology_ann", b"{}")
    assert not app.may_publish("$hanse/telemetry/v1/link_counts/1", b"")
    assert app.may_publish("federator/beacon/plant/x")
    assert not federators[0].knows("stolen/#")
    assert federators[0].counters().get("frames_refused", 0) == before.get("frames_refused", 0)
    assert federators[0].neighbours() == [2]


def test_attack_a_client_cannot_listen_to_the_control_topics_or_the_log(scene: Scene, app: Login) -> None:
    brokers, _ = scene
    app.client.subscribe([("federator/#", 1), ("$SYS/broker/log/#", 1), ("#", 1)])
    assert app.may_publish("plant/marker")
    other = Login(brokers[0], "hanse-1")
    try:
        for topic in ("federator/core_ann/1/2", "other/tree"):
            assert other.may_publish(topic, b"\0")
        eventually(lambda: "plant/marker" in app.topics, "its own tree is heard")
        assert app.may_publish("plant/last")
        eventually(lambda: "plant/last" in app.topics, "and what came before it")
        assert not [topic for topic in app.topics if not topic.startswith("plant/")]
    finally:
        other.end()


def test_attack_a_neighbours_login_publishes_only_in_its_own_name(scene: Scene) -> None:
    brokers, federators = scene
    stolen = Login(brokers[0], "hanse-2")
    try:
        is_by_broker = "broker" in federators[0].words
        assert stolen.may_publish("federator/ack/1/2", b"\1\4\0\0") is is_by_broker
        for topic in ("federator/core_ann/1/3", "federator/core_ann/2/1", "plant/x", "$hanse/telemetry/v1/x/2"):
            assert not stolen.may_publish(topic)
        stolen.client.subscribe([("#", 1), ("federator/#", 1)])
        home = Login(brokers[0], "app")
        try:
            assert home.may_publish("plant/secret")
            assert home.may_publish("federator/beacon/plant/x")
        finally:
            home.end()
        assert stolen.topics == []
    finally:
        stolen.end()


def test_the_page_shows_the_printed_access_list() -> None:
    assert printed(1, 2) in DOCS.read_text(encoding="utf-8")
