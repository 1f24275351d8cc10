"""Every transform of either framework goes through attention: derivatives, batching, compilation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.test_util import check_grads

import attn_jax
import attn_torch

RNG = np.random.default_rng(1)
SHAPES = {"q": (1, 2, 3, 2), "k": (1, 1, 4, 2), "v": (1, 1, 4, 3), "bias": (3, 4), "sinks": (2,)}
ARRAYS = {name: RNG.standard_normal(shape) for name, shape in SHAPES.items()}
MASK = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]], bool)  # the second query sees nothing
OPTIONS = {"causal": True, "q_offset": 1, "softcap": 3.0, "dropout_p": 0.2, "dropout_seed": 1}
IMPLEMENTATIONS = ["blockwise", "reference"]
implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def on_torch(implementation, **changes):
    """f(q, k, v, bias, sinks) -> (out, lse), and arguments for it that require a gradient."""
    arrays, mask = [torch.tensor(x, requires_grad=True) for x in ARRAYS.values()], torch.tensor(MASK)

    def attend(q, k, v, bias, sinks):
        return attn_torch.scaled_dot_product_attention(
            q, k, v, bias=bias, sinks=sinks, mask=mask, return_lse=True,
            implementation=implementation, **OPTIONS | changes,
        )  # fmt: skip

    return attend, arrays


def on_jax(implementation, **changes):
    """The same in the other framework."""
    arrays, mask = [jnp.asarray(x) for x in ARRAYS.values()], jnp.asarray(MASK)

    def attend(q, k, v, bias, sinks):
        return attn_jax.scaled_dot_product_attention(
            q, k, v, bias=bias, sinks=sinks, mask=mask, return_lse=True,
            implementation=implementation, **OPTIONS | changes,
        )  # fmt: skip

    return attend, arrays


@implementations
def test_torch_first_and_second_derivatives(implementation):
    attend, arrays = on_torch(implementation)
    assert torch.autograd.gradcheck(attend, arrays, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(attend, arrays)


@implementations
def test_torch_vmap_is_a_loop(implementation):
    attend, (q, k, v, bias, sinks) = on_torch(implementation, dropout_p=0.0)
    qs = torch.stack([q, 2 * q, -q])
    batched = torch.func.vmap(lambda q: attend(q, k, v, bias, sinks)[0])(qs)
    for one, q in zip(batched, qs, strict=True):
        torch.testing.assert_close(one, attend(q, k, v, bias, sinks)[0])


@implementations
def test_torch_vmap_over_lengths(implementation):
    q, k, v = (torch.tensor(ARRAYS[n])[0] for n in "qkv")

    def attend(q, k, v, length):
        return attn_torch.scaled_dot_product_attention(
            q, k, v, kv_lengths=length, implementation=implementation
        )

    lengths = torch.tensor([0, 2, 4])
    batched = torch.func.vmap(attend, in_dims=(None, None, None, 0))(q, k, v, lengths)
    for one, length in zip(batched, lengths, strict=True):
        torch.testing.assert_close(one, attend(q, k, v, length))


@implementations
def test_torch_grad_jvp_and_hessian(implementation):
    attend, (q, k, v, bias, sinks) = on_torch(implementation)

    def loss(q):
        return attend(q, k, v, bias, sinks)[0].square().sum()

    (grad,) = torch.autograd.grad(loss(q), q)
    torch.testing.assert_close(torch.func.grad(loss)(q), grad)
    direction = torch.ones_like(q)
    _, slope = torch.func.jvp(loss, (q,), (direction,))
    torch.testing.assert_close(slope, (grad * direction).sum())
    hessian = torch.func.hessian(loss)(q).reshape(q.numel(), q.numel())
    torch.testing.assert_close(hessian, hessian.T)
    assert hessian.abs().max() > 0


@implementations
def test_torch_compiles_whole_and_exports(implementation):
    attend, arrays = on_torch(implementation)
    expected = attend(*arrays)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arrays), expected)
    cotangent = torch.ones_like(expected[0])
    torch.testing.assert_close(
        torch.autograd.grad(compiled(*arrays)[0], arrays, cotangent),
        torch.autograd.grad(expected[0], arrays, cotangent),
    )

    class Attend(torch.nn.Module):
        def forward(self, q, k, v, bias, sinks):
            return attend(q, k, v, bias, sinks)

    exported = torch.export.export(Attend(), tuple(arrays))
    torch.testing.assert_close(exported.module()(*arrays), expected)


@pytest.mark.slow
@implementations
def test_torch_compiles_with_inductor(implementation):
    attend, arrays = on_torch(implementation)
    compiled = torch.compile(attend, fullgraph=True)
    torch.testing.assert_close(compiled(*arrays), attend(*arrays))


def test_torch_float32_stays_float32_when_the_global_switch_says_less():
    q, k, v = (torch.tensor(ARRAYS[n], dtype=torch.float32, requires_grad=True) for n in "qkv")

    def run(**options):
        out = attn_torch.scaled_dot_product_attention(q, k, v, implementation="reference", **options)
        return out, *torch.autograd.grad(out.square().sum(), (q, k, v), create_graph=True)

    full = run()
    torch.set_float32_matmul_precision("medium")
    try:
        for was, now in zip(full, run(), strict=True):
            assert torch.equal(was, now)
        assert run(precision="bfloat16")[0].shape == full[0].shape
        attend = partial(attn_torch.scaled_dot_product_attention, implementation="reference")
        given = [x.detach() for x in (q, k, v)]
        assert torch.equal(torch.compile(attend, backend="eager")(*given), full[0])
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="exception"):  # nothing silent in one graph
            torch.compile(attend, backend="eager", fullgraph=True)(*given)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
        torch._dynamo.reset()


@implementations
def test_jax_derivatives_of_both_modes_and_orders(implementation):
    attend, arrays = on_jax(implementation)
    finite = jnp.asarray(MASK.any(-1))

    def checked(*arrays):
        out, lse = attend(*arrays)
        return out, jnp.where(finite, lse, 0.0)

    check_grads(jax.jit(checked), arrays, order=2, modes=("fwd", "rev"))


@implementations
def test_jax_transforms_compose(implementation):
    attend, (q, k, v, bias, sinks) = on_jax(implementation)

    def loss(q):
        return jnp.sum(attend(q, k, v, bias, sinks)[0] ** 2)

    expected = jax.grad(loss)(q)
    for transform in (lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.checkpoint(f))):
        np.testing.assert_array_max_ulp(transform(loss)(q), expected, 2**24)
    hessian = jax.jit(jax.hessian(loss))(q).reshape(q.size, q.size)
    np.testing.assert_array_almost_equal(hessian, hessian.T, 14)
    assert jnp.abs(hessian).max() > 0
    _, scanned = jax.lax.scan(
        lambda carry, q: (carry, attend(q, k, v, bias, sinks)[0]), 0, jnp.stack([q, 2 * q])
    )
    np.testing.assert_array_almost_equal(scanned[1], attend(2 * q, k, v, bias, sinks)[0], 14)


@implementations
def test_jax_vmap_is_a_loop_also_over_lengths_and_offsets(implementation):
    q, k, v = (jnp.asarray(ARRAYS[n])[0] for n in "qkv")

    def attend(q, length, offset):
        return attn_jax.scaled_dot_product_attention(
            q, k, v, causal=True, kv_lengths=length, q_offset=offset, implementation=implementation
        )

    qs, lengths, offsets = jnp.stack([q, 2 * q, -q]), jnp.array([0, 2, 4]), jnp.array([0, 1, -1])
    batched = jax.jit(jax.vmap(attend))(qs, lengths, offsets)
    for one, *arguments in zip(batched, qs, lengths, offsets, strict=True):
        np.testing.assert_array_almost_equal(one, attend(*arguments), 14)


def test_jax_asks_for_full_precision_whatever_the_default_is():
    q, k, v = (jnp.asarray(ARRAYS[n], jnp.float32) for n in "qkv")
    with jax.default_matmul_precision("bfloat16"):
        text = str(
            jax.make_jaxpr(jax.grad(lambda q: attn_jax.scaled_dot_product_attention(q, k, v).sum()))(q)
        )
    assert text.count("dot_general") == text.count("Precision.HIGHEST, Precision.HIGHEST") > 0
