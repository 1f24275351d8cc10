"""Attention for flax's multi-head layers, of nnx and of linen, which take it as `attention_fn`."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.lax import Precision

from .attention import scaled_dot_product_attention

PRECISIONS = {Precision(name): name for name in ("float32", "tensorfloat32", "bfloat16")}


def attention_fn(
    query,
    key,
    value,
    bias=None,
    mask=None,
    broadcast_dropout=True,
    dropout_rng=None,
    dropout_rate=0.0,
    deterministic=False,
    dtype=None,
    precision=None,
    module=None,
    is_causal=False,
    force_fp32_for_softmax=False,
    qk_attn_weights_einsum=None,
    attn_weights_value_einsum=None,
):
    """scaled_dot_product_attention as flax calls it, in place of its own dot_product_attention.

    query (..., Tq, H, D), key (..., Tk, Hkv, D), value (..., Tk, Hkv, Dv).
    bias, mask: (..., H, Tq, Tk), where any axis may be 1. A mask attends where it is not 0, of any dtype:
      flax makes it of floats.
    dropout_rng, dropout_rate, broadcast_dropout (one mask for all rows and heads), deterministic: the weights
      dropped are those that flax's own function drops.
    dtype: of the computation, by default what the three promote to. precision: None is full, here as
      everywhere; HIGH and DEFAULT permit less.
    module: what sows the weights, before dropout, as "attention_weights". is_causal: query 0 stands at key 0.
    force_fp32_for_softmax: it always is float32 at least.
    Returns (..., Tq, H, Dv). A query that sees nothing gives 0, where flax's own averages all values.
    Raises ValueError for dropout without a key, einsums of one's own, and a precision that is none.
    """
    given = {"qk_attn_weights_einsum": qk_attn_weights_einsum}
    given |= {"attn_weights_value_einsum": attn_weights_value_einsum}
    for name in [name for name, x in given.items() if x is not None]:
        raise ValueError(f"{name}: got {given[name]!r}, wanted None")
    dtype = jnp.result_type(query, key, value) if dtype is None else dtype
    q, k, v = (jnp.swapaxes(x, -3, -2).astype(dtype) for x in (query, key, value))  # (..., H, T, D)
    options = {
        "causal": is_causal,
        "mask": None if mask is None else jnp.asarray(mask, bool),
        "bias": None if bias is None else jnp.asarray(bias),
        "precision": None if precision is None else PRECISIONS[Precision(precision)],
    }
    if module is not None:
        _, weights = scaled_dot_product_attention(q, k, v, return_weights=True, **options)
        kind = nnx.Intermediate if isinstance(module, nnx.Module) else "intermediates"
        module.sow(kind, "attention_weights", weights.astype(dtype))
    if dropout_rate > 0 and not deterministic:
        if dropout_rng is None:
            raise ValueError(f"dropout_rng: got None with dropout_rate={dropout_rate}, wanted a key")
        lead = (1,) * (q.ndim - 2) if broadcast_dropout else q.shape[:-2]
        keep = jax.random.bernoulli(dropout_rng, 1 - dropout_rate, (*lead, q.shape[-2], k.shape[-2]))
        options |= {"dropout_p": dropout_rate, "dropout_mask": keep}
    return jnp.swapaxes(scaled_dot_product_attention(q, k, v, **options), -3, -2)
