"""What a worker does with PyTorch; on_jax.py has the same functions. Imported only in a worker's process."""

import os
import re
from collections import Counter
from contextlib import contextmanager

import numpy as np
import torch
from torch.autograd.profiler import profile

from benchmarks.program import Program

NAMED = re.compile(r"aten::_scaled_dot_product_(?!.*backward)(\w+)")
DEVICE = "cpu"  # set by start; torch's own default device is a mode that every call would pass through


def start(device: str, threads: int) -> dict:
    """Set device, threads, precision; what was set, as torch reports it. ValueError without such a device."""
    global DEVICE
    if device != "cpu" and not (device == "cuda" and torch.cuda.is_available()):
        raise ValueError(f"torch finds no {device}")
    DEVICE = device
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    return {
        "version": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "cpu kernels": torch.backends.cpu.get_cpu_capability(),
    }


def place(x: np.ndarray, dtype: str) -> torch.Tensor:
    """A NumPy array on the device: floats in dtype, integers and booleans as they are."""
    made = torch.tensor(x)
    return made.to(DEVICE, getattr(torch, dtype) if made.is_floating_point() else None)


def fetch(x: torch.Tensor) -> np.ndarray:
    return torch.as_tensor(x).detach().to("cpu", torch.float64).numpy()


def wait(result) -> None:
    """Return when the device has finished."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def compiled(f, leaves: tuple, options: dict, dout) -> Program:
    """f(*leaves, **options) and, where dout is given, all its gradients: one call, nothing compiled ahead."""

    def forward():
        with torch.no_grad():
            return (only_output(f(*leaves, **options)),)

    def both(dout=dout):
        out = only_output(f(*leaves, **options))
        return (out, *torch.autograd.grad(out, leaves, dout))

    for leaf in leaves:
        leaf.requires_grad_(dout is not None)
    call = forward if dout is None else both
    return Program(call, backend=lambda: backend(call))


def only_output(result):
    return result[0] if isinstance(result, tuple) else result


def backend(call) -> str:
    """The attention kernel that one profiled call ran, or its two most expensive operators."""
    with quiet(), profile(use_kineto=False) as profiled:
        wait(call())
    events = profiled.key_averages()
    if named := {found[1] for event in events if (found := NAMED.match(event.key))}:
        return " + ".join(sorted(named))
    cost = Counter({e.key.removeprefix("aten::"): e.self_cpu_time_total for e in events})
    return ", ".join(f"{name} {time / cost.total():.0%}" for name, time in cost.most_common(2))


@contextmanager
def quiet():
    """Keep the process's stderr silent: the profiler announces itself there, and has no switch for it."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def matmul(n: int, dtype: str) -> Program:
    """One (n, n) by (n, n) product."""
    x, y = (torch.randn(n, n, dtype=getattr(torch, dtype), device=DEVICE) for _ in range(2))
    return Program(lambda: torch.mm(x, y))


def copy(n_bytes: int, dtype: str) -> Program:
    """One copy that reads and writes n_bytes in all."""
    kind = getattr(torch, dtype)
    x = torch.ones(n_bytes // 2 // kind.itemsize, dtype=kind, device=DEVICE)
    y = torch.empty_like(x)
    return Program(lambda: y.copy_(x))


def reset_peak() -> int:
    """Bytes the allocator holds now, its peak counted from here; 0 where it does not count (a CPU)."""
    if DEVICE != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak() -> int | None:
    """Peak bytes of the device's allocator, None where it does not count."""
    return torch.cuda.max_memory_allocated() if DEVICE == "cuda" else None
