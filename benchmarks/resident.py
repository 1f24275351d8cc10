"""The resident set of this process: its peak, and a reset of the peak where the system has one (Linux)."""

import ctypes
import gc
import resource
import sys
from pathlib import Path

import psutil

M_MMAP_THRESHOLD = -3  # malloc.h; setting it switches off its growth
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def settle() -> int:
    """Give freed memory back to the system, start the peak anew, and return the resident bytes of now."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # else a freed buffer hides the growth that reuses it
    if CLEAR.exists():
        CLEAR.write_text("5")  # proc(5): resets the peak resident set to the current one
    return psutil.Process().memory_info().rss


def return_freed_memory() -> None:
    """From here on a large buffer leaves the process when it is freed: glibc else keeps ever larger ones."""
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17)


def peak() -> int:
    """Peak resident bytes: since settle() on Linux, elsewhere since the process began."""
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
