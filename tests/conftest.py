"""What holds for every test: few threads, strict JAX, and a header that says on what the tests ran."""

import os
from importlib.metadata import PackageNotFoundError, version

# One thread for each pytest worker. Set before a framework is imported; subprocesses inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import jax

jax.config.update("jax_enable_x64", True)  # for the float64 comparisons; no user needs it
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

SHOWN = ("torch", "jax", "jaxlib", "flax", "numpy", "hypothesis")


def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def pytest_report_header():
    import torch

    flags = ("enable_x64", "numpy_dtype_promotion", "numpy_rank_promotion", "default_matmul_precision")
    return [
        "versions: " + ", ".join(f"{name} {installed(name)}" for name in SHOWN),
        f"devices: torch cpu{' cuda' * torch.cuda.is_available()}, jax {jax.default_backend()}; "
        f"threads: torch {torch.get_num_threads()}, cores {os.cpu_count()}",
        f"precision: torch float32 matmul {torch.get_float32_matmul_precision()}, "
        + ", ".join(f"jax_{flag} {getattr(jax.config, f'jax_{flag}')}" for flag in flags),
    ]
