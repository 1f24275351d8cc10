"""torch.nn.attention.flex_attention, not compiled: the flag that its own warning names runs it as it is.

Cap, bias and mask are one score_mod, in the contract's order. On a CPU it has no backward.
"""

import numpy as np

from parity.subjects import HALF, Subject, claim, first, takes
from parity.subjects.divergences import spreading_nan
from parity.subjects.sight import RULES


def load():
    import torch
    from torch.nn.attention import flex_attention as flex

    from parity.subjects.sight import visible

    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # else dynamo traces every call, 0.3 s each

    def run(q, k, v, *, bias=None, scale=None, softcap=None, **sight):
        pairs = (*q.shape[:-1], k.shape[-2])
        seen = visible(torch, q, k, **sight)
        seen = None if seen is None else seen.expand(pairs)
        bias = None if bias is None else bias.expand(pairs)

        def score_mod(score, b, h, i, j):
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            if bias is not None:
                score = score + bias[b, h, i, j]
            return score if seen is None else torch.where(seen[b, h, i, j], score, float("-inf"))

        aux = flex.AuxRequest(lse=True)
        out, aux = flex.flex_attention(
            q, k, v, score_mod=score_mod, scale=scale, enable_gqa=q.shape[1] != k.shape[1], return_aux=aux
        )
        return out, aux.lse

    return run


cannot = first(
    takes(*RULES, "bias", "scale", "softcap"),
    lambda case: len(case.q) != 4 and "takes (B, H, T, D) only",
    lambda case: case.Tk == 0 and "needs a key",
)

SPREADING = spreading_nan("seen on torch 2.13.0, CPU", queries=False, hidden=-np.inf, empty_is_zero=True)

SUBJECTS = (
    Subject(
        "torch.flex_attention", "torch", load, claim("-direct") | claim("", HALF), cannot, (SPREADING,),
        exposes_lse=True, forward_only=("cpu",),
    ),
)  # fmt: skip
