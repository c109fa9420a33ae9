import json

import pytest
from typer.testing import CliRunner

from hanse.cli import build
from hanse.errors import LocalError
from hanse.interest import AnnounceAdapter, BeaconAdapter, StaticAdapter, Subscribed, vendor


def test_a_beacon_is_interest_for_k_intervals() -> None:
    beacons = BeaconAdapter(beacon_interval_s=2, expiry_factor=3)
    assert beacons.topics() == ["federator/beacon/#"]
    assert beacons.message("federator/beacon/door_sensor", b"") == [Subscribed("(beacons)", "door_sensor", 2, 6)]
    assert beacons.message("federator/beacon/a/b", b"x") == [Subscribed("(beacons)", "a/b", 2, 6)]
    assert beacons.lost() == []


def test_a_retained_beacon_and_an_empty_one_are_refused() -> None:
    beacons = BeaconAdapter()
    assert beacons.message("federator/beacon/t", b"", is_retained=True) == []
    assert beacons.message("federator/beacon/", b"") == []
    assert beacons.counters == {"beacons_retained": 1, "messages_of_no_concern": 1}


def test_a_beacon_interval_of_nothing_is_refused() -> None:
    with pytest.raises(LocalError, match="above 0"):
        BeaconAdapter(beacon_interval_s=0)


def test_an_announcement_is_the_topic_as_text_or_an_object() -> None:
    announcements = AnnounceAdapter(ttl_s=9)
    assert announcements.topics() == ["NEW_REGULAR_TOPIC"]
    assert announcements.message("NEW_REGULAR_TOPIC", b"plant/1\n") == [Subscribed("(announcements)", "plant/1", 2, 9)]
    payload = json.dumps({"topic": "p/+", "client": "panel", "qos": 1}).encode()
    assert announcements.message("NEW_REGULAR_TOPIC", payload) == [Subscribed("panel", "p/+", 1, 9)]


def test_a_first_publication_is_noted_and_is_not_interest() -> None:
    announcements = AnnounceAdapter()
    assert announcements.message("NEW_REGULAR_TOPIC", b'{"topic": "t", "role": "publisher"}') == []
    assert announcements.counters == {"publishers_announced": 1}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"{",
        b"{}",
        b'{"topic": ""}',
        b'{"topic": 7}',
        b'{"topic": "t", "qos": 3}',
        b'{"topic": "t", "qos": true}',
        b'{"topic": "t", "client": ""}',
        b'{"topic": "t", "role": "king"}',
        b'{"a":' * 30_000,
        b"x" * 70_001,
    ],
)
def test_a_malformed_announcement_is_counted(payload: bytes) -> None:
    announcements = AnnounceAdapter()
    assert announcements.message("NEW_REGULAR_TOPIC", payload) == []
    assert announcements.counters == {"announcements_malformed": 1}


def test_static_filters_carry_their_qos_or_the_largest() -> None:
    static = StaticAdapter(["plant/#", "1:a/+", "$share/g/x"])
    assert static.topics() == []
    assert static.start() == [
        Subscribed("(configuration)", "plant/#", 2),
        Subscribed("(configuration)", "a/+", 1),
        Subscribed("(configuration)", "$share/g/x", 2),
    ]


def test_an_invalid_static_filter_stops_the_start_with_a_sentence() -> None:
    with pytest.raises(LocalError, match=r"'a/#/b' is not usable.*Correct the setting"):
        StaticAdapter(["a/#/b"])


def test_the_configuration_for_mosquitto_is_printed() -> None:
    result = CliRunner().invoke(build(["interest"]), ["interest", "config", "--vendor", "mosquitto"])
    assert result.exit_code == 0
    assert {"log_dest topic", "log_type subscribe", "log_type unsubscribe", "log_type notice"} <= set(
        result.stdout.splitlines()
    )
    text = vendor.lines("mosquitto", log_file="/var/log/mosquitto/mosquitto.log")
    assert "log_dest file /var/log/mosquitto/mosquitto.log" in text.splitlines()
    assert "log_dest topic" not in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rabbitmq", ["mqtt.prefetch = 10000", "rabbitmq_mqtt rabbitmq_management", "--interest poll:rabbitmq"]),
        ("nats", ["jetstream {", 'http: "127.0.0.1:8222"', "--interest poll:nats"]),
        ("emqx", ["client_subscribed = true", "--interest emqx", "--interest poll:emqx"]),
    ],
)
def test_the_configuration_for_other_makes_is_printed(name: str, words: list[str]) -> None:
    result = CliRunner().invoke(build(["interest"]), ["interest", "config", "--vendor", name])
    assert result.exit_code == 0
    assert all(word in result.stdout for word in words)
    with pytest.raises(LocalError, match="leave it out"):
        vendor.lines(name, log_file="/x")


def test_an_unknown_vendor_gets_the_list_of_known_ones() -> None:
    with pytest.raises(LocalError, match="expected one of: emqx, mosquitto, nats, rabbitmq"):
        vendor.lines("acme")
