"""Rules for crossing and names, with two real brokers."""

from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, ring, running

pytestmark = pytest.mark.processes


def test_export_import_and_prefix_hold_for_real_clients(tmp_path: Path) -> None:
    plant = ["--prefix", "plants/7", "--export-deny", "secret/#", "--import-allow", "cmd/#"]
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*LOG_LINES) as two:
        with Client(one.port) as early:
            early.publish("kept/open", b"x", retain=True)
            early.publish("secret/kept", b"x", retain=True)
        with (
            running(ring([one, two], tmp_path, [plant, []])) as federators,
            Client(one.port) as inside,
            Client(two.port) as outside,
        ):
            outside.subscribe("#")
            inside.subscribe("cmd/#")
            inside.subscribe("other/#")
            eventually(lambda: federators[0].knows("#"), "the interest in everything is known")
            eventually(lambda: federators[1].knows("plants/7/cmd/#"), "the interest in commands is known")
            eventually(lambda: len(outside.messages) == 1, "the retained message arrives")
            assert outside.messages[0].topic == "plants/7/kept/open"

            inside.publish("temp", b"21")
            inside.publish("secret/code", b"1234")
            inside.publish("$private", b"x")
            outside.publish("plants/7/cmd/stop", b"now")
            outside.publish("cmd/start", b"all")
            outside.publish("other/x", b"not imported")
            eventually(lambda: len(inside.messages) >= 2, "commands arrive")
            # Published last at its broker: once it has arrived, all earlier ones would have.
            inside.publish("last", b"x")
            eventually(lambda: outside.messages[-1].topic == "plants/7/last", "the last one arrives")

            assert [(m.topic, m.payload) for m in inside.messages] == [("cmd/stop", b"now"), ("cmd/start", b"all")]
            assert [m.topic for m in outside.messages if m.topic.startswith("plants/7/") and "cmd" not in m.topic] == [
                "plants/7/kept/open",
                "plants/7/temp",
                "plants/7/last",
            ]
            assert not any("secret" in m.topic for m in outside.messages)


def test_a_publication_for_the_federation_reaches_both_sides_under_its_plain_name(tmp_path: Path) -> None:
    with (
        Mosquitto(*LOG_LINES) as one,
        Mosquitto(*LOG_LINES) as two,
        running(ring([one, two], tmp_path, [["--federated-prefix"], []])) as federators,
        Client(one.port) as here,
        Client(two.port) as there,
        Client(one.port) as publisher,
    ):
        here.subscribe("news/#")
        there.subscribe("news/#")
        eventually(lambda: federators[0].core_of("news/#") is not None, "news/# is known")
        eventually(
            lambda: all(row["mesh"] for row in federators[0].page("/groups")["groups"] if row["group"] == "news/#"),
            "both are in the mesh",
        )
        publisher.publish("federated/news/x", b"hi")
        assert [m.topic for m in there.expect(1)] == ["news/x"]
        assert [m.topic for m in here.expect(1)] == ["news/x"]
