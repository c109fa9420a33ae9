"""What is read does not cost a page fault a page."""

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


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is what is set")
def test_a_block_that_was_freed_is_used_again() -> None:
    told = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, check=True, timeout=60)
    assert int(told.stdout) < READS * PAGES_A_READ / 10
