"""Blockwise attention where reading takes the time: few queries of many keys, half types, masks, biases."""

import numpy as np
import pytest
from frameworks import attend, both_frameworks, gradients, package, to_numpy

RNG = np.random.default_rng(0)
ULP = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-20}  # of one, or of float32 sums of a few hundred


def drawn(*shape, dtype="float32"):
    """Normal numbers that a dtype holds, as float32."""
    import jax.numpy as jnp

    return to_numpy(jnp.asarray(RNG.standard_normal(shape), dtype)).astype("float32")


@pytest.mark.parametrize("dtype", ULP)
@pytest.mark.parametrize("lengths", [[3, 40], [650, 700], [0, 700]], ids=["short", "long", "none"])
def test_jax_reads_no_nan_behind_the_keys_of_few_queries(dtype, lengths):
    lengths = np.array(lengths)
    q, k, v = drawn(2, 6, 2, 8, dtype=dtype), *drawn(2, 2, 2, 700, 8, dtype=dtype)
    behind = np.arange(700)[:, None] >= lengths[:, None, None, None]
    run, options = attend("jax"), {"kv_lengths": lengths, "return_lse": True}
    got, base = run(
        q,
        np.where(behind, np.nan, k),
        np.where(behind, np.inf, v),
        dtype=dtype,
        implementation="blockwise",
        **options,
    )
    want, lse = run(q, k, v, implementation="reference", **options)
    assert np.array_equal(base == -np.inf, lse == -np.inf)
    assert np.abs(base[lse > -np.inf] - lse[lse > -np.inf]).max() < 2**-19
    assert np.abs(got.astype("float32") - want).max() <= ULP[dtype] * np.abs(want).max()


@pytest.mark.parametrize("dtype", ULP)
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True, "q_offset": np.array([699, 20])}, {"mask": RNG.random((2, 1, 2, 700)) < 0.1}],
    ids=["all", "causal", "mask"],
)
def test_jax_gives_few_queries_the_same_derivatives(dtype, options):
    q, dout, (k, v) = drawn(2, 6, 2, 8), drawn(2, 6, 2, 8), drawn(2, 2, 2, 700, 8)
    q, dout, k, v = (to_numpy(x) for x in map(rounded(dtype), (q, dout, k, v)))
    found = gradients("jax")(q, k, v, dout, dtype=dtype, implementation="blockwise", **options)
    wanted = gradients("jax")(q, k, v, dout, implementation="reference", **options)
    for name, want in wanted.items():
        assert np.abs(found[name].astype("float32") - want).max() <= 2 * ULP[dtype] * np.abs(want).max()


def rounded(dtype):
    import jax.numpy as jnp

    return lambda x: jnp.asarray(x, dtype).astype("float32")


def test_jax_maps_few_queries_over_rows_of_their_own_lengths():
    import jax

    run = attend("jax")
    q, (k, v), lengths = drawn(3, 1, 2, 1, 8), drawn(2, 3, 1, 2, 600, 8), np.array([[600], [2], [0]])
    k[2], v[1, :, :, 2:] = np.nan, np.nan

    def one(q, k, v, n):
        import attn_jax

        return attn_jax.scaled_dot_product_attention(q, k, v, kv_lengths=n, implementation="blockwise")

    got = to_numpy(jax.vmap(one)(q, k, v, lengths))
    want = run(q[:, 0], k[:, 0], v[:, 0], kv_lengths=lengths[:, 0], implementation="reference")
    assert np.abs(got[:, 0] - want).max() < 2e-6


def test_jax_gives_a_query_that_sees_none_of_one_key_zeros():
    x, lengths = np.ones((2, 1, 1, 1)), np.array([0, 1])
    found = attend("jax")(x, x, x, kv_lengths=lengths, dropout_p=0.1, dropout_seed=0, return_lse=True)
    np.testing.assert_array_equal(found[0].ravel(), [0, 1 / 0.9])
    np.testing.assert_array_equal(found[1].ravel(), [-np.inf, 1])


def test_jax_splits_a_weight_into_three_bfloat16_without_a_rest():
    import jax.numpy as jnp

    from attn_jax.implementations.reads import _three

    x = np.exp2(RNG.uniform(-60, 0, (1, 1, 4096))).astype("float32")
    parts = _three(jnp.asarray(x))
    assert parts.dtype == jnp.bfloat16
    np.testing.assert_array_equal(to_numpy(parts).astype("float64").sum(1), x[0])


def test_jax_takes_bfloat16_whatever_order_of_axes_who_calls_has_it_in():
    import jax
    import jax.numpy as jnp

    from attn_jax import scaled_dot_product_attention

    x = jnp.asarray(drawn(2, 8, 2, 16), "bfloat16")  # (B, D, H, T)

    def run(x, implementation):
        q = x.transpose(0, 2, 3, 1)
        return scaled_dot_product_attention(q, q, q, implementation=implementation).transpose(2, 0, 3, 1)

    got, want = (to_numpy(jax.jit(run, static_argnums=1)(x, name)) for name in ("blockwise", "reference"))
    assert np.abs(got - want).max() <= 2**-8 * np.abs(want).max()


