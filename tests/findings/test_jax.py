"""What jax 0.10.2 and flax 0.12.8 do that a user may not expect. Each test fails on the day it changes."""

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import dot_product_attention

LIBRARIES = {
    "jax.nn": dot_product_attention,
    "flax.nnx": flax.nnx.dot_product_attention,
    "flax.linen": flax.linen.dot_product_attention,
}
each_library = pytest.mark.parametrize("attend", LIBRARIES.values(), ids=LIBRARIES)


def made(*shapes, dtype=jnp.float32):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.standard_normal(shape)).astype(dtype) for shape in shapes]


@each_library
def test_a_query_that_sees_nothing_gets_the_mean_of_v(attend):
    q, k, v = made(*[(1, 4, 2, 8)] * 3)  # (B, T, H, D)
    mask = jnp.ones((1, 1, 4, 4), bool).at[:, :, 0].set(False)
    out, pull = jax.vjp(lambda v: attend(q, k, v, mask=mask), v)
    np.testing.assert_allclose(out[:, 0], v.mean(1), rtol=0, atol=2e-7)
    (dv,) = pull(jnp.zeros_like(out).at[:, 0].set(1.0))
    np.testing.assert_array_equal(dv, 0.25)


@each_library
def test_a_bias_of_minus_infinity_in_a_whole_row_gives_nan(attend):
    q, k, v = made(*[(1, 4, 2, 8)] * 3)
    bias = jnp.zeros((1, 1, 4, 4)).at[:, :, 0].set(-jnp.inf).astype(q.dtype)
    out = attend(q, k, v, bias=bias)
    assert np.isnan(out[:, 0]).all()
    assert np.isfinite(out[:, 1:]).all()


@each_library
def test_nan_in_a_hidden_key_spares_the_output_and_spoils_the_gradient(attend):
    q, k, v = made(*[(1, 4, 2, 8)] * 3)
    k = k.at[:, 1].set(jnp.nan)
    mask = jnp.ones((1, 1, 4, 4), bool).at[..., 1].set(False)
    out, pull = jax.vjp(lambda q: attend(q, k, v, mask=mask), q)
    assert np.isfinite(out).all()
    assert np.isnan(pull(jnp.ones_like(out))[0]).all()


def test_float64_is_float32_inside():
    q, k, v = made(*[(1, 9, 2, 8)] * 3, dtype=jnp.float64)
    s = jnp.einsum("btnh,bsnh->bnts", q, k) * 8**-0.5
    right = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(s), v)
    with jax.numpy_dtype_promotion("standard"):  # under "strict" jax.nn refuses float64 altogether
        off = {name: float(jnp.abs(attend(q, k, v) - right).max()) for name, attend in LIBRARIES.items()}
    assert 1e-9 < off["jax.nn"] < 1e-6
    assert off["flax.nnx"] == off["jax.nn"]  # nnx hands over
    assert off["flax.linen"] < 1e-14


def test_the_gradient_of_a_float16_softmax_loses_its_sum_from_256_equal_keys_on():
    """It is made with the square of the sum of exponentials: 256**2 is infinite in float16, its inverse 0."""
    for keys, kept in ((255, True), (256, False)):
        weights, pull = jax.vjp(jax.nn.softmax, jnp.zeros(keys, jnp.float16))
        gradient = pull(jnp.ones(keys, jnp.float16))[0]  # of the sum of the weights, which is always 1
        assert bool(jnp.abs(gradient).max() < 0.01 * weights.max()) is kept


def test_a_product_of_bfloat16_in_float32_may_fail_where_its_program_transposes_it():
    x, y = made((2, 3, 8), (2, 8, 5), dtype=jnp.bfloat16)

    def product(x, y):
        return jnp.einsum("nmk,nkv->nmv", x, y, preferred_element_type=jnp.float32)

    want = 2 * product(x, y).mT
    apart = jax.jit(lambda x, y: 2 * jax.lax.optimization_barrier(product(x, y)).mT)(x, y)
    np.testing.assert_array_equal(apart, want)
    try:
        found = np.asarray(jax.jit(lambda x, y: 2 * product(x, y).mT)(x, y))
    except jax.errors.JaxRuntimeError as error:  # on an Intel Xeon with AMX; elsewhere it may be right
        found = str(error)
    failed = "Unsupported element type for DotThunk" in str(found)
    assert failed or np.array_equal(found, want)


def test_a_reduction_of_one_number_forgets_what_it_begins_with():
    lowest = np.finfo("float32").min

    def largest(x):
        return jax.lax.reduce(x, jnp.float32(lowest), jax.lax.max, (1,))

    few, one = (jnp.full((2, n), -jnp.inf, jnp.float32) for n in (3, 1))
    np.testing.assert_array_equal(jax.jit(largest)(few), lowest)
    np.testing.assert_array_equal(jax.jit(largest)(one), -np.inf)
