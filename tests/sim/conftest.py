"""Fixtures for the tests of the simulator."""

from collections.abc import Iterator

import pytest
from tests.sim import lives


@pytest.fixture(scope="module", autouse=True)
def _no_process_outlives_its_file() -> Iterator[None]:
    """End the processes of a test file, because other files look for processes that stayed behind."""
    yield
    lives.close()
