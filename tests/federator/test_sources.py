"""The adapters that the settings choose, behind one face."""

from pathlib import Path

from hanse.federator.settings import FederatorSettings
from hanse.federator.sources import InterestSources
from hanse.interest.reports import Gap, Subscribed
from hanse.mqtt.publication import Publication, encode


def sources(*interest: str, **others: object) -> InterestSources:
    return InterestSources(FederatorSettings(id=1, interest=interest, **others))  # type: ignore[arg-type]


def heard(topic: str, payload: bytes, *, retain: bool = False) -> Publication:
    return Publication(encode(topic, payload), topic, 0, retain, False, 0, (1,))


def test_the_default_subscribes_to_log_topics_and_states_of_bridges() -> None:
    topics = InterestSources(FederatorSettings(id=1)).topics()
    assert "$SYS/broker/log/M/subscribe" in topics
    assert "$SYS/broker/connection/+/state" in topics


def test_a_message_goes_to_the_adapter_that_requested_its_topic() -> None:
    both = sources("beacon", "announce")
    (found,) = both.hear(heard("federator/beacon/a/b", b""))
    assert found[0] == "beacon"
    assert isinstance(found[1][0], Subscribed)
    assert found[1][0].filter == "a/b"
    (found,) = both.hear(heard("NEW_REGULAR_TOPIC", b"c/#"))
    assert (found[0], len(found[1])) == ("announce", 1)
    assert both.hear(heard("elsewhere", b"")) == []


def test_a_retained_beacon_is_ignored() -> None:
    assert sources("beacon").hear(heard("federator/beacon/a", b"", retain=True)) == [("beacon", [])]


def test_a_beacon_is_valid_for_the_interval_times_the_factor() -> None:
    chosen = sources("beacon", beacon_interval_s=0.5, expiry_factor=4)
    (report,) = chosen.hear(heard("federator/beacon/a", b""))[0][1]
    assert isinstance(report, Subscribed)
    assert report.ttl_s == 2.0


def test_static_filters_are_known_without_any_message() -> None:
    chosen = sources("static", static_filter=("1:a/#", "b"))
    assert chosen.topics() == []
    ((source, reports),) = chosen.start()
    assert source == "static"
    assert [(report.filter, report.qos) for report in reports if isinstance(report, Subscribed)] == [
        ("a/#", 1),
        ("b", 2),
    ]


def test_a_file_adapter_comes_with_its_path() -> None:
    chosen = sources("mosquitto-file:/var/log/mosquitto.log")
    assert chosen.topics() == []
    assert [path for _, path in chosen.files] == [Path("/var/log/mosquitto.log")]


def test_a_list_comes_with_its_address() -> None:
    chosen = sources("poll:nats", poll_url="http://127.0.0.1:8222")
    assert chosen.topics() == []
    assert [(adapter.listing.name, str(address)) for adapter, address in chosen.polls] == [
        ("nats", "http://127.0.0.1:8222")
    ]


def test_emqx_reports_subscriptions_and_gaps() -> None:
    chosen = sources("emqx")
    topic = "$SYS/brokers/emqx@127.0.0.1/clients/c/subscribed"
    payload = b'{"clientid": "c", "topic": "a/#", "subopts": {"qos": 1}}'
    assert chosen.hear(heard(topic, payload)) == [("emqx", [Subscribed("c", "a/#", 1)])]
    assert chosen.lost() == [("emqx", [Gap()])]


def test_an_absence_of_the_host_is_a_gap_for_the_log_and_none_for_beacons() -> None:
    assert dict(sources("mosquitto-log", "beacon").lost()) == {"mosquitto-log": [Gap()], "beacon": []}
