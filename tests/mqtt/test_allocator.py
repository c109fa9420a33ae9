"""Reading a block does not cost a page fault per page."""

import subprocess
import sys

import pytest

READS = 1_000
PAGES_A_READ = 64
STORY = f"""
import resource, sys
from hanse.mqtt.allocator import keep_freed_blocks

keep_freed_blocks()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({READS // 4}):
    blocks = [b"x" * (256 * 1024) for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc's allocator is configured")
def test_a_freed_block_is_used_again() -> None:
    told = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, check=True, timeout=60)
    assert int(told.stdout) < READS * PAGES_A_READ / 10
