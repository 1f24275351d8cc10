"""Devices and precision: found and set in the process that imports a framework, and recorded for the report.

Nothing here imports a framework before `prepare` is called for it.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

KINDS = ("cpu", "cuda", "tpu")
PACKAGES = {"torch": ("torch",), "jax": ("jax", "jaxlib", "flax"), "numpy": ("numpy",)}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
FLAGS = (
    *THREADS,
    "XLA_FLAGS",
    "JAX_PLATFORMS",
    "CUDA_VISIBLE_DEVICES",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "NVIDIA_TF32_OVERRIDE",
)


def limit_threads(count: int = 1) -> None:
    """One thread for each process, as several run side by side. To be called before NumPy is imported."""
    for name in THREADS:
        os.environ.setdefault(name, str(count))
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch may share the accelerator


def prepare(framework: str) -> dict:
    """Import a framework, ask it for full float32 precision, and say what is there.

    Returns {"framework", "versions", "devices": [{"kind", "name"}], "threads", "precision", "flags"}.
    Raises ImportError if the framework is not installed.
    """
    found = {"torch": _torch, "jax": _jax, "numpy": _numpy}[framework]()
    versions = {name: installed(name) for name in PACKAGES[framework]}
    return {"framework": framework, "versions": versions, **found, "flags": flags()}


def _torch() -> dict:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    torch.set_float32_matmul_precision("highest")  # no TF32 in matrix products
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "devices": [cpu(), *({"kind": "cuda", "name": torch.cuda.get_device_name(n)} for n in gpus)],
        "threads": torch.get_num_threads(),
        "precision": {
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
            "allow_fp16_reduced_precision_reduction": False,
            "allow_bf16_reduced_precision_reduction": False,
        },
    }


def _jax() -> dict:
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    kinds = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
    others = [d for d in jax.devices() if kinds.get(d.platform, "cpu") != "cpu"]
    return {
        "devices": [cpu(), *({"kind": kinds[d.platform], "name": d.device_kind} for d in others)],
        "threads": int(os.environ.get("OMP_NUM_THREADS", 1)),
        "precision": {
            "jax_enable_x64": True,
            "jax_default_matmul_precision": jax.config.jax_default_matmul_precision,
        },
    }


def _numpy() -> dict:
    return {"devices": [cpu()], "threads": int(os.environ.get("OMP_NUM_THREADS", 1)), "precision": {}}


def cpu() -> dict:
    """{"kind": "cpu", "name": the model, with the count of cores this process may use}."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [
            line.partition(":")[2].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        name = models[0] if models else name
    return {"kind": "cpu", "name": f"{name}, {cores()} cores"}


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def flags() -> dict:
    """The environment variables that change numbers or speed, where they are set."""
    return {name: os.environ[name] for name in FLAGS if name in os.environ}


def installed(package: str) -> str:
    """The version of an installed distribution, or "absent"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
