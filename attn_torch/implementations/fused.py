"""The framework's own kernels, where they give exactly what the contract says once they are mended.

All rules of visibility come to one mask, (B, H G, Tq, Tk). Zeros stand for keys that no query reads and for
queries that read none, since 0 * NaN is NaN. Of derivatives only the first, in reverse mode, is promised.

Axes: B batch, H kv heads, G query heads per kv head, q and k positions, d head size, v the values' head size.
"""

from math import inf

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..arithmetic import switched
from ..visibility import visible

# torch.nn.functional.scaled_dot_product_attention, and for a softcap flex_attention, which on a CPU only runs
# forward. Mended: a causal mask with a scale that is not positive is written out, for torch 2.13's CPU kernel
# multiplies its -inf by the scale; a bias goes to the plain kernel, for the CPU kernel's backward is wrong
# near -1e9.


def cannot(wanted, q, k, v, sight, *, scale, softcap, bias, sinks, dropout, precision):
    """Why the kernels cannot give a call's results, or None. wanted: "lse", "weights", both or none."""
    differentiated = any(x is not None and x.requires_grad for x in (q, k, v, bias))
    reasons = {
        "gives no weights": "weights" in wanted,
        "gives no log-sum-exp": "lse" in wanted,
        "has no sinks": sinks is not None,
        "drops by a generator of its own": dropout is not None,
        "obeys the global matmul precision, which is another": switched(q, precision),
        "takes no empty axis": 0 in (*q.shape, *k.shape, *v.shape),
        "has no derivative of a softcap on a CPU": softcap is not None and q.is_cpu and differentiated,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def attention(q, k, v, sight, *, scale, softcap=None, bias=None, sinks=None, dropout=None, precision=None):
    """softmax(cap(q k^T * scale) + bias) v over the keys that each query sees.

    q (B, H, G, Tq, D); k (B, H, Tk, D); v (B, H, Tk, Dv); bias (B, H, G, Tq, Tk), any axis possibly 1.
    Returns out (B, H, G, Tq, Dv) in q's dtype, and None for the log-sum-exp.
    """
    groups, Tq, Tk = q.shape[1:3], q.shape[-2], k.shape[-2]
    causal = only_causal(sight) and Tq >= Tk and scale > 0 and softcap is None and bias is None
    seen = None if causal else visible(sight, Tq, Tk, q)
    if bias is not None:
        seen = bias != -inf if seen is None else seen & (bias != -inf)
    if seen is not None:
        reads = seen.any(-1)[..., None]  # (B, H, G, Tq, 1)
        read = seen.any(-2).any(-2)[..., None]  # (B, H, Tk, 1)
        q, k, v = torch.where(reads, q, 0.0), torch.where(read, k, 0.0), torch.where(read, v, 0.0)
    mask = seen if bias is None else torch.where(seen, bias, -inf)
    if mask is not None:
        mask = mask.expand(-1, *groups, Tq, Tk).flatten(1, 2)  # (B, H G, Tq, Tk)
    q = q.flatten(1, 2)  # (B, H G, Tq, D)
    if softcap is None:
        out = _sdpa(q, k, v, mask, causal, scale)
    else:
        out = _flex(q, k, v, mask, softcap, scale)
    out = out.unflatten(1, groups)  # (B, H, G, Tq, Dv)
    return out if seen is None else torch.where(reads, out, 0.0), None


def only_causal(sight):
    """Whether key j <= i is the only rule, counted from the first query and key."""
    others = (sight.window, *sight[3:])
    offset = sight.q_offset
    return sight.causal and isinstance(offset, int) and offset == 0 and all(x is None for x in others)


def _sdpa(q, k, v, mask, causal, scale):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    plain = mask is not None and mask.is_floating_point() and q.is_cpu
    every = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    grouped = q.shape[1] != k.shape[1]
    with sdpa_kernel([SDPBackend.MATH] if plain else [*every, SDPBackend.MATH]):
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
        )


def _flex(q, k, v, mask, softcap, scale):
    from torch.nn.attention.flex_attention import flex_attention

    def capped(score, b, h, i, j):
        score = softcap * torch.tanh(score / softcap)
        if mask is None:
            return score
        at = mask[b if mask.shape[0] > 1 else 0, h, i, j]
        return score + at if mask.is_floating_point() else torch.where(at, score, -inf)

    return flex_attention(q, k, v, score_mod=capped, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
