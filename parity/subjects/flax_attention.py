"""dot_product_attention of flax.nnx and of flax.linen: [..., T, H, D], scale 1 / sqrt(D) only.

nnx hands over to jax.nn where it can. Neither has an offset, a window or lengths: those become the mask.
"""

from parity.subjects import HALF, Subject, claim, first, takes
from parity.subjects.divergences import coarser, mean_of_v, nan_in_empty_rows, spreading_nan
from parity.subjects.jax_nn import CLAIMS, SOURCE
from parity.subjects.sight import RULES

LINEN_CLAIMS = claim("-direct") | claim("-flax", HALF)
NNX = f"flax 0.12.8, flax/nnx/nn/attention.py, hands over to {SOURCE}"
LINEN = "flax 0.12.8, flax/linen/attention.py, dot_product_attention_weights: hidden logits become finfo.min"
NNX_DIVERGES = (
    mean_of_v(NNX),
    spreading_nan(NNX, hidden=-1e38),
    nan_in_empty_rows(NNX, by_bias_only=True, hidden=-1e38),
    coarser({"float64": "float64-as-float32"}, "float64 in and out, float32 inside", NNX),
)
LINEN_DIVERGES = (
    mean_of_v(LINEN),
    spreading_nan(LINEN, hidden=-1e38),
    nan_in_empty_rows(LINEN, by_bias_only=True, hidden=-1e38),
)


def load_nnx():
    import jax.numpy as jnp
    from flax.nnx import dot_product_attention

    from parity.subjects.sight import visible

    def run(q, k, v, *, bias=None, causal=False, **sight):
        own = {} if "q_offset" in sight else {"is_causal": causal}
        mask = visible(jnp, q, k, **sight, **({} if own else {"causal": causal}))
        q, k, v = (jnp.swapaxes(x, -3, -2) for x in (q, k, v))  # (..., H, T, D) -> (..., T, H, D)
        return jnp.swapaxes(dot_product_attention(q, k, v, bias=bias, mask=mask, **own), -3, -2)

    return run


def load_linen():
    import jax.numpy as jnp
    from flax.linen import dot_product_attention

    from parity.subjects.sight import visible

    def run(q, k, v, *, bias=None, **sight):
        mask = visible(jnp, q, k, **sight)
        q, k, v = (jnp.swapaxes(x, -3, -2) for x in (q, k, v))  # (..., H, T, D) -> (..., T, H, D)
        return jnp.swapaxes(dot_product_attention(q, k, v, bias=bias, mask=mask), -3, -2)

    return run


has_heads = first(takes(*RULES, "bias"), lambda case: len(case.q) < 3 and "needs a head axis")
nnx_cannot = first(has_heads, lambda case: case.v_dim != case.head_dim and "needs Dv = D")
linen_cannot = first(has_heads, lambda case: case.n_head != case.n_kv_head and "has no grouped heads")

SUBJECTS = (
    Subject("flax.nnx", "jax", load_nnx, CLAIMS, nnx_cannot, NNX_DIVERGES),
    Subject("flax.linen", "jax", load_linen, LINEN_CLAIMS, linen_cannot, LINEN_DIVERGES),
)
