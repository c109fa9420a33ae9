from typing import Any

import pytest

from hanse.errors import LocalError
from hanse.protocol.retained import RetainedSettings


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("topics_max", 0, "topics_max is 0; it must be at least 1."),
        ("recent_max", 0, "recent_max is 0; it must be at least 1."),
        ("tombstones_max", 0, "tombstones_max is 0; it must be at least 1."),
        ("filters_max", 0, "filters_max is 0; it must be at least 1."),
        ("fetch_interval_s", 0.0, "fetch_interval_s is 0.0; it must be above 0."),
        ("fetch_s", 0.0, "fetch_s is 0.0; it must be above 0."),
        ("look_retry_s", 0.0, "look_retry_s is 0.0; it must be above 0."),
        ("recent_s", -1.0, "recent_s is -1.0; it must not be negative."),
        ("verify_s", -1.0, "verify_s is -1.0; it must not be negative."),
        ("look_gap_s", -1.0, "look_gap_s is -1.0; it must not be negative."),
        ("linger_s", -1.0, "linger_s is -1.0; it must not be negative."),
        ("sweep_s", 0.0, "sweep_s is 0.0; it must be above 0."),
        ("tombstone_s", -1.0, "tombstone_s is -1.0; it must not be negative."),
        ("clock_ahead_s_max", -1.0, "clock_ahead_s_max is -1.0; it must not be negative."),
    ],
)
def test_a_setting_out_of_range_is_refused_with_a_sentence(name: str, value: Any, message: str) -> None:
    with pytest.raises(LocalError) as refusal:
        RetainedSettings(**{name: value})
    assert str(refusal.value) == message
