import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import hanse.federator
from hanse.cli import build, main
from hanse.errors import LocalError
from hanse.federator.settings import (
    AdapterChoice,
    FederatorSettings,
    Neighbour,
    is_loopback,
    parse_host_port,
    parse_listen,
    parse_neighbour,
)
from hanse.mqtt.tls import TlsSettings
from hanse.mqtt.urls import Address
from hanse.protocol.grouping import Grouping
from hanse.protocol.settings import Settings
from hanse.settings import read_settings, settings_of


def read(**sources: object) -> FederatorSettings:
    return read_settings(FederatorSettings, section="federator", **sources)  # type: ignore[arg-type]


def with_flags(**flags: object) -> FederatorSettings:
    return read(flags={"id": "1", **flags})


@pytest.fixture
def pem(tmp_path: Path) -> str:
    file = tmp_path / "file.pem"
    file.write_text("not read here", encoding="ascii")
    return str(file)


def test_leaves_are_known_by_their_ids() -> None:
    assert FederatorSettings(id=1, leaf=("1000", "7")).leaves() == {7, 1000}


def test_only_the_id_is_required() -> None:
    settings = FederatorSettings(id=7)
    assert settings.broker_address() == Address("127.0.0.1", 1883)
    assert settings.adapters() == (AdapterChoice("mosquitto-log"),)
    assert settings.neighbours() == ()
    assert settings.listen_address() is None
    assert settings.metrics_address() == ("127.0.0.1", 9883)
    assert settings.host_tls() is None
    assert settings.link_tls() is None
    assert settings.crossing().is_trivial


@pytest.mark.parametrize(("word", "version"), [("auto", "auto"), ("5", 5), ("4", 4)])
def test_the_version_of_the_host_is_chosen_by_its_number(word: str, version: object) -> None:
    assert with_flags(broker_version=word).mqtt_version() == version
    assert read(flags={"id": "1"}, environment={"HANSE_BROKER_VERSION": word}).mqtt_version() == version


def test_an_unknown_version_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LocalError, match=r"--broker-version.*auto, 5, 4"):
        with_flags(broker_version="3")


def test_a_list_is_requested_with_its_login_and_shown_without_it() -> None:
    settings = with_flags(
        interest=["poll:rabbitmq"], poll_url="http://127.0.0.1:15672", poll_username="hanse", poll_password="secret"
    )
    assert settings.adapters() == (AdapterChoice("poll", listing="rabbitmq"),)
    address = settings.poll_address()
    assert (str(address), address.username, address.password) == ("http://127.0.0.1:15672", "hanse", "secret")
    assert "secret" not in repr(settings) + repr(address) + str(address)
    assert settings.poll_listing().name == "rabbitmq"


def test_a_list_of_another_make_is_read_by_paths() -> None:
    settings = with_flags(interest=["poll"], poll_url="http://127.0.0.1:8081/api/v4/subscriptions", poll_rows="data")
    rows = settings.poll_listing().rows({"data": [{"clientid": "c", "topic": "t", "qos": 1}]}, Counter())
    assert list(rows) == [("c", "t", 1)]


def test_the_protocols_defaults_are_ours() -> None:
    assert FederatorSettings(id=7, link="broker").protocol_settings() == Settings()


@pytest.mark.parametrize("absence_s", [0.0, 3600.0, 30 * 86_400.0])
def test_ids_are_remembered_for_longer_than_publications_wait_for_an_absent_neighbour(absence_s: float) -> None:
    settings = FederatorSettings(id=7, absence_s=absence_s).protocol_settings()
    assert settings.seen_s >= max(7200.0, 2 * absence_s)


def test_little_is_repeated_over_direct_links_because_they_lose_nothing() -> None:
    assert FederatorSettings(id=7).protocol_settings() == Settings(retransmission_factor=10)


def test_protocol_settings_are_handed_on() -> None:
    given = with_flags(
        announcement_interval="500ms",
        expiry_factor="4",
        redundancy="3",
        grouping="prefix:2",
        election="largest",
        outsider="one_parent",
        announcements="per_group",
    )
    assert given.protocol_settings() == Settings(
        announcement_interval_s=0.5,
        expiry_factor=4,
        redundancy=3,
        grouping=Grouping("prefix", 2),
        election="largest",
        outsider="one_parent",
        announcements="per_group",
        retransmission_factor=10,
    )


