"""The few things NumPy, PyTorch and JAX call differently; all else is spelled alike in the three."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from parity.inputs import round_to

FRAMEWORKS = ("numpy", "torch", "jax")


@dataclass(frozen=True)
class Arrays:
    """One framework's arithmetic, eager, on the CPU."""

    xp: ModuleType
    array: Callable  # (NumPy array, dtype name, "bool" too) -> native array
    numpy: Callable  # native array -> NumPy array of its dtype
    rounded: Callable  # (native array, dtype name) -> rounded to that dtype, held in its own
    erf: Callable
    settings: Callable = contextlib.nullcontext  # entered around a run


def load(framework: str) -> Arrays:
    """The arithmetic of "numpy", "torch" or "jax", imported here. Raises ValueError for another name."""
    if framework == "numpy":
        return _numpy()
    if framework == "torch":
        return _torch()
    if framework == "jax":
        return _jax()
    raise ValueError(f"framework must be one of {FRAMEWORKS}, got {framework!r}")


def _numpy() -> Arrays:
    return Arrays(
        xp=np,
        array=lambda x, dtype: np.asarray(x).astype(dtype),
        numpy=lambda x: x,
        rounded=lambda x, dtype: round_to(x, dtype).astype(x.dtype),
        erf=lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x),
    )


def _torch() -> Arrays:
    import torch

    return Arrays(
        xp=torch,
        array=lambda x, dtype: torch.from_numpy(np.array(x)).to(getattr(torch, dtype)),
        numpy=lambda x: x.numpy(),
        rounded=lambda x, dtype: x.to(getattr(torch, dtype)).to(x.dtype),
        erf=torch.erf,
    )


def _jax() -> Arrays:
    import jax
    from jax import numpy as jnp

    @contextlib.contextmanager
    def settings():
        with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):  # (N, C) + (C,), as in the others
            yield

    return Arrays(
        xp=jnp,
        array=lambda x, dtype: jnp.asarray(np.asarray(x), dtype=dtype),
        numpy=np.asarray,
        rounded=lambda x, dtype: x.astype(dtype).astype(x.dtype),
        erf=jax.scipy.special.erf,
        settings=settings,
    )


def coarse(x, bits: int):
    """x with so many significant bits, rounded to nearest, in any framework; its range is kept.

    11 for TF32 and float16, 8 for bfloat16, 4 for float8 e4m3. Source: Veltkamp's splitting (Dekker 1971).
    """
    digits = 53 if "float64" in str(x.dtype) else 24
    spread = x * (2.0 ** (digits - bits) + 1.0)
    return spread - (spread - x)
