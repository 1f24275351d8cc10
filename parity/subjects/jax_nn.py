"""jax.nn.dot_product_attention, as XLA: (B, T, H, D), top-left causal and window, softmax in float32."""

from parity.subjects import Subject, claim, first, takes
from parity.subjects.divergences import coarser, mean_of_v, nan_in_empty_rows, spreading_nan
from parity.subjects.sight import RULES

# no float16: XLA has no F16_F16_F32 product on a CPU, and under jit nobody catches it
CLAIMS = claim("-direct", ("float32", "float64")) | claim("-jax", ("bfloat16",))
SOURCE = "jax 0.10.2, jax/_src/nn/functions.py, _dot_product_attention_core"
DIVERGES = (
    mean_of_v(f"{SOURCE}: hidden logits become -0.7 * the largest float32", zero_past_q_lengths=True),
    spreading_nan(
        f"{SOURCE}: where(mask, logits, ...) stops NaN in the scores, not 0 * NaN in the products",
        hidden=-1e38,
    ),
    nan_in_empty_rows(
        f"{SOURCE}: a bias of -inf is added, and the softmax is not guarded", by_bias_only=True, hidden=-1e38
    ),
    coarser(
        {"float64": "float64-as-float32"},
        "float64 in and out, float32 inside",
        f"{SOURCE}: softmax in float32",
    ),
)


def load():
    import jax.numpy as jnp
    from jax.nn import dot_product_attention

    from parity.subjects.sight import visible

    def run(
        q, k, v, *, bias=None, scale=None, causal=False, window=None, q_lengths=None, kv_lengths=None, **sight
    ):
        own = {"is_causal": causal, "local_window_size": window}  # anchored at query 0, key 0
        if "q_offset" in sight or (isinstance(window, tuple) and None in window):
            own, sight = {}, {**sight, "causal": causal, "window": window}
            if isinstance(sight.get("q_offset"), str):
                sight |= {"q_lengths": q_lengths, "kv_lengths": kv_lengths}
        lengths = [
            None if n is None else jnp.broadcast_to(jnp.int32(n), q.shape[:1])
            for n in (q_lengths, kv_lengths)
        ]
        mask = visible(jnp, q, k, **sight)
        pad = [None if x is None else x.reshape(*(1,) * (4 - x.ndim), *x.shape) for x in (bias, mask)]
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))  # (B, H, T, D) -> (B, T, H, D)
        out = dot_product_attention(
            q, k, v, *pad, scale=scale, query_seq_lengths=lengths[0], key_value_seq_lengths=lengths[1],
            implementation="xla", **own,
        )  # fmt: skip
        return jnp.swapaxes(out, 1, 2)  # (B, H, Tq, D)

    return run


cannot = first(
    takes(*RULES, "bias", "scale"),
    lambda case: len(case.q) != 4 and "takes (B, T, H, D) only",
    lambda case: case.v_dim != case.head_dim and "needs Dv = D",
)

SUBJECTS = (Subject("jax.nn", "jax", load, CLAIMS, cannot, DIVERGES),)
