"""torch.nn.functional.scaled_dot_product_attention: as it chooses, and each CPU kernel by name.

Masks and biases become one attn_mask. A case that is only causal is given as is_causal=True: top-left.
"""

from parity.subjects import HALF, Subject, claim, first, takes
from parity.subjects.divergences import spreading_nan
from parity.subjects.sight import RULES
from parity.subjects.torch_cpu import CAUSAL_SCALE, FINITE_ROW, beyond_one_tile

FLASH = claim() | claim("-cpuflash", HALF)
SEEN = "seen on torch 2.13.0, CPU"
SPREADING = spreading_nan(SEEN, empty_is_zero=True)


def loader(*backends):
    def load():
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        from parity.subjects.sight import visible

        allowed = [
            getattr(SDPBackend, name) for name in backends or SDPBackend.__members__ if name != "ERROR"
        ]

        def run(q, k, v, *, bias=None, scale=None, causal=False, **sight):
            only_causal = causal and not sight and bias is None
            seen = None if only_causal else visible(torch, q, k, causal=causal, **sight)
            mask = seen if bias is None else bias if seen is None else torch.where(seen, bias, float("-inf"))
            if mask is not None and mask.ndim < 2:
                mask = mask.expand(q.shape[-2], -1)  # attn_mask has to have a query axis
            grouped = q.ndim > 2 and q.shape[-3] != k.shape[-3]
            with sdpa_kernel(allowed):
                return scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=only_causal, scale=scale, enable_gqa=grouped
                )

        return run

    return load


takes_masks = takes(*RULES, "bias", "scale")


def flash_cannot(case):
    """What the CPU flash kernel leaves to the math kernel. Source: torch 2.13, sdp_utils_cpp.cpp."""
    if len(case.q) != 4:
        return "takes (B, H, T, D) only"
    if case.v_dim != case.head_dim:
        return "needs Dv = D"
    if case.layout == "column":
        return "needs stride(-1) = 1"
    return None


every = first(takes_masks, beyond_one_tile)
flash = first(takes_masks, flash_cannot, beyond_one_tile)

SUBJECTS = (
    Subject("torch.sdpa", "torch", loader(), FLASH, every, (SPREADING, *CAUSAL_SCALE)),
    Subject("torch.sdpa[math]", "torch", loader("MATH"), claim("-direct"), takes_masks, (SPREADING,)),
    Subject(
        "torch.sdpa[flash]", "torch", loader("FLASH_ATTENTION"), FLASH, flash,
        (SPREADING, *CAUSAL_SCALE, FINITE_ROW), constants=("bias",),
    ),
)  # fmt: skip
