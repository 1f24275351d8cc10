"""The transformer block: a residual stream that attention and an MLP read, normalised, and write to.

Axes: T positions, C channels (n_embd).
"""

import math

import jax.numpy as jnp
from flax import nnx

from .mlp import MLP, check_channels, mlp
from .multihead import CausalSelfAttention, causal_self_attention, init_attention, normal, split
from .norms import layer_norm


def init_block(key, n_embd):
    """Parameters of a block: attn (init_attention's), ln1 and ln2, both (gain (C,), bias (C,)), the MLP's.

    The MLP's: w_fc (C, 4C), b_fc (4C,), w_proj (4C, C), b_proj (C,). C = n_embd.
    Weights are normal, of standard deviation 1 / sqrt(C); biases are zero, gains one.
    key: a PRNG key; where the framework has none, a seed or a generator, which draw other numbers.
    """
    k1, k2, k3 = split(key, 3)
    attn = init_attention(k1, n_embd)
    w_fc = normal(k2, (n_embd, 4 * n_embd)) / math.sqrt(n_embd)
    w_proj = normal(k3, (4 * n_embd, n_embd)) / math.sqrt(n_embd)
    b_fc, b_proj = jnp.zeros_like(w_fc[0]), jnp.zeros_like(w_proj[0])
    return {
        "attn": attn,
        "ln1": (jnp.ones_like(b_proj), jnp.zeros_like(b_proj)),
        "ln2": (jnp.ones_like(b_proj), jnp.zeros_like(b_proj)),
        "w_fc": w_fc,
        "b_fc": b_fc,
        "w_proj": w_proj,
        "b_proj": b_proj,
    }


def block(params, x, n_head, *, implementation="auto"):
    """x + attention(norm(x)), then x + mlp(norm(x)): pre-norm, so the stream itself is never normalised.

    params: as init_block's. x: (..., T, C), in the parameters' dtype.
    implementation: as in scaled_dot_product_attention.
    Returns (..., T, C).
    Raises ValueError if n_head does not divide C or x has another shape, TypeError if x has another dtype.
    Source: Radford et al. 2019, section 2.3; Xiong et al. 2020, section 3.
    """
    check_channels(x, params["ln1"][0].shape[0])
    h = layer_norm(x, *params["ln1"])
    x = x + causal_self_attention(params["attn"], h, n_head, implementation=implementation)
    return x + mlp(params, layer_norm(x, *params["ln2"]))


class LayerNorm(nnx.Module):
    """layer_norm as a module: weight is the gain, bias the bias, both (C,). x (..., C) -> (..., C)."""

    def __init__(self, n_embd, eps=1e-5):
        self.eps = eps
        self.weight = nnx.Param(jnp.ones(n_embd, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(n_embd, jnp.float32))

    def __call__(self, x):
        return layer_norm(x, self.weight[...], self.bias[...], self.eps)


class Block(nnx.Module):
    """block as a module. x (..., T, C) -> (..., T, C).

    Its parameters are drawn as the framework's own linear layers are; params.from_tree loads others.
    """

    def __init__(self, n_embd, n_head, *, implementation="auto", rngs=None):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.n_embd = n_embd
        self.ln_1 = LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, implementation=implementation, rngs=rngs)
        self.ln_2 = LayerNorm(n_embd)
        self.mlp = MLP(n_embd, rngs=rngs)

    def __call__(self, x):
        check_channels(x, self.n_embd)
        x = x + self.attn(self.ln_1(x))  # across positions
        return x + self.mlp(self.ln_2(x))  # within each
