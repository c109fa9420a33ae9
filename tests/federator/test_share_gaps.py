from collections import Counter

import pytest

from hanse.federator import share_gaps
from hanse.federator.share_gaps import HELD_S, ShareGaps


class Offers:
    """A listener, as far as it matters here."""

    def offer(self, kind: str, handler: object) -> None:
        assert kind == "share_gap"
        assert callable(handler)


def gaps() -> ShareGaps:
    return ShareGaps(Offers(), Counter())  # type: ignore[arg-type]


def test_first_gateway_fills_a_gap_and_later_ones_do_not() -> None:
    one = gaps()
    assert one.grant("$share/g/a", "b1", 0.0)
    assert not one.grant("$share/g/a", "b1", HELD_S)
    assert one.grant("$share/g/a", "b2", 1.0)
    assert one.grant("$share/g/b", "b1", 1.0)
    assert one.grant("$share/g/a", "b1", HELD_S + 1)


def test_grants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_gaps, "GAPS_MAX", 3)
    one = gaps()
    for number in range(10):
        assert one.grant(str(number), "b", 0.0)
    assert len(one._granted) == 3
