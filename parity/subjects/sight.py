"""The contract's rules of visibility as one boolean mask, for libraries that take a mask and not the rule.

Written with operators that torch, jax.numpy and NumPy share, apart from the packages and the oracle.
"""

import functools
import operator

RULES = ("causal", "mask", "window", "q_offset", "q_lengths", "kv_lengths", "q_segment_ids", "kv_segment_ids")


def visible(
    xp, q, k, *, causal=False, mask=None, window=None, q_offset=0, q_lengths=None, kv_lengths=None,
    q_segment_ids=None, kv_segment_ids=None,
):  # fmt: skip
    """Bool, broadcastable to (*batch, Hq, Tq, Tk), True = attend; None if every query sees every key.

    xp: the module torch, jax.numpy or numpy that q (*batch, Hq, Tq, D) and k (*batch, Hkv, Tk, D) belong to.
    """
    Tq, Tk = q.shape[-2], k.shape[-2]
    where = {"device": q.device} if xp.__name__ == "torch" else {}
    i, j = xp.arange(Tq, **where)[:, None], xp.arange(Tk, **where)[None, :]

    def per_row(x, default):  # an int, or (*batch,) as (*batch, 1, 1, 1)
        x = default if x is None else x
        return x if isinstance(x, int) else x.reshape(*x.shape, 1, 1, 1)

    n_q, n_k = per_row(q_lengths, Tq), per_row(kv_lengths, Tk)
    at = i + (
        n_k - n_q if isinstance(q_offset, str) else per_row(q_offset, 0)
    )  # a query's place among the keys
    rules = [] if mask is None else [mask]
    if causal:
        rules.append(j <= at)
    if window is not None:
        left, right = (window, window) if isinstance(window, int) else window
        rules += [] if left is None else [j >= at - left]
        rules += [] if right is None else [j <= at + right]
    rules += [] if q_lengths is None else [(i < n_q) & (j >= 0)]
    rules += [] if kv_lengths is None else [(i >= 0) & (j < n_k)]
    if q_segment_ids is not None:
        rules.append(q_segment_ids[..., None, :, None] == kv_segment_ids[..., None, None, :])
    return functools.reduce(operator.and_, rules) if rules else None
