"""Settings of Python's garbage collector in the gateway's processes.

A full collection traces every object: about 25 per client, 0.4 us each on the project's machine, during which nobody is
served. At 1,000 redirects per second the default thresholds gave full collections of 20 to 80 ms every second, which
freed nothing, because the gateway's objects are freed by their reference counts.
"""

import gc
from typing import Final

# Young objects are collected as by default. A full collection, which finds the rare cycle of old objects, comes after
# 700 x 10 x 1,000 more containers were made than freed: as many as 280,000 clients have.
_FULL_EVERY: Final = 1_000


def tune() -> None:
    """Exclude the objects that exist now, and collect the oldest generation rarely."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_EVERY)
