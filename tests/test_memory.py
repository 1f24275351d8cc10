"""What a block needs memory for: the score matrix, (B, H, T, T) of float32, 400 MB at GPT-2 small's sizes."""

import math

from blocks import part

SCORES = 8 * 12 * 1024 * 1024 * 4  # bytes of (B, H, T, T) in float32


def torch_largest(n_embd, n_head, shape):
    """Bytes of the largest tensor that a block's forward pass allocates, and the shape that it returns."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        n = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            tensors = [t for t in (out if isinstance(out, tuple | list) else (out,)) if torch.is_tensor(t)]
            self.n = max([self.n, *(t.untyped_storage().nbytes() for t in tensors)])
            return out

    block, x = part("torch", "block").Block(n_embd, n_head, implementation="reference"), torch.zeros(shape)
    with Largest() as largest:
        y = block(x)
    return largest.n, y.shape


def test_torch_allocates_nothing_larger_than_the_score_matrix():
    import torch

    assert SCORES == 402_653_184  # 400 MB
    with torch.device("meta"):  # at full size, and nothing computed
        n, shape = torch_largest(768, 12, (8, 1024, 768))
    assert (n, str(shape)) == (SCORES, "torch.Size([8, 1024, 768])")
    for T in (64, 128):  # as allocated: with the square of T
        n, _ = torch_largest(24, 3, (2, T, 24))
        assert n == 2 * 3 * T * T * 4


def test_jax_holds_nothing_larger_than_the_score_matrix():
    import jax

    def program(B, T, n_embd, n_head):
        init, block = part("jax", "block").init_block, part("jax", "block").block
        params = jax.eval_shape(lambda key: init(key, n_embd), jax.random.key(0))
        params = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, "float32"), params)
        x = jax.ShapeDtypeStruct((B, T, n_embd), "float32")
        return jax.jit(lambda params, x: block(params, x, n_head, implementation="reference")), params, x

    apply, *given = program(8, 1024, 768, 12)  # at full size, and nothing computed
    assert max(bytes_of(apply.trace(*given).jaxpr.jaxpr)) == SCORES
    assert jax.eval_shape(apply, *given).shape == (8, 1024, 768)
    compiled = {}
    for T in (128, 256):  # as compiled: with the square of T
        apply, *given = program(2, T, 24, 3)
        compiled[T] = apply.lower(*given).compile().memory_analysis().temp_size_in_bytes
        assert compiled[T] >= 2 * 3 * T * T * 4
    assert 3 < compiled[256] / compiled[128] < 5


def bytes_of(jaxpr):
    """Of every intermediate of a program and of the programs within it."""
    for eqn in jaxpr.eqns:
        yield from (math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.outvars)
        for inner in eqn.params.values():
            if hasattr(inner, "jaxpr"):
                yield from bytes_of(inner.jaxpr)
