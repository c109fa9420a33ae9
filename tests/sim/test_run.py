"""Runs without faults: convergence, Theorem 1, and the cost of a quiet round."""

import pytest

from hanse.errors import LocalError
from hanse.sim.host import Client
from hanse.sim.ledger import Ledger, Message
from hanse.sim.run import RunProfile, _account, run


@pytest.mark.parametrize("overlay", ["random", "ring", "grid", "full", "placement", "scale-free"])
def test_every_overlay_converges_and_delivers(overlay: str) -> None:
    result = run(RunProfile(brokers=16, degree=4, groups=8, overlay=overlay, latency_ms=(5.0, 100.0)))
    assert result.converged, result.trouble
    assert result.delivered == result.eligible > 0
    assert result.duplicates == 0


def test_theorem_1_a_round_takes_at_most_two_announcements_per_link() -> None:
    result = run(RunProfile(brokers=300, degree=5, groups=1))
    assert result.converged
    assert result.cores == 1
    assert result.announcements_per_round <= 2 * result.links == result.announcements_per_round_max


def test_a_quiet_round_takes_one_frame_per_link_and_direction_for_any_number_of_groups() -> None:
    few, many = (run(RunProfile(brokers=12, degree=4, groups=groups, cores=4)) for groups in (4, 500))
    assert few.frames_per_round == many.frames_per_round == 2 * few.links
    assert many.control_bytes_per_round <= 1.5 * few.control_bytes_per_round
    assert many.frame_bytes_largest <= 2_048


def test_per_group_announcements_grow_with_the_groups_and_per_core_ones_do_not() -> None:
    per_core, per_group = (
        run(RunProfile(brokers=12, degree=4, groups=40, cores=4, announcements=announcements))
        for announcements in ("per_core", "per_group")
    )
    assert per_core.converged
    assert per_group.converged
    assert per_core.announcements_per_round <= 2 * per_core.links * 4
    assert per_group.announcements_per_round >= 5 * per_core.announcements_per_round


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    one, two, other = (run(RunProfile(brokers=30, groups=3, seed=seed)) for seed in (1, 1, 2))
    assert one.trace_hash == two.trace_hash != other.trace_hash


def test_the_wire_does_not_change_what_is_counted() -> None:
    wire, objects = (run(RunProfile(brokers=30, groups=3, is_wire=is_wire)) for is_wire in (True, False))
    assert wire.control_bytes_per_round == objects.control_bytes_per_round
    assert wire.frames_per_round == objects.frames_per_round
    assert wire.rounds == objects.rounds


@pytest.mark.parametrize("qos", [0, 1])
def test_a_publication_that_has_not_arrived_at_the_end_is_lost(qos: int) -> None:
    ledger = Ledger(lambda name, text: pytest.fail(f"{name}: {text}"), interval_s=1.0)
    clients = [Client("one", 1), Client("two", 2)]
    message = Message(7, 0, "group/0", qos, b"", published_s=3.0, is_told=True, is_calm=True)
    ledger.publish(message, clients)
    ledger.deliver(1, message, clients[:1])
    counted = _account(ledger)
    assert (counted["published"], counted["delivered"], counted["lost"]) == (1, 1, 1)


@pytest.mark.slow
def test_ten_thousand_brokers_converge() -> None:
    result = run(RunProfile(brokers=10_000, degree=5, groups=1))
    assert result.converged
    assert result.announcements_per_round <= 2 * result.links
    assert result.rss_bytes < 1_500_000_000


@pytest.mark.slow
def test_a_thousand_groups_on_a_hundred_cores_of_a_thousand_brokers_converge() -> None:
    result = run(RunProfile(brokers=1_000, degree=5, groups=1_000, cores=100))
    assert result.converged
    assert result.announcements_per_round <= result.announcements_per_round_max
    assert result.delivered == result.eligible


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"brokers": 0}, "brokers is 0"),
        ({"groups": 0}, "groups is 0"),
        ({"subscribers": 0}, "subscribers is 0"),
        ({"brokers": 5, "groups": 9, "cores": 6}, "cores is 6; it must be between 1 and"),
        ({"latency_ms": (5.0, 1.0)}, "The latency is 5.0 to 1.0 ms"),
    ],
)
def test_an_impossible_run_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(LocalError, match=message):
        RunProfile(**options)  # type: ignore[arg-type]
