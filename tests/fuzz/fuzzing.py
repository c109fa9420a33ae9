"""Fuzzing of a target: valid inputs from Hypothesis, mutants of each, within a budget, under observation.

Rules:

- `HANSE_FUZZ_SECONDS` is the budget of all targets together, shared evenly. Each runs at least a few examples. A round
  depends only on its number, so a failure names the round that reproduces it with any budget.
- An input is accepted, or refused with one of the errors that the target names, in a printable sentence. Anything else
  is a failure: it is shortened, shown in hexadecimal, and added to `corpus/<target>.txt` for ever.
- The first example of every round is observed: with all its mutants (of a slow target with a few), it may hold 20 MB at
  no time. The mutants of a slow target end with the budget, after a few.
- Time is judged by comparing sizes: eight times the bytes may cost at most three times as much per byte.
"""

import contextlib
import os
import time
import tracemalloc
import unittest
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hanse.errors import RemoteError

HERE = Path(__file__).parent
GROWTH_BYTES_MAX = 20_000_000
EXAMPLES_A_ROUND = 40
# In the first round, whatever the budget; of a slow target one, with its mutants.
EXAMPLES_AT_LEAST = 3
MUTANTS_AN_EXAMPLE = 30
# Observation makes an input five times as slow.
WATCHED_OF_SLOW = 2
MUTANTS_OF_SLOW_AT_LEAST = 6
# The longest input of which every prefix and every bit is tried.
WHOLE_BYTES_MAX = 200


class _RoundOverError(unittest.SkipTest):
    """Ends a round. Hypothesis lets it through at once, and would otherwise draw the rest of the examples in vain."""


Take = Callable[[bytes], object]
Refusals = tuple[type[Exception], ...]

_EDGES = (
    0,
    1,
    2,
    3,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63,
    2**64 - 1,
)


def share_s() -> float:
    """Return the share of one target in the budget."""
    targets = len(list(HERE.glob("test_fuzz_*.py")))
    return float(os.environ.get("HANSE_FUZZ_SECONDS") or 10.0) / targets


def fuzz(
    target: str,
    valid: st.SearchStrategy[bytes],
    take: Take,
    *,
    refusals: Refusals = (RemoteError,),
    is_slow: bool = False,
) -> None:
    """Feed a target until its share of the budget is used up; fail with the shortest failing input.

    Args:
        target: its name, and that of its corpus.
        valid: strategy of valid inputs, from which the bad ones are made.
        take: function under test. It keeps nothing between inputs that would change the outcome.
        refusals: errors by which it may refuse.
        is_slow: whether an input takes milliseconds: then not every prefix and bit of the first example is tried, and
            one example is enough if there is no time for more.
    """
    for data in corpus(target):
        _judge(target, "the corpus", data, take, refusals)
    deadline = time.monotonic() + share_s()
    number = 0
    while number == 0 or time.monotonic() < deadline:
        _run_round(target, number, valid, take, refusals, deadline, is_slow=is_slow)
        number += 1


def corpus(target: str) -> list[bytes]:
    """Return every input that once failed: one line each, in hexadecimal, with its error behind a `#`."""
    path = HERE / "corpus" / f"{target}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [bytes.fromhex(line.partition("#")[0]) for line in lines if line.partition("#")[0].strip()]


