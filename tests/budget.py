"""How much the property tests try: a share of their examples in `make test`, all of them in `make test-all`."""

import os

# In percent. Each run draws others, so many runs with few examples each see more than one run with many.
SHARE = int(os.environ.get("HANSE_TEST_EXAMPLES") or 10)
# Fewer than these find nothing.
EXAMPLES_MIN = 10


def examples(count: int) -> int:
    """How many of `count` examples a test tries."""
    return max(min(count, EXAMPLES_MIN), count * SHARE // 100)
