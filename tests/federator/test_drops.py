from pathlib import Path

from hanse.federator.drops import REASONS, drops_by_reason

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


def test_every_reason_exists_before_the_first_drop() -> None:
    drops = drops_by_reason(protocol={}, agent={}, sessions=())
    assert drops == dict.fromkeys(REASONS, 0)


def test_drops_of_all_modules_are_added_by_reason() -> None:
    drops = drops_by_reason(
        protocol={"dropped_link_down": 2, "parked_expired": 3, "duplicates": 50},
        agent={"dropped_outbox_oldest": 4, "gate_malformed": 5, "delivered": 60},
        sessions=({"link_down": 1, "link_full": 6}, {"slow_peer": 7}),
    )
    assert {reason: count for reason, count in drops.items() if count} == {
        "link_down": 3,
        "parked_expired": 3,
        "outbox_oldest": 4,
        "gate_malformed": 5,
        "link_full": 6,
        "slow_peer": 7,
    }


def test_a_reason_that_is_not_listed_is_shown_and_a_duplicate_is_no_drop() -> None:
    drops = drops_by_reason(protocol={}, agent={}, sessions=({"something_new": 1, "double_qos2": 2},))
    assert drops["something_new"] == 1
    assert "double_qos2" not in drops


def test_the_documentation_explains_every_reason() -> None:
    rows = [f"| `{reason}` | {meaning} |" for reason, meaning in REASONS.items()]
    assert "\n".join(rows) in OPERATING.read_text(encoding="utf-8")