def assert_linear(
    make: Callable[[int], bytes], take: Take, *, refusals: Refusals = (RemoteError,), large: int = 1 << 20
) -> None:
    """Check that inputs of `large` bytes cost at most three times as much per byte as inputs of an eighth."""
    small, whole = make(large // 8), make(large)
    for _ in range(3):  # a neighbour on the machine may spoil one comparison, not three
        small_s = min(_cpu_s(small, take, refusals) for _ in range(2))
        large_s = _cpu_s(whole, take, refusals)
        # Shorter times are not judged: the clock's steps are larger than the difference.
        if large_s <= 24 * max(small_s, 0.000_5):
            return
    raise AssertionError(f"{len(small)} bytes took {small_s} s of CPU, {len(whole)} took {large_s} s")


def _cpu_s(data: bytes, take: Take, refusals: Refusals) -> float:
    before = time.thread_time()
    with contextlib.suppress(*refusals):
        take(data)
    return time.thread_time() - before


def _run_round(
    target: str,
    number: int,
    valid: st.SearchStrategy[bytes],
    take: Take,
    refusals: Refusals,
    deadline: float,
    *,
    is_slow: bool,
) -> None:
    at_least = 0 if number else 1 if is_slow else EXAMPLES_AT_LEAST
    failed: list[tuple[bytes, BaseException]] = []
    examples = 0

    # Hypothesis makes valid inputs. Failing ones are kept and shortened here, because most come from the mutations.
    @hypothesis.seed(zlib.crc32(target.encode()) + number)
    @settings(
        max_examples=EXAMPLES_A_ROUND,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(valid, valid, st.integers(0, 2**32 - 1))
    def one(data: bytes, other: bytes, seed: int) -> None:
        nonlocal examples
        if failed or (examples >= at_least and time.monotonic() > deadline):
            raise _RoundOverError("the time is up")
        examples += 1
        is_watched = examples == 1
        if is_watched:
            tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for count, mutant in enumerate(
                _inputs(data, other, Random(seed), is_whole=not (is_slow or number) and examples == 1)
            ):
                if is_watched and is_slow and count == WATCHED_OF_SLOW:
                    is_watched = False
                    _note_growth(data, before, failed)
                    tracemalloc.stop()
                if is_slow and count >= MUTANTS_OF_SLOW_AT_LEAST and time.monotonic() > deadline:
                    break
                try:
                    _take(mutant, take, refusals)
                except BaseException as error:  # noqa: BLE001 - any such error is a finding
                    failed.append((mutant, error))
                    return
            if is_watched:
                _note_growth(data, before, failed)
        finally:
            tracemalloc.stop()

    with contextlib.suppress(_RoundOverError):
        one()
    for data, error in failed:
        shortest = _shortened(data, error, take, refusals)
        _fail(target, f"round {number}", shortest, error)


def _note_growth(data: bytes, before: int, failed: list[tuple[bytes, BaseException]]) -> None:
    grown = tracemalloc.get_traced_memory()[1] - before
    if grown > GROWTH_BYTES_MAX:
        failed.append((data, AssertionError(f"{grown} bytes were held for this input and its mutants")))


def _inputs(data: bytes, other: bytes, random: Random, *, is_whole: bool) -> Iterator[bytes]:
    yield data
    if is_whole and len(data) <= WHOLE_BYTES_MAX:
        for end in range(len(data)):
            yield data[:end]
        for bit in range(8 * len(data)):
            yield data[: bit // 8] + bytes((data[bit // 8] ^ 1 << bit % 8,)) + data[bit // 8 + 1 :]
    for _ in range(MUTANTS_AN_EXAMPLE):
        mutant = data
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            mutant = _mutated(mutant, other, random)
        yield mutant


def _mutated(data: bytes, other: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    to = min(len(data), at + random.choice((1, 1, 2, 4, random.randrange(len(data) + 1))))
    match random.randrange(10):
        case 0:  # cut short
            return data[:at]
        case 1 if data:  # a bit
            at = random.randrange(len(data))
            return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]
        case 2:  # a part omitted
            return data[:at] + data[to:]
        case 3:  # a part repeated
            return data[:to] + data[at:to] + data[to:]
        case 4:  # two inputs in one
            return data[:at] + other[random.randrange(len(other) + 1) :]
        case 5:  # more bytes behind it
            return data + random.randbytes(random.randrange(1, 9))
        case 6:  # a length, or any other number, at its edges
            size = random.choice((1, 2, 4, 8))
            number = random.choice(_EDGES) & (1 << 8 * size) - 1
            return data[:at] + number.to_bytes(size, random.choice(("big", "little"))) + data[at + size :]
        case 7:  # a variable length that does not end, or ends late
            return data[:at] + b"\xff" * random.randrange(1, 10) + random.choice((b"", b"\x7f", b"\0")) + data[at + 1 :]
        case 8:  # noise
            return data[:at] + random.randbytes(to - at) + data[to:]
        case _:  # a part moved
            return data[to:] + data[at:to] + data[:at]


def _take(data: bytes, take: Take, refusals: Refusals) -> None:
    try:
        take(data)
    except refusals as refusal:
        words = str(refusal)
    else:
        return
    assert len(words) > 10, f"{words!r} says nothing"
    assert words.isprintable(), f"{words!r} could forge a line of a log"
    assert len(words) < 1_000, f"an error of {len(words)} characters repeats what it should not"


def _judge(target: str, where: str, data: bytes, take: Take, refusals: Refusals) -> None:
    try:
        _take(data, take, refusals)
    except BaseException as error:  # noqa: BLE001
        _fail(target, where, data, error)


def _fail(target: str, where: str, data: bytes, error: BaseException) -> None:
    error.add_note(
        f"Found by {target} in {where}, shortened to {len(data)} bytes. Put this line into corpus/{target}.txt:\n"
        f"{data.hex()}  # {type(error).__name__}"
    )
    raise error


def _shortened(data: bytes, error: BaseException, take: Take, refusals: Refusals) -> bytes:
    """Return the input without all parts that the same kind of error does not need; a few thousand attempts."""
    tries = 3_000
    size = len(data) // 2
    while size and tries > 0:
        at = 0
        while at < len(data) and tries > 0:
            tries -= 1
            shorter = data[:at] + data[at + size :]
            try:
                _take(shorter, take, refusals)
            except BaseException as again:  # noqa: BLE001
                if type(again) is type(error):
                    data = shorter
                    continue
            at += size
        size //= 2
    return data