def test_the_names_of_the_papers_are_aliases() -> None:
    given = read(
        environment={
            "TOPOLOGY_MANAGER_URL": "http://topology-manager:8080",
            "ADVERTISED_LISTENER": "tcp://mqtt-fed:1883",
            "CORE_ANN_INTERVAL": "2s",
            "BEACON_INTERVAL": "5s",
            "FED_REDUNDANCY": "1",
            "HANSE_INSECURE": "true",
        }
    )
    assert given.manager == ("http://topology-manager:8080",)
    assert given.advertised_listener == "tcp://mqtt-fed:1883"
    assert (given.announcement_interval_s, given.beacon_interval_s, given.redundancy) == (2.0, 5.0, 1)


def test_a_flag_wins_over_the_environment_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "hanse.toml"
    file.write_text("[federator]\nid = 1\nredundancy = 3\nneighbour = ['mqtt://127.0.0.1:1']\n", encoding="ascii")
    assert read(file=file).redundancy == 3
    assert read(file=file, environment={"HANSE_REDUNDANCY": "4"}).redundancy == 4
    assert read(file=file, environment={"HANSE_REDUNDANCY": "4"}, flags={"redundancy": "5"}).redundancy == 5
    assert read(file=file).neighbours() == (Neighbour(Address("127.0.0.1", 1)),)


def test_the_managers_values_are_used_if_nothing_else_is_set() -> None:
    given = read(flags={"manager": "https://m:1"}, handed_out={"id": 9, "redundancy": 4, "health_interval": "5s"})
    assert (given.id, given.redundancy) == (9, 4)


