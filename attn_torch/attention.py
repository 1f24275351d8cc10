"""Attention, the contract: check the arguments, bring them to one form, compute, give back the caller's."""

import math
from numbers import Integral

import torch

from . import checks
from .arithmetic import append_zero, describe, index, label
from .dropout import Dropout
from .implementations import IMPLEMENTATIONS, choose, others
from .visibility import Sight


def scaled_dot_product_attention(
    q,
    k,
    v,
    causal=False,
    *,
    mask=None,
    bias=None,
    scale=None,
    softcap=None,
    window=None,
    q_offset=0,
    q_lengths=None,
    kv_lengths=None,
    q_segment_ids=None,
    kv_segment_ids=None,
    sinks=None,
    dropout_p=0.0,
    dropout_seed=None,
    dropout_mask=None,
    precision=None,
    return_lse=False,
    return_weights=False,
    implementation="auto",
):
    """softmax(cap(q k^T * scale) + bias) over the keys that each query sees, dropout, and the sum over v.

    q: (..., Hq, Tq, D). k: (..., Hkv, Tk, D). v: (..., Hkv, Tk, Dv). Any leading axes, the same in all three;
      (T, D) has no head axis. Query head h reads kv head h // (Hq // Hkv). One dtype: float16, bfloat16,
      float32 or float64; scores, softmax and sums are at least float32.
    causal: key j is seen by query i only if j <= i + q_offset.
    mask: bool, True = attend, broadcastable to (..., Hq, Tq, Tk).
    bias: added to the scores, broadcastable alike, in q's dtype or the arithmetic's. -inf hides; no finite
      number does.
    scale: default 1 / sqrt(D). softcap: scores become softcap * tanh(scores / softcap), after scale, before
      bias.
    window: (left, right), key j only if i + q_offset - left <= j <= i + q_offset + right; w is (w, w); None
      is open.
    q_offset: position of query 0 among the keys: an integer, integers (...), or "bottom_right": last query at
      last key.
    q_lengths, kv_lengths: an integer or integers (...): from there on queries see nothing, keys are not seen.
    q_segment_ids (..., Tq), kv_segment_ids (..., Tk): integers; a query sees keys of its own segment only.
    sinks: (Hq,), a logit in each softmax's denominator that has no value.
    dropout_p: probability with which a weight is dropped, by dropout_seed (an integer below 2**32) or where
      dropout_mask (bool, True = keep, broadcastable) is False; kept weights are divided by 1 - dropout_p.
    precision: of float32 products: None or "float32" is full on every device; "tensorfloat32", "bfloat16"
      permit less.
    implementation: "auto" (the fastest that gives exactly this), or a name in
      implementations.IMPLEMENTATIONS.

    All rules given must hold for a pair to be seen. A query that sees nothing: out 0, lse -inf or its sink,
    weights and gradients 0. A key that no query sees may hold NaN. Lengths and offsets in arrays are checked
    where their values can be read without waiting.

    Returns out (..., Hq, Tq, Dv) in q's dtype; with return_lse also lse (..., Hq, Tq), the natural logarithm
    of the denominator; with return_weights also weights (..., Hq, Tq, Tk), which multiply v. Both are at
    least float32.
    Raises TypeError or ValueError, naming the argument, what was got and what was wanted.
    Source: Vaswani et al. 2017, section 3.2.1.
    """
    given = {
        "mask": mask,
        "bias": bias,
        "scale": scale,
        "softcap": softcap,
        "window": window,
        "q_offset": q_offset,
        "q_lengths": q_lengths,
        "kv_lengths": kv_lengths,
        "q_segment_ids": q_segment_ids,
        "kv_segment_ids": kv_segment_ids,
        "sinks": sinks,
        "dropout_p": dropout_p,
        "dropout_seed": dropout_seed,
        "dropout_mask": dropout_mask,
        "precision": precision,
    }
    name, _, call = prepare(q, k, v, causal, return_lse, return_weights, implementation, given)
    out, lse, *weights = IMPLEMENTATIONS[name].attention(**call)
    rows, Tk = q.shape[:-1], k.shape[-2]  # (..., Hq, Tq)
    results = [out.reshape(*rows, v.shape[-1])]
    if return_lse:
        results.append(lse.reshape(rows))
    if return_weights:
        results.append(weights[0][..., :Tk].reshape(*rows, Tk))
    return tuple(results) if len(results) > 1 else results[0]


