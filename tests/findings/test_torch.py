"""What torch 2.13 does that its documentation does not say. Each test fails on the day it is repaired."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

FLASH, MATH = SDPBackend.FLASH_ATTENTION, SDPBackend.MATH
half_and_full = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)


def made(*shapes, dtype=torch.float32):
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]


def test_cpu_flash_backward_of_a_row_hidden_by_a_finite_number():
    """dv is 1 per key where 1/8 is right: -1e9 + log 8 is -1e9 in float32."""
    grads = {}
    for kernel in (FLASH, MATH):
        q, k, v = (torch.zeros(1, 1, T, 4, requires_grad=True) for T in (1, 8, 8))
        with sdpa_kernel(kernel):
            out = attend(q, k, v, attn_mask=torch.full((1, 8), -1e9))
        out.backward(torch.ones_like(out))
        grads[kernel] = v.grad
    assert grads[FLASH].unique().tolist() == [1.0]
    assert grads[MATH].unique().tolist() == [0.125]


@half_and_full
@pytest.mark.parametrize("scale", [0.0, -0.0, -0.5])
def test_cpu_flash_multiplies_the_causal_mask_by_the_scale(scale, dtype):
    """0 * -inf is NaN, -0.5 * -inf is +inf: every row with a hidden key. The mask written out is right."""
    q, k, v = made(*[(1, 1, 5, 8)] * 3, dtype=dtype)
    with sdpa_kernel(FLASH):
        causal = attend(q, k, v, is_causal=True, scale=scale)
        written_out = attend(q, k, v, attn_mask=torch.ones(5, 5, dtype=bool).tril(), scale=scale)
    assert causal[:, :, :4].isnan().all()
    assert causal[:, :, 4:].isfinite().all()
    assert written_out.isfinite().all()


@pytest.mark.parametrize("kernel", [FLASH, MATH], ids=["flash", "math"])
@pytest.mark.parametrize("spoiled", ["k", "v"])
def test_nan_in_a_hidden_key_reaches_every_query(kernel, spoiled):
    q, k, v = made(*[(1, 2, 4, 8)] * 3)
    {"k": k, "v": v}[spoiled][:, :, 1] = torch.nan
    with sdpa_kernel(kernel):
        out = attend(q, k, v, attn_mask=torch.arange(4).expand(4, 4) != 1)
    assert out.isnan().all()


def test_an_explicit_mask_with_is_causal_depends_on_the_kernel():
    """The documentation calls it an error: math raises, flash takes both."""
    q, k, v = made(*[(1, 1, 4, 8)] * 3)
    mask = torch.ones(4, 4, dtype=bool)
    with sdpa_kernel(FLASH):
        assert torch.equal(attend(q, k, v, attn_mask=mask, is_causal=True), attend(q, k, v, is_causal=True))
    with sdpa_kernel(MATH), pytest.raises(RuntimeError, match="should not be set when is_causal=True"):
        attend(q, k, v, attn_mask=mask, is_causal=True)


def test_multihead_attention_gives_nan_only_when_weights_are_requested():
    """A head that sees nothing: 0 without weights, NaN for the whole output with them."""
    module = torch.nn.MultiheadAttention(8, 2, bias=False)
    (x,) = made((3, 1, 8))
    hidden = torch.zeros(2, 3, 3, dtype=bool)
    hidden[0] = True  # head 0; True hides
    with_weights, _ = module(x, x, x, attn_mask=hidden, need_weights=True)
    without, _ = module(x, x, x, attn_mask=hidden, need_weights=False)
    assert with_weights.isnan().all()
    assert without.isfinite().all()


@pytest.mark.parametrize("weights", [True, False])
def test_multihead_attention_with_weights_spreads_an_overflow_in_float16_over_its_heads(weights):
    """Two heads of size 1. In head 1 dout v is 300 * 300, infinite in float16: its gradients with weights are
    NaN. Head 0 has nothing to do with it: alone its gradients are 0 and +-0.5. With weights they are NaN, for
    the gradient of the projection takes NaN times 0 from the other head. Without weights all is right."""
    module = torch.nn.MultiheadAttention(2, 2, bias=False, dtype=torch.float16)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(2).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(2))
    v = torch.tensor([[[1.0, 300.0]], [[2.0, -300.0]]], dtype=torch.float16)  # (T, B, C)
    dout = torch.tensor([[[1.0, 300.0]], [[1.0, 1.0]]], dtype=torch.float16)
    q, k = (torch.ones(2, 1, 2, dtype=torch.float16, requires_grad=True) for _ in range(2))
    module(q, k, v, need_weights=weights)[0].backward(dout)
    dq, dk = q.grad[:, 0], k.grad[:, 0]  # (T, C)
    assert dq[1].tolist() == [0.0, 0.0]
    if weights:
        assert dq[0].isnan().all()
        assert dk.isnan().all()
    else:
        assert dq[0].tolist() == [0.0, 0.0]
        assert dk[:, 0].tolist() == [-0.5, 0.5]


def test_flex_attention_has_no_backward_on_a_cpu():
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (x.requires_grad_() for x in made(*[(1, 1, 4, 8)] * 3))
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(q, k, v)
