"""One test body for both packages: NumPy in, NumPy out; a framework is imported when it is used.

```
@both_frameworks
def test_an_example(framework):
    out, weights = attend(framework)(q, k, v, return_weights=True)
    grads = gradients(framework)(q, k, v, dout, dtype="bfloat16", causal=True)  # {"dq": ..., "dk": ..., ...}
```
"""

import importlib
from contextlib import contextmanager

import numpy as np
import pytest

FRAMEWORKS = ("torch", "jax")
both_frameworks = pytest.mark.parametrize("framework", FRAMEWORKS)

FLOATS = ("bias", "sinks")  # the options that are rounded to the dtype with q, k and v


def package(framework):
    """attn_torch or attn_jax."""
    return importlib.import_module(f"attn_{framework}")


def to_native(framework, x, dtype=None):
    """A NumPy array as the framework's own, of dtype (a name) if given; to bfloat16 through float32.

    Anything that is not an array passes through.
    """
    if not isinstance(x, np.ndarray | np.generic):
        return x
    x = np.asarray(x)
    through = "float32" if dtype == "bfloat16" else dtype
    x = x if through is None else x.astype(through)
    if framework == "torch":
        import torch

        return torch.from_numpy(np.array(x)).to(getattr(torch, dtype or x.dtype.name))
    import jax.numpy as jnp

    return jnp.asarray(x).astype(dtype or x.dtype)


def to_numpy(x):
    """A framework's array, or a tuple, list or dict of them, as NumPy; bfloat16 as float32."""
    if isinstance(x, dict):
        return {name: to_numpy(leaf) for name, leaf in x.items()}
    if isinstance(x, tuple | list):
        return tuple(to_numpy(leaf) for leaf in x)
    if hasattr(x, "detach"):
        x = x.detach().cpu()
    if str(x.dtype).endswith("bfloat16"):
        x = x.float() if hasattr(x, "float") else x.astype("float32")
    return np.asarray(x)


def native_options(framework, options, dtype=None):
    """The contract's keywords with their NumPy arrays made the framework's own; bias and sinks take dtype."""
    return {k: to_native(framework, x, dtype if k in FLOATS else None) for k, x in options.items()}


def attend(framework):
    """f(q, k, v, *, dtype=None, **keywords of the contract): what the package returns, in NumPy."""

    def run(q, k, v, *, dtype=None, **options):
        q, k, v = (to_native(framework, x, dtype) for x in (q, k, v))
        options = native_options(framework, options, dtype)
        return to_numpy(package(framework).scaled_dot_product_attention(q, k, v, **options))

    return run


def gradients(framework):
    """f(q, k, v, dout, *, dtype=None, **keywords): d sum(out * dout) by q, k, v, and bias and sinks if given.

    Returns a dict of NumPy arrays: dq, dk, dv, dbias, dsinks. return_lse and return_weights are not for here.
    """
    return {"torch": _torch_gradients, "jax": _jax_gradients}[framework]


def _inputs(framework, q, k, v, dout, dtype, options):
    given = {"q": q, "k": k, "v": v}
    given |= {name: options.pop(name) for name in FLOATS if options.get(name) is not None}
    given = {name: to_native(framework, x, dtype) for name, x in given.items()}
    return given, to_native(framework, dout, dtype), native_options(framework, options, dtype)


def _torch_gradients(q, k, v, dout, *, dtype=None, **options):
    import torch

    given, dout, options = _inputs("torch", q, k, v, dout, dtype, options)
    given = {name: x.requires_grad_() for name, x in given.items()}
    out = package("torch").scaled_dot_product_attention(**given, **options)
    grads = torch.autograd.grad(out, tuple(given.values()), dout)
    return {f"d{name}": to_numpy(g) for name, g in zip(given, grads, strict=True)}


def _jax_gradients(q, k, v, dout, *, dtype=None, **options):
    import jax

    given, dout, options = _inputs("jax", q, k, v, dout, dtype, options)
    _, pull = jax.vjp(lambda g: package("jax").scaled_dot_product_attention(**g, **options), given)
    return {f"d{name}": to_numpy(g) for name, g in pull(dout)[0].items()}


@contextmanager
def lenient():
    """JAX as others use it: these tests' own strictness off."""
    import jax

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
