"""torch.nn.MultiheadAttention as an attention core: identity projections, and a mask whose True hides.

Width H * D, batch_first=False: (B, H, T, D) -> (T, B, H * D). The products with an identity matrix are exact.
"""

from parity.subjects import HALF, Subject, claim, first, takes
from parity.subjects.divergences import nan_in_empty_rows, spreading_nan
from parity.subjects.sight import RULES

FLASH = claim() | claim("-cpuflash", HALF)
NAIVE = claim("-direct") | claim("-naive", HALF)
SEEN = "seen on torch 2.13.0, CPU"
SOURCE = "torch 2.13.0, nn/functional.py, multi_head_attention_forward: softmax over a row of -inf"


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
        (spreading_nan(SEEN, heads_mix=True), nan_in_empty_rows(SOURCE, heads_mix=True)),
    ),
)  # fmt: skip
