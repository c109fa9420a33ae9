"""Number of examples in property tests: a share of them in `make test`, all of them in `make test-all`."""

import os

# In percent. Each run draws new examples, so many runs with few examples see more than one run with many.
SHARE = int(os.environ.get("HANSE_TEST_EXAMPLES") or 10)
# Fewer examples than this find nothing.
EXAMPLES_MIN = 10


def examples(count: int) -> int:
    """Return how many of `count` examples a test runs."""
    return max(min(count, EXAMPLES_MIN), count * SHARE // 100)