def test_an_absent_neighbour_is_awaited_as_long_as_configured() -> None:
    assert with_flags().protocol_settings().absence_s == 3600.0
    assert with_flags(absence="2h").protocol_settings().absence_s == 7200.0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"broker": "http://x"}, ["--broker", "no known scheme"]),
        ({"broker": "mqtt://u:hunter2@x:0"}, ["--broker", "port 0"]),
        ({"id": "-1"}, ["--id", "at least 0"]),
        ({"id": "4294967296"}, ["--id", "at most"]),
        ({"leaf": ["7", "x7"]}, ["--leaf", "a number from 0 to"]),
        ({"leaf": ["4294967296"]}, ["--leaf", "a number from 0 to"]),
        ({"neighbour": ["127.0.0.1:1"]}, ["--neighbour", "no known scheme"]),
        ({"neighbour": ["x=mqtt://127.0.0.1:1"]}, ["--neighbour", "ID=URL"]),
        ({"neighbour": ["99999999999=mqtt://127.0.0.1:1"]}, ["--neighbour", "ID=URL"]),
        ({"neighbour": [f"mqtt://127.0.0.1:{port}" for port in range(1, 259)]}, ["at most 256"]),
        ({"manager": "mqtt://x"}, ["--manager", "http://HOST:PORT"]),
        ({"manager": "http://u:hunter2@x"}, ["--manager", "more than a host"]),
        ({"manager": ["http://a:99999"]}, ["--manager", "cannot be read"]),
        ({"join_token": "hunter2 hunter2"}, ["--join-token", "the given value", "without spaces"]),
        ({"health_probe": "mirror"}, ["--health-probe", "federator, broker, self"]),
        ({"link": "carrier-pigeon"}, ["--link", "one of direct, broker"]),
        ({"link_listen": "mqtt://"}, ["--link-listen", "names no host"]),
        ({"link_listen": "mqtt://u@127.0.0.1:0"}, ["--link-listen", "a listener has none"]),
        ({"link_ca_file": "/nonexistent.pem"}, ["--link-ca-file", "that exists"]),
        ({"broker_socket": "/run/" + 103 * "s"}, ["--broker-socket", "at most 107 bytes"]),
        ({"broker_lane": "mqtt://127.0.0.1:9001"}, ["--broker-lane", "ws://HOST:PORT"]),
        ({"broker_lane": "ws://127.0.0.1:9001/mqtt"}, ["--broker-lane", "ws://HOST:PORT"]),
        ({"broker_lane": "ws://u:p@127.0.0.1:9001"}, ["--broker-lane", "without a login"]),
        ({"interest": ["gossip"]}, ["--interest", "mosquitto-file:PATH"]),
        ({"interest": ["mosquitto-file:"]}, ["--interest", "mosquitto-file:PATH"]),
        ({"beacon_interval": "2"}, ["--beacon-interval", "a number and a unit"]),
        ({"announcement_interval": "1ms"}, ["at least 10ms"]),
        ({"expiry_factor": "1"}, ["at least 2"]),
        ({"redundancy": "0"}, ["at least 1"]),
        ({"grouping": "prefix:0"}, ["--grouping", "prefix:N"]),
        ({"export_allow": ["a/#/b"]}, ["--export-allow", "a misplaced #"]),
        ({"export_deny": ["$share/g/a"]}, ["--export-deny", "shared subscription"]),
        ({"import_allow": [""]}, ["--import-allow", "empty"]),
        ({"import_deny": ["a+"]}, ["--import-deny", "+ beside other characters"]),
        ({"prefix": "a/+"}, ["--prefix", "wildcard"]),
        ({"prefix": "/a"}, ["--prefix", "slash"]),
        ({"prefix": "a/"}, ["--prefix", "slash"]),
        ({"prefix": "$SYS"}, ["--prefix", "cannot precede a topic"]),
        ({"prefix": "federator"}, ["--prefix", "the federation's own"]),
        ({"metrics": "9090"}, ["--metrics", "host:port"]),
        ({"metrics": "127.0.0.1:99999"}, ["--metrics", "host:port"]),
        ({"log_format": "xml"}, ["one of plain, json"]),
        ({"log_level": "loud"}, ["--log-level"]),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_the_allowed_values(
    flags: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(LocalError) as caught:
        with_flags(**flags)
    said = str(caught.value)
    assert all(word in said for word in words), said
    assert "hunter2" not in said
    assert "\n" not in said
    assert ".." not in said.replace("://", "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"id": None}, "has no id; give --id N, or --manager"),
        ({"neighbour": ("mqtt://127.0.0.1:1", "tcp://127.0.0.1:1")}, "is named twice"),
        ({"neighbour": ("1=mqtt://127.0.0.1:1",)}, "own id 1"),
        ({"neighbour": ("2=mqtt://127.0.0.1:1", "2=mqtt://127.0.0.1:2")}, "given to two neighbours"),
        ({"broker": "mqtt://u:p@x:1", "username": "v"}, "give it once"),
        ({"password": "hunter2"}, "give both"),
        ({"host_ca_file": Path("/x")}, "write mqtts://"),
        ({"broker": "mqtts://x:1", "host_key_file": Path("/x")}, "only one is given"),
        ({"link_cert_file": Path("/x")}, "only one is given"),
        ({"link_listen": "mqtts://127.0.0.1:0"}, "has no certificate"),
        ({"link_listen": "mqtt://0.0.0.0:1"}, "without TLS"),
        ({"link_listen": "mqtt://[::]:1"}, "without TLS"),
        ({"link_listen": "mqtt://broker.example:1"}, "without TLS"),
        (
            {"link_listen": "mqtts://0.0.0.0:1", "link_cert_file": Path("/c"), "link_key_file": Path("/k")},
            "whose certificates to trust",
        ),
        ({"gateway_cert_file": Path("/x")}, "only one is given"),
        ({"gateway_listen": "tls://127.0.0.1:0"}, "has no certificate"),
        ({"gateway_listen": "tcp://0.0.0.0:1"}, "without TLS"),
        (
            {"gateway_listen": "tls://0.0.0.0:1", "gateway_cert_file": Path("/c"), "gateway_key_file": Path("/k")},
            "which gateways may ask",
        ),
        (
            {"manager": ("http://127.0.0.1:1",), "gateway_listen": "tcp://0.0.0.0:1", "insecure": True},
            "give gateway_advertised",
        ),
        ({"interest": ("gateway",)}, "give gateway_listen"),
        ({"neighbour": ("mqtt://192.0.2.1:1",)}, "has no TLS"),
        ({"link": "broker", "link_listen": "mqtt://127.0.0.1:0"}, "needs no listener"),
        ({"link": "broker", "neighbour": ("mqtt://127.0.0.1:1",)}, "write ID=mqtt://127.0.0.1:1"),
        ({"manager": ("http://192.0.2.1:8080",)}, "write https://, or allow it with --insecure"),
        ({"manager": ("https://m", "http://m")}, "The manager http://m:80 is on another machine"),
        ({"manager": ("http://127.0.0.1:1",), "neighbour": ("mqtt://127.0.0.1:1",)}, "omit one"),
        (
            {"manager": ("http://127.0.0.1:1",), "link_listen": "mqtt://0.0.0.0:0", "insecure": True},
            "give link_advertised",
        ),
        ({"interest": ("beacon", "beacon")}, "name each adapter once"),
        ({"interest": ("mosquitto-log", "mosquitto-file:/x")}, "choose one of them"),
        ({"interest": ("static",)}, "add --static-filter"),
        ({"interest": ("poll:rabbitmq",)}, "add --poll-url"),
        ({"poll_url": "http://h"}, "interest is not poll"),
        ({"interest": ("poll:nats", "poll:emqx"), "poll_url": "http://h"}, "name each adapter once"),
        ({"interest": ("poll:emqx",), "poll_url": "https://h", "poll_password": "p"}, "poll_username is not"),
        ({"interest": ("poll:emqx",), "poll_url": "http://h", "poll_username": "u"}, "without TLS"),
        ({"interest": ("poll",), "poll_url": "http://h", "poll_client": "a..b"}, "poll_client"),
        ({"static_filter": ("3:a/#/b",)}, "static interest"),
    ],
)
def test_settings_that_do_not_fit_together_get_one_clear_sentence(settings: dict[str, object], words: str) -> None:
    with pytest.raises(LocalError) as caught:
        FederatorSettings(**{"id": 1, **settings})  # type: ignore[arg-type]
    assert words in str(caught.value), caught.value
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"link_listen": "mqtt://127.0.0.1:0"},
        {"link_listen": "mqtt://[::1]:5000"},
        {"link_listen": "mqtt://0.0.0.0:0", "insecure": True},
        {"neighbour": ("mqtt://192.0.2.1:1",), "insecure": True},
        {"neighbour": ("mqtts://192.0.2.1:1",)},
        # With the papers' links, traffic goes through brokers, which are responsible for its security.
        {"link": "broker", "neighbour": ("2=mqtt://192.0.2.1:1883",)},
        {"manager": ("http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1")},
        {"manager": ("https://manager.example:8443/hanse",), "id": None},
        {"manager": ("http://192.0.2.1:8080",), "insecure": True},
        {"interest": ("mosquitto-log", "beacon", "announce")},
        {"metrics": "off"},
    ],
)
def test_valid_settings_are_accepted(settings: dict[str, object]) -> None:
    FederatorSettings(**{"id": 1, **settings})  # type: ignore[arg-type]


