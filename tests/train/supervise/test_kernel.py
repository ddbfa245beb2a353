"""Calls of `train` to the kernel and to the C library."""

import platform
import subprocess
import sys

import pytest

# The faults of allocating and freeing 2,000 blocks of 256 KiB, four at a time, as the relay does.
FAULTS = """
import resource, sys
from toolkit.train.supervise.kernel import keep_freed_memory
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
if sys.argv[1] == "kept":
    keep_freed_memory()
before = faults()
for number in range(500):
    blocks = [bytes([number % 255 + 1]) * (1 << 18) for _ in range(4)]
    blocks.clear()
print(faults() - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's mallopt")
def test_freed_blocks_are_used_again_instead_of_new_pages() -> None:
    assert faults("kept") * 10 < faults("given back")
