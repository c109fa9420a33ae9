"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is messages in place of a federator's answer to a probe: any client of its broker may publish there.
"""

import json

from hypothesis import strategies as st
from tests.fuzz.fuzzing import fuzz

from hanse.telemetry.encoding import decode
from hanse.topology.checks import CheckReporter, read_answer
from hanse.topology.health import Exchange, Observation, Outcome

ANSWERS = st.fixed_dictionaries(
    {
        "host": st.text(max_size=300),
        "received_us": st.integers(-1, 2**64),
        "answered_us": st.integers(-1, 2**64),
    }
).map(lambda body: json.dumps(body).encode())


def take(data: bytes) -> None:
    answer = read_answer(data)
    reporter = CheckReporter("m", "h0")
    reporter.note([Observation(1, Outcome.WELL, 1.0, exchange=Exchange(1, 2, answer))], {})
    told = [row for topic, payload in reporter.flush() for row in decode(topic, payload)]
    assert len(told) == (answer is not None)


def test_any_answer_to_a_probe_is_a_check_or_ignored() -> None:
    fuzz("probe_answers", ANSWERS, take)
