"""Where a run took place, without what is nobody's business: no host name, no path."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil

from parity import devices

VARIABLES = (
    "NPROC",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "MALLOC_MMAP_THRESHOLD_",
    "JAX_COMPILATION_CACHE_DIR",
)


def describe(device: str, threads: int, seed: int) -> dict:
    """What a reader needs to judge the figures by."""
    load = os.getloadavg()[0]
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": " ".join(["python -m benchmarks", *(Path(word).name for word in sys.argv[1:])]),
        "commit": commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": devices.cpu()["name"],
        "last-level cache": last_level_cache(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "device": device,
        "threads": threads,
        "seed": seed,
        "load before the run": f"{load:.2f}"
        + (" (OTHER WORK WAS RUNNING)" if load > devices.cores() / 4 else ""),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ} | devices.flags(),
        "packages": {
            name: devices.installed(name)
            for name in ("torch", "jax", "jaxlib", "flax", "transformers", "numpy", "scipy")
        },
    }


def commit() -> str:
    """The commit that is checked out, "+ changes" if files differ from it; "unknown" outside a checkout."""

    def git(*args):
        asked = subprocess.run(["git", *args], cwd=Path(__file__).parent, capture_output=True, text=True)
        return asked.stdout.strip() if asked.returncode == 0 else None

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" + changes" if changed else "")


def last_level_cache() -> str:
    """Size of the largest cache of the first core, where the system tells."""
    sizes = [
        path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(sizes, key=lambda size: int(size.rstrip("KM")), default="unknown")
