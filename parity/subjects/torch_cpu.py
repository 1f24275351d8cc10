"""Divergences of torch's CPU flash kernel, which scaled_dot_product_attention chooses by itself."""

from dataclasses import replace

import numpy as np

from parity import oracle
from parity.oracle import Oracle
from parity.subjects.divergences import Divergence, pairs

KERNEL = "seen on torch 2.13.0, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp"


# ---- causal: -inf is written first and multiplied by the scale afterwards


def hidden_then_scaled(case, made, contract) -> bool:
    """is_causal with a scale that is not positive: 0 * -inf is NaN, -0.5 * -inf is +inf."""
    only_causal = set(made.options) == {"causal", "scale"}
    return only_causal and contract.call.scale <= 0.0 and bool((~pairs(case, made, contract)).any())


def scaled_nan(half):
    """NaN in rows with a hidden key and in what they reach; not in dq, dk of float32, float64 for scale 0."""

    def nan(case, made, contract):
        seen = pairs(case, made, contract)
        rows = ~seen.all(-1, keepdims=True)  # (..., Hq, Tq, 1)
        keys = (seen & rows).any(-2, keepdims=True).mT  # (..., Hq, Tk, 1): read by such a row
        found = {"out": rows, "dv": keys}
        if half or contract.call.scale != 0.0:
            found |= {"dq": rows, "dk": np.True_}
        return {name: np.broadcast_to(where, getattr(contract, name).shape) for name, where in found.items()}

    return nan


def causal_scale(dtypes, half) -> Divergence:
    return Divergence(
        "NaN for causal with scale <= 0",
        "the causal mask is multiplied by the scale: every row with a hidden key is NaN",
        KERNEL,
        when=hidden_then_scaled,
        nan=scaled_nan(half),
        dtypes=dtypes,
    )


def beyond_one_tile(case) -> str | None:
    """Over 512 keys the rows that are NaN depend on the kernel's tiles; shorter cases show the mechanism."""
    long = case.Tk > 512 and set(case.options) == {"causal", "scale"} and case.scale <= 0.0
    return "is NaN by tiles for causal with scale <= 0 and over 512 keys" if long else None


CAUSAL_SCALE = (causal_scale(("float32", "float64"), False), causal_scale(("float16", "bfloat16"), True))


# ---- backward: the log-sum-exp of a row at -1e9 has no bits left for log(Tk)


def lost(contract) -> np.ndarray:
    """What float32 loses of each row's log-sum-exp, (B, H, G, Tq, 1)."""
    lse = np.where(np.isfinite(contract.forward.lse), contract.forward.lse, 0.0)
    return lse.astype(np.float32).astype(np.float64) - lse


def absorbed(case, made, contract: Oracle) -> Oracle:
    """The contract's gradients with weights exp(s - lse), lse rounded to float32.

    The level of such a row is taken off first: exact arithmetic does not notice, and the bound stays tight.
    """
    level = np.where(np.abs(lost(contract)) > 0.5, contract.forward.peak, 0.0)
    shift = level.reshape(*made.q.shape[:-1], 1)
    options = {**made.options, "bias": made.options["bias"] - shift}
    found = oracle.attention(made.q, made.k, made.v, made.dout, **options)
    wrong = replace(
        found.forward, mass=found.forward.mass * np.exp(np.where(level == 0.0, 0.0, lost(contract)))
    )
    dout = found.call.axes.group_rows(made.dout)
    backward = oracle.backward(found.call, wrong, dout, oracle.EXACT)
    return replace(found, backward=backward, **oracle.gradients(found.call, backward, oracle.EXACT))


FINITE_ROW = Divergence(
    "backward of a row hidden by a finite number",
    "dv is 1 per key where 1 / Tk is right, dk as much too large: the row's lse absorbs log(Tk) in float32",
    KERNEL,
    when=lambda case, made, contract: "bias" in made.options and bool((np.abs(lost(contract)) > 0.5).any()),
    instead=absorbed,
    dtypes=("float32", "bfloat16"),
)
