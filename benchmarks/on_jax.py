"""What a worker does with JAX; on_torch.py has the same functions. Imported only in a worker's process."""

import re
import time
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.program import Program

CALLED = re.compile(r'custom_call_target="([^"]+)"')
COUNTED = re.compile(r" (dot|while|fusion)\(")


def start(device: str, threads: int) -> dict:
    """Set device and precision; what was set, as jax reports it. ValueError without such a device.

    Threads come from the environment of the process.
    """
    jax.config.update("jax_platforms", device)
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"jax finds no {device}") from error
    jax.config.update("jax_default_matmul_precision", "highest")
    jax.config.update("jax_enable_compilation_cache", False)
    jax.block_until_ready(jnp.ones((64, 64)) @ jnp.ones((64, 64)))  # makes the backend and its threads
    return {
        "version": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "threads": pool_threads() or threads,
        "float32 matmul precision": jax.config.jax_default_matmul_precision,
    }


def pool_threads() -> int:
    """Threads of XLA's compute pool, counted by name; 0 where the system does not list them."""
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return sum(name.startswith("tf_XLAEigen") for name in names)


def place(x: np.ndarray, dtype: str) -> jax.Array:
    """A NumPy array on the device: floats in dtype, integers and booleans as they are."""
    return jnp.asarray(x, dtype if np.issubdtype(x.dtype, np.floating) else x.dtype)


def fetch(x: jax.Array) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def wait(result) -> None:
    """Return when the device has finished."""
    jax.block_until_ready(result)


def compiled(f, leaves: tuple, options: dict, dout) -> Program:
    """f(*leaves, **options) and, where dout is given, all its gradients, compiled ahead of time.

    Arrays are arguments, those among the options too: XLA folds a constant into the program.
    """
    arrays = {name: x for name, x in options.items() if isinstance(x, jax.Array)}
    static = {name: x for name, x in options.items() if name not in arrays}

    def forward(leaves, arrays):
        return (only_output(f(*leaves, **static, **arrays)),)

    def both(leaves, arrays, dout):
        out, pullback = jax.vjp(lambda *leaves: forward(leaves, arrays), *leaves)
        return (*out, *pullback((dout,)))

    program, last = (forward, ()) if dout is None else (both, (dout,))
    run, compile_s, estimate = ahead(jax.jit(program), leaves, arrays, *last)
    return Program(
        lambda *dout: run(leaves, arrays, *(dout or last)),
        compile_s,
        estimate,
        backend=lambda: backend(run.as_text()),
    )


def ahead(jitted, *arguments) -> tuple:
    """(the program compiled for these arguments, the seconds that took, bytes by the compiler's account)."""
    started = time.perf_counter()
    run = jitted.lower(*arguments).compile()
    compile_s = time.perf_counter() - started
    memory = run.memory_analysis()
    estimate = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )
    return run, compile_s, estimate


def only_output(result):
    return result[0] if isinstance(result, tuple) else result


def backend(hlo: str) -> str:
    """The custom calls of a compiled program, or else the operations that XLA made itself, counted."""
    calls = Counter(CALLED.findall(hlo)) or Counter(COUNTED.findall(hlo))
    return "XLA: " + ", ".join(f"{n} {name}" for name, n in sorted(calls.items()))


def matmul(n: int, dtype: str) -> Program:
    """One (n, n) by (n, n) product."""
    x, y = (jax.random.normal(jax.random.key(seed), (n, n), dtype) for seed in range(2))
    run = jax.jit(jnp.matmul)
    return Program(lambda: run(x, y))


def copy(n_bytes: int, dtype: str) -> Program:
    """One pass (a change of sign: XLA has no bare copy) that reads and writes n_bytes in all."""
    x = jnp.ones(n_bytes // 2 // jnp.dtype(dtype).itemsize, dtype)
    run = jax.jit(jnp.negative)
    return Program(lambda: run(x))


def reset_peak() -> int:
    """Bytes the device's allocator holds now; its peak has no reset. 0 where it does not count (a CPU)."""
    stats = jax.devices()[0].memory_stats()
    return stats["bytes_in_use"] if stats else 0


def peak() -> int | None:
    """Peak bytes of the device's allocator since the process began, None where it does not count."""
    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] if stats else None
