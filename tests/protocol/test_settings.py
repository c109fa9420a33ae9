from typing import Any

import pytest

from hanse.errors import LocalError
from hanse.protocol.grouping import Grouping
from hanse.protocol.settings import Settings


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("announcement_interval_s", 0.0, "announcement_interval_s is 0.0; it must be at least 0.001."),
        ("expiry_factor", 1, "expiry_factor is 1; it must be at least 2."),
        ("redundancy", 0, "redundancy is 0; it must be at least 1."),
        ("coalescing_s", -0.1, "coalescing_s is -0.1; it must be at least 0.0."),
        ("absence_s", -1.0, "absence_s is -1.0; it must be at least 0.0."),
        ("groups_max", 0, "groups_max is 0; it must be at least 1."),
        ("cores_max", 0, "cores_max is 0; it must be at least 1."),
        ("neighbours_max", 0, "neighbours_max is 0; it must be at least 1."),
        ("items_per_frame_max", 0, "items_per_frame_max is 0; it must be at least 1."),
        ("retransmission_factor", 0, "retransmission_factor is 0; it must be at least 1."),
        ("claim_log_max", 0, "claim_log_max is 0; it must be at least 1."),
        ("election", "oldest", "election is 'oldest'; it must be one of smallest, largest."),
        ("outsider", "", "outsider is ''; it must be one of all_parents, one_parent."),
        ("announcements", "both", "announcements is 'both'; it must be one of per_core, per_group."),
    ],
)
def test_a_setting_out_of_range_is_refused_with_a_sentence(name: str, value: Any, message: str) -> None:
    with pytest.raises(LocalError) as refusal:
        Settings(**{name: value})
    assert str(refusal.value) == message


def test_the_expiry_is_k_intervals() -> None:
    assert Settings(announcement_interval_s=0.5, expiry_factor=4).expiry_s == 2.0


def test_settings_with_equal_values_are_equal() -> None:
    assert Settings() == Settings(grouping=Grouping.parse("filter"))