def test_a_public_listener_requires_mutual_tls(pem: str) -> None:
    given = with_flags(link_listen="mqtts://0.0.0.0:0", link_ca_file=pem, link_cert_file=pem, link_key_file=pem)
    assert given.listen_address() == Address("0.0.0.0", 0, True)
    assert given.link_tls() == TlsSettings(Path(pem), Path(pem), Path(pem), prefix="link_")


def test_tls_at_the_host_follows_the_url(pem: str) -> None:
    assert with_flags(broker="mqtts://h:1", host_ca_file=pem).host_tls() == TlsSettings(Path(pem), prefix="host_")


def test_user_and_password_come_from_the_url_or_from_settings() -> None:
    assert FederatorSettings(id=1, broker="mqtt://u:p%20w@h:1").broker_address().password == "p w"
    given = FederatorSettings(id=1, username="u", password="pw", broker="mqtt://h:1")
    assert given.broker_address() == Address("h", 1, False, "u", "pw")


def test_no_password_is_shown_by_repr() -> None:
    given = FederatorSettings(
        id=1, broker="mqtt://u:hunter2@h:1", neighbour=("mqtt://v:hunter2@127.0.0.1:1",), redundancy=5
    )
    assert repr(given) == "FederatorSettings(id=1, redundancy=5)"
    assert "hunter2" not in repr(FederatorSettings(id=1, username="u", password="hunter2"))