def explain(q, k, v, causal=False, **options):
    """Which implementation such a call of scaled_dot_product_attention runs, and why not the others.

    Takes what that takes; computes nothing. Returns a line for each implementation, the chosen one first.
    """
    given = scaled_dot_product_attention.__kwdefaults__ | options
    asked = [given.pop(name) for name in ("return_lse", "return_weights", "implementation")]
    name, wanted, call = prepare(q, k, v, causal, *asked, given)
    reasons = others(name, asked[-1], wanted, call)
    return "\n".join([f"{name}: chosen", *(f"{other}: {why}" for other, why in reasons.items())])


def prepare(q, k, v, causal, return_lse, return_weights, implementation, given):
    """The name of the implementation that runs, what it has to give besides the output, and its arguments.

    given: the other keywords of scaled_dot_product_attention.
    """
    checks.attention(
        *(describe(x) for x in (q, k, v)),
        causal,
        **{name: describe(x) for name, x in given.items()},
        return_lse=return_lse,
        return_weights=return_weights,
        implementation=implementation,
        implementations=("auto", *IMPLEMENTATIONS),
    )
    call = grouped(q, k, v, causal, **given)
    wanted = [name for name, flag in (("lse", return_lse), ("weights", return_weights)) if flag]
    return choose(implementation, wanted, call), wanted, call


def grouped(
    q, k, v, causal, *, mask, bias, scale, softcap, window, q_offset, q_lengths, kv_lengths, q_segment_ids,
    kv_segment_ids, sinks, dropout_p, dropout_seed, dropout_mask, precision,
):  # fmt: skip
    """The arguments of an implementation: one batch axis, heads in groups, the rules in a Sight."""
    Tk = k.shape[-2]
    if Tk == 0:  # no keys are one key that nobody reads, so that no implementation meets an empty axis
        k, v, kv_lengths = append_zero(k, -2), append_zero(v, -2), 0
        mask, bias, dropout_mask, kv_segment_ids = map(grown, (mask, bias, dropout_mask, kv_segment_ids))
    *batch, Hq, Tq, D = q.shape if len(q.shape) > 2 else (1, *q.shape)
    H = k.shape[-3] if len(k.shape) > 2 else 1
    B, G = math.prod(batch), Hq // max(H, 1)

    def row(x):  # one number for all rows of the batch, or (B,)
        return int(x) if isinstance(x, Integral) else x if x is None else index(x, checks.FURTHEST).reshape(B)

    def ids(x):  # (B, T)
        return None if x is None else label(x).reshape(B, x.shape[-1])

    q_lengths, kv_lengths = row(q_lengths), row(kv_lengths)
    if isinstance(q_offset, str):  # "bottom_right"
        q_offset = (Tk if kv_lengths is None else kv_lengths) - (Tq if q_lengths is None else q_lengths)
    else:
        q_offset = row(q_offset)
    sight = Sight(
        causal=causal,
        window=sides(window),
        q_offset=q_offset,
        q_lengths=q_lengths,
        kv_lengths=kv_lengths,
        q_segment_ids=ids(q_segment_ids),
        kv_segment_ids=ids(kv_segment_ids),
        mask=by_group(mask, batch, H, G),
    )
    dropout_mask = by_group(dropout_mask, batch, H, G)
    return {
        "q": q.reshape(B, H, G, Tq, D),
        "k": k.reshape(B, H, k.shape[-2], D),
        "v": v.reshape(B, H, v.shape[-2], v.shape[-1]),
        "sight": sight,
        "scale": 1 / math.sqrt(max(D, 1)) if scale is None else float(scale),
        "softcap": None if softcap is None else float(softcap),
        "bias": by_group(bias, batch, H, G),
        "sinks": None if sinks is None else sinks.reshape(H, G),
        "dropout": None if dropout_p == 0 else Dropout(float(dropout_p), dropout_seed, dropout_mask),
        "precision": precision,
    }


def grown(x):
    """x with a zero appended to its last axis, if that is empty."""
    return append_zero(x, -1) if x is not None and x.ndim and x.shape[-1] == 0 else x


def sides(window):
    """(left, right), each None where it is open, or None; cut to 2 * FURTHEST, beyond every position."""
    if window is None:
        return None
    left, right = window if isinstance(window, (tuple, list)) else (window, window)
    return tuple(None if side is None else min(int(side), 2 * checks.FURTHEST) for side in (left, right))


def by_group(x, batch, H, G):
    """(..., Hq, Tq, Tk), any axis possibly 1 or missing, as (B, H, G, Tq, Tk), any axis possibly 1."""
    if x is None:
        return None
    *lead, Hq, Tq, Tk = (1,) * (3 - x.ndim) + tuple(x.shape)
    if any(n != 1 for n in lead):
        lead, x = batch, torch.broadcast_to(x, (*batch, Hq, Tq, Tk))
    heads = (H, G) if Hq > 1 else (Hq, Hq)
    return x.reshape(math.prod(lead), *heads, Tq, Tk)
