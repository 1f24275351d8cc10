"""torch.nn.MultiheadAttention as an attention core: identity projections, and a mask whose True hides.

Width H * D, batch_first=False: (B, H, T, D) -> (T, B, H * D). The products with an identity matrix are exact.
"""

import numpy as np

from parity.subjects import HALF, Subject, claim, first, takes
from parity.subjects.divergences import Divergence, nan_in_empty_rows, spreading_nan
from parity.subjects.sight import RULES

FLASH = claim() | claim("-cpuflash", HALF)
NAIVE = claim("-direct") | claim("-naive", HALF)
SEEN = "seen on torch 2.13.0, CPU"
SOURCE = "torch 2.13.0, nn/functional.py, multi_head_attention_forward: softmax over a row of -inf"
INFINITE = 65520.0  # what float16 rounds to infinity


def loader(need_weights):
    def load():
        import torch

        from parity.subjects.sight import visible

        def module(width, heads, like):
            made = torch.nn.MultiheadAttention(width, heads, device=like.device, dtype=like.dtype)
            with torch.no_grad():
                made.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
                made.out_proj.weight.copy_(torch.eye(width))
            return made

        def fold(x):  # (B, H, T, D) -> (T, B, H * D)
            return x.permute(2, 0, 1, 3).flatten(2)

        def run(q, k, v, *, bias=None, **sight):
            B, H, Tq, D = q.shape
            seen, mask = visible(torch, q, k, **sight), bias
            if seen is not None:  # its True hides
                mask = ~seen if bias is None else torch.where(seen, bias, float("-inf"))
            if mask is not None:
                mask = mask.expand(B, H, Tq, k.shape[-2]).flatten(0, 1)
            out, _ = module(H * D, H, q)(fold(q), fold(k), fold(v), attn_mask=mask, need_weights=need_weights)
            return out.unflatten(2, (H, D)).permute(1, 2, 0, 3)

        return run

    return load


def overflowing(contract):
    """The queries for which dout . v of a key is infinite in float16, in one head at least, (B, 1, Tq, 1)."""
    large = np.abs(contract.backward.dp) >= INFINITE  # (B, H, 1, Tq, Tk), hidden keys too
    return large.any((1, 2, 4))[:, None, :, None]


def spread_by_projection(case, made, contract):
    """The softmax's gradient of such a row is NaN; the projections' own gradients take it to every head."""
    rows = overflowing(contract)
    found = {"dq": rows, "dk": rows.any(2, keepdims=True)}
    return {name: np.broadcast_to(where, getattr(contract, name).shape) for name, where in found.items()}


OVERFLOW = Divergence(
    "an overflow spreads over heads",
    "where dout v exceeds float16 in one head, the gradient of q there and of every key is NaN in all heads",
    "seen on torch 2.13.0, CPU: with weights, dout v is stored in float16; a projection multiplies NaN by 0",
    when=lambda case, made, contract: bool(overflowing(contract).any()),
    nan=spread_by_projection,
    dtypes=("float16",),
)

cannot = first(
    takes(*RULES, "bias"),
    lambda case: len(case.q) != 4 and "takes (T, B, H * D) only",
    lambda case: case.n_head != case.n_kv_head and "has no grouped heads",
    lambda case: case.v_dim != case.head_dim and "needs Dv = D",
)

SUBJECTS = (
    Subject(
        "torch.MultiheadAttention", "torch", loader(False), FLASH, cannot,
        (spreading_nan(SEEN, empty_is_zero=True, heads_mix=True),),
    ),
    Subject(
        "torch.MultiheadAttention[weights]", "torch", loader(True), NAIVE, cannot,
        (spreading_nan(SEEN, heads_mix=True), nan_in_empty_rows(SOURCE, heads_mix=True), OVERFLOW),
    ),
)  # fmt: skip