def test_static_filters_bring_their_adapter_with_them() -> None:
    given = FederatorSettings(id=1, interest=("mosquitto-file:/var/log/m,q.log",), static_filter=("1:a/+",))
    assert given.adapters() == (
        AdapterChoice("mosquitto-file", Path("/var/log/m,q.log")),
        AdapterChoice("static"),
    )


def test_unwise_but_allowed_settings_cause_a_warning() -> None:
    assert "is alone" in FederatorSettings(id=1).warnings()[0]
    linked = FederatorSettings(id=1, link_listen="mqtt://127.0.0.1:0")
    assert linked.warnings() == []
    unwise = FederatorSettings(
        id=1, insecure=True, link_listen="mqtt://0.0.0.0:0", broker="mqtt://u:hunter2@192.0.2.1:1"
    )
    assert len(unwise.warnings()) == 2
    assert "hunter2" not in "".join(unwise.warnings())


def test_parsers_of_small_values() -> None:
    assert parse_neighbour("7=mqtts://h") == Neighbour(Address("h", 8883, True), 7)
    assert parse_neighbour("mqtt://u:a=b@h").address.password == "a=b"
    assert parse_listen("mqtt://[::1]:0") == Address("::1", 0)
    assert parse_host_port("[::1]:80") == ("::1", 80)
    assert [is_loopback(host) for host in ("127.3.2.1", "::1", "localhost", "0.0.0.0", "h")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_every_setting_has_a_help_text_and_a_flag() -> None:
    for one in settings_of(FederatorSettings):
        assert one.spec.help.endswith("."), one.name
    assert "--static-filter" in {one.flag for one in settings_of(FederatorSettings)}


def app() -> typer.Typer:
    return build(["federator"])


def test_help_lists_the_flags() -> None:
    said = CliRunner().invoke(app(), ["federator", "--help"], env={"COLUMNS": "200"}).output
    for flag in ("--broker", "--neighbour", "--import-allow", "--federated-prefix", "--config", "CORE_ANN_INTERVAL"):
        assert flag in said


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--id", "x"],
        ["--id", "1", "--link-listen", "mqtt://0.0.0.0:1884"],
        ["--id", "1", "--config", "/nonexistent.toml"],
        ["--id", "1", "--nosuchflag"],
    ],
)
def test_a_wrong_command_line_exits_with_2_and_a_sentence(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hanse", "federator", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said
    assert "Traceback" not in said


def test_the_exit_code_of_the_agent_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[FederatorSettings] = []

    handed_out: list[FederatorSettings] = []

    async def run(settings: FederatorSettings, read_again: Callable[[dict[str, object]], FederatorSettings]) -> int:
        started.append(settings)
        handed_out.append(read_again({"redundancy": 7, "expiry_factor": 9, "from_a_newer_manager": 1}))
        return 3

    monkeypatch.setattr(hanse.federator, "running", types.SimpleNamespace(run=run), raising=False)
    words = ["federator", "--id", "4", "--neighbour", "mqtt://127.0.0.1:1", "--neighbour", "mqtt://127.0.0.1:2"]
    result = CliRunner().invoke(app(), words, env={"HANSE_REDUNDANCY": "4"})
    assert result.exit_code == 3, result.output
    assert started == [FederatorSettings(id=4, redundancy=4, neighbour=("mqtt://127.0.0.1:1", "mqtt://127.0.0.1:2"))]
    assert (handed_out[0].redundancy, handed_out[0].expiry_factor) == (4, 9), "what the operator says wins"