def test_jax_converts_no_keys_of_a_half_type_that_lie_behind_the_longest_row():
    import jax

    from attn_jax import scaled_dot_product_attention

    def run(q, k, v, lengths):
        return scaled_dot_product_attention(q, k, v, kv_lengths=lengths, implementation="blockwise")

    for dtype in ("bfloat16", "float16"):
        q, k = (jax.ShapeDtypeStruct((1, 2, n, 64), dtype) for n in (1, 2**16))
        held = jax.jit(run).lower(q, k, k, jax.ShapeDtypeStruct((1,), "int32")).compile().memory_analysis()
        assert held.temp_size_in_bytes < 2**23  # k alone has twice that


@both_frameworks
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n", [1, 80])
def test_no_finite_bias_hides_a_key_or_spoils_a_row(framework, dtype, n):
    most = 3.4028234663852886e38 if dtype == "float32" else float.fromhex("0x1.fep127")
    q, k, v, bias = drawn(1, 2, n, 4), *drawn(2, 1, 2, 80, 4), drawn(1, 1, n, 80)
    rows = [np.full(80, -most), np.full(80, -most), np.full(80, 0.9 * most), np.full(80, most), np.zeros(80)]
    rows[1][7], rows[2][[3, 9]], rows[3][:70], rows[4][4] = -0.9 * most, most, 1, -np.inf
    for at in range(5 if n > 1 else 1):
        bias[..., at, :] = rows[at]
    run, options = attend(framework), {"dtype": dtype, "bias": bias, "return_lse": True}
    got, want = (run(q, k, v, implementation=name, **options) for name in ("blockwise", "reference"))
    for x, y in zip(got, want, strict=True):
        assert np.abs(x - y).max() <= 2**-8 * np.abs(y).max()
        assert np.isfinite(x).all()


MASKS = [(1, 1, 300, 300), (2, 4, 300, 300), (2, 1, 1, 300), (1, 4, 300, 1)]


@pytest.mark.parametrize("seen", [0.02, 0.5])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_torch_takes_masks_of_every_shape_with_nan_where_nobody_reads(shape, seen):
    mask = RNG.random(shape) < seen
    q, dout, (k, v) = RNG.standard_normal((2, 2, 4, 300, 4)), 0, RNG.standard_normal((2, 2, 2, 300, 4))
    q, dout = q
    read = np.broadcast_to(mask, (2, 4, 300, 300)).reshape(2, 2, 600, 300).any(2)[..., None]
    spoilt = np.where(read, k, np.nan), np.where(read, v, np.inf)
    run = gradients("torch")
    found = run(q, *spoilt, dout, mask=mask, implementation="blockwise")
    wanted = run(q, k, v, dout, mask=mask, implementation="reference")
    for name, want in wanted.items():
        assert np.abs(found[name] - want).max() < 1e-12


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 300, 300), (2, 4, 300, 1), (1, 4, 1, 300)], ids=str)
def test_torch_takes_biases_of_every_shape_and_gives_their_derivative(shape, hides):
    q, dout = RNG.standard_normal((2, 2, 4, 300, 4))
    k, v = RNG.standard_normal((2, 2, 2, 300, 4))
    bias = RNG.standard_normal(shape)
    if hides:
        bias[..., : shape[2] // 2, : shape[3] // 2] = -np.inf
    run = gradients("torch")
    results = [
        run(q, k, v, dout, bias=bias, causal=True, implementation=name) for name in ("blockwise", "reference")
    ]
    for name, want in results[1].items():
        assert np.abs(results[0][name] - want).max() < 1e-12 * max(1, np.abs(want).max())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_torch_converts_the_keys_of_a_step_in_parts_and_keeps_them_for_derivatives(monkeypatch, dtype):
    import torch

    monkeypatch.setattr("attn_torch.implementations.steps.SOME", 2**10)
    q, dq, dout, (k, v) = drawn(2, 4, 1, 8), drawn(2, 4, 1, 8), drawn(2, 4, 1, 8), drawn(2, 2, 2, 300, 8)
    arrays = [torch.tensor(x).to(getattr(torch, dtype)) for x in (q, k, v, dq, dout)]
    results = []
    for name, x in ("blockwise", arrays), ("reference", [x.double() for x in arrays]):

        def run(q, k, v, name=name):
            lengths = torch.tensor([300, 7])
            return package("torch").scaled_dot_product_attention(
                q, k, v, kv_lengths=lengths, implementation=name
            )

        leaves = [y.clone().requires_grad_() for y in x[:3]]
        grads = torch.autograd.grad(run(*leaves), leaves, x[4])
        out, tangent = torch.func.jvp(lambda q, x=x: run(q, *x[1:3]), (x[0],), (x[3],))
        results.append([run(*x[:3]), out, tangent, *grads])
    for got, want in zip(*results, strict=True):
        assert (got - want).abs().max() <= ULP[dtype] * want.abs().max()
