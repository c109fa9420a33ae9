from dataclasses import dataclass

import pytest

from hanse.errors import LocalError
from hanse.telemetry import KINDS, contract_of, fields_of, is_sampled, kind_of, parse_topic, topic_for
from hanse.telemetry.registry import fingerprint


def test_every_kind_has_a_contract_and_every_contract_one_kind() -> None:
    for kind, contract in KINDS.items():
        assert contract_of(kind) is contract
        assert kind_of(contract) == kind
    assert len({fingerprint(contract) for contract in KINDS.values()}) == len(KINDS)


def test_every_field_of_every_contract_can_be_encoded() -> None:
    assert all(fields_of(contract) for contract in KINDS.values())


def test_a_field_of_another_type_is_refused() -> None:
    @dataclass(frozen=True)
    class Bad:
        names: list[str]

    with pytest.raises(LocalError, match=r"Bad\.names is list\[str\]; expected int, float, bool or str"):
        fields_of(Bad)


def test_a_parsed_topic_equals_the_original() -> None:
    said = parse_topic(topic_for("hop", "plant-7.example:1883"))
    assert (said.kind, said.reporter) == ("hop", "plant-7.example:1883")


@pytest.mark.parametrize("reporter", ["", "a/b", "+", "#", "a b", "x" * 261, "é"])
def test_an_id_that_does_not_fit_one_topic_level_is_refused(reporter: str) -> None:
    with pytest.raises(LocalError, match="cannot report telemetry"):
        topic_for("hop", reporter)


def test_an_unknown_kind_has_no_topic() -> None:
    with pytest.raises(LocalError, match="There is no telemetry kind 'nosuch'"):
        topic_for("nosuch", "7")


def test_the_sample_has_the_requested_size_and_grows_with_the_rate() -> None:
    ids = [("7", 1_700_000_000, seq) for seq in range(20_000)]
    small = {message for message in ids if is_sampled(*message, 0.01)}
    large = {message for message in ids if is_sampled(*message, 0.1)}
    assert small < large
    assert 150 < len(small) < 250
    assert 1_850 < len(large) < 2_150
    assert all(is_sampled(*message, 1.0) for message in ids)
    assert not any(is_sampled(*message, 0.0) for message in ids)


def test_a_sampling_rate_is_a_share() -> None:
    with pytest.raises(LocalError, match="between 0 and 1; got 10"):
        is_sampled("7", 1, 1, 10)
