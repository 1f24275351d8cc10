"""The attention contract, point by point, on inputs one can follow; both packages, forward and gradient."""

import numpy as np
import pytest
from frameworks import attend, both_frameworks, gradients, package, to_native

RNG = np.random.default_rng(0)
Q, K, V = (RNG.standard_normal(shape) for shape in [(2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3)])
DOUT = RNG.standard_normal((2, 6, 5, 3))
SEGMENTS = {
    "q_segment_ids": np.array([[0, 0, 1, 1, 9], [5, 5, 5, 5, 5]]),
    "kv_segment_ids": np.array([[0, 0, 0, 1, 1, 1, 2], [5, 6, 5, 6, 5, 6, 5]]),
}


def matrix(text):
    return np.array([[int(c) for c in row] for row in text.split()], bool)


def sees(framework, n_q, n_k, **options):
    """Which keys get weight, as a 0/1 matrix (n_q, n_k)."""
    q, k, v = np.ones((n_q, 2)), np.ones((n_k, 2)), np.ones((n_k, 2))
    _, weights = attend(framework)(q, k, v, return_weights=True, **options)
    return weights > 0


@both_frameworks
@pytest.mark.parametrize(
    "options, picture",
    [
        ({}, "11111 11111 11111"),
        ({"causal": True}, "10000 11000 11100"),
        ({"causal": True, "q_offset": "bottom_right"}, "11100 11110 11111"),
        ({"causal": True, "q_offset": 1}, "11000 11100 11110"),
        ({"causal": True, "q_offset": -1}, "00000 10000 11000"),
        ({"window": (1, 0)}, "10000 11000 01100"),
        ({"window": 1}, "11000 11100 01110"),
        ({"window": (0, None)}, "11111 01111 00111"),
        ({"window": (None, 1), "q_offset": 2}, "11110 11111 11111"),
        ({"window": (2, 9), "causal": True, "q_offset": 2}, "11100 01110 00111"),
        ({"window": 0, "q_offset": 4}, "00001 00000 00000"),
        ({"kv_lengths": 2}, "11000 11000 11000"),
        ({"q_lengths": 1}, "11111 00000 00000"),
        ({"causal": True, "q_offset": "bottom_right", "kv_lengths": 4, "q_lengths": 2}, "11100 11110 00000"),
        ({"q_segment_ids": np.array([0, 1, 3]), "kv_segment_ids": np.array([0, 0, 1, 1, 2])},
         "11000 00110 00000"),
        ({"mask": matrix("10101")}, "10101 10101 10101"),
        ({"mask": matrix("1 0 1"), "causal": True}, "10000 00000 11100"),
        ({"bias": np.where(matrix("11011"), 0.0, -np.inf)}, "11011 11011 11011"),
    ],
    ids=str,
)  # fmt: skip
def test_a_query_sees_the_keys_in_the_picture(framework, options, picture):
    np.testing.assert_array_equal(sees(framework, 3, 5, **options), matrix(picture))


@both_frameworks
def test_offsets_and_lengths_are_per_row_of_the_batch(framework):
    q, k, v = np.ones((2, 1, 2, 4)), np.ones((2, 1, 4, 4)), np.ones((2, 1, 4, 4))
    _, w = attend(framework)(q, k, v, causal=True, q_offset=np.array([0, 2]), return_weights=True)
    np.testing.assert_array_equal(w[:, 0] > 0, [matrix("1000 1100"), matrix("1110 1111")])
    lengths = {"kv_lengths": np.array([2, 4]), "q_lengths": np.array([2, 1])}
    _, w = attend(framework)(q, k, v, causal=True, q_offset="bottom_right", return_weights=True, **lengths)
    np.testing.assert_array_equal(w[:, 0] > 0, [matrix("1000 1100"), matrix("1111 0000")])


@both_frameworks
def test_a_float_minus_infinity_hides_and_a_large_negative_number_does_not(framework):
    def row(bias, dout):
        return gradients(framework)(
            np.zeros((1, 4)), np.zeros((8, 4)), np.ones((8, 4)), dout, bias=np.full((1, 8), bias)
        )

    dout = np.eye(1, 4)
    np.testing.assert_array_equal(row(-1e9, dout)["dv"][:, 0], np.full(8, 1 / 8))
    np.testing.assert_array_equal(row(-np.inf, dout)["dv"], np.zeros((8, 4)))


HIDING = {
    "mask": {"mask": np.arange(5)[:, None] != 2},
    "bias": {"bias": np.where(np.arange(5)[:, None] != 2, 0.0, -np.inf)},
    "lengths": {"q_lengths": np.array([2, 5]), "kv_lengths": np.array([7, 0])},
    "window": {"window": (1, 1), "q_offset": -4},
    "segments": SEGMENTS,
}


@both_frameworks
@pytest.mark.parametrize("name", HIDING)
def test_a_query_that_sees_nothing_gives_zeros_and_its_gradients_are_zero(framework, name):
    options = HIDING[name]
    out, lse, weights = attend(framework)(Q, K, V, return_lse=True, return_weights=True, **options)
    blind = ~(weights > 0).any(-1)
    assert blind.any()
    assert not blind.all()
    np.testing.assert_array_equal(out[blind], 0)
    np.testing.assert_array_equal(lse[blind], -np.inf)
    grads = gradients(framework)(Q, K, V, np.where(blind[..., None], DOUT, 0), **options)
    for grad in grads.values():
        np.testing.assert_array_equal(grad, 0)


@both_frameworks
@pytest.mark.parametrize("name", HIDING)
def test_what_a_query_holds_that_sees_nothing_has_no_influence(framework, name):
    options = HIDING[name]
    _, weights = attend(framework)(Q, K, V, return_weights=True, **options)
    blind = ~(weights > 0).any(-1)[..., None]
    poisoned = np.where(blind, np.nan, Q), K, V
    for was, now in zip(
        attend(framework)(Q, K, V, return_lse=True, **options),
        attend(framework)(*poisoned, return_lse=True, **options),
        strict=True,
    ):
        np.testing.assert_array_equal(now, was)
    was = gradients(framework)(Q, K, V, np.where(blind, 0, DOUT), **options)
    now = gradients(framework)(*poisoned, np.where(blind, np.nan, DOUT), **options)
    for name in was:
        np.testing.assert_array_equal(now[name], was[name])


UNREAD = {
    "mask": ({"mask": np.arange(7) < 6}, [6]),
    "bias": ({"bias": np.where(np.arange(7) < 6, 0.0, -np.inf)}, [6]),
    "lengths": ({"kv_lengths": 4}, [4, 5, 6]),
    "causal": ({"causal": True}, [5, 6]),
    "window": ({"window": (1, 1), "q_offset": 2}, [0]),
    "segments": (
        {"q_segment_ids": np.zeros((2, 5), int), "kv_segment_ids": np.array([[0, 0, 1, 0, 0, 0, 7]] * 2)},
        [2, 6],
    ),
}


@both_frameworks
@pytest.mark.parametrize("name", UNREAD)
def test_a_key_hidden_from_every_query_may_hold_nan(framework, name):
    options, unread = UNREAD[name]
    k, v = K.copy(), V.copy()
    k[:, :, unread], v[:, :, unread] = np.nan, np.inf
    np.testing.assert_array_equal(
        attend(framework)(Q, k, v, **options), attend(framework)(Q, K, V, **options)
    )
    was, now = (gradients(framework)(Q, k, v, DOUT, **options) for k, v in ((K, V), (k, v)))
    for name in was:
        np.testing.assert_array_equal(now[name], was[name])
    np.testing.assert_array_equal(now["dk"][:, :, unread], 0)


@both_frameworks
def test_nan_that_is_read_is_shown(framework):
    k = K.copy()
    k[0, 0, 0] = np.nan
    out, lse = attend(framework)(Q, k, V, return_lse=True)
    assert np.isnan(out[0, :3]).all()
    assert np.isnan(lse[0, :3]).all()
    assert not np.isnan(out[0, 3:]).any()


@both_frameworks
@pytest.mark.parametrize("implementation", ["reference", "blockwise", "fused"])
def test_nan_in_a_bias_is_shown_and_does_not_hide(framework, implementation):
    bias = np.zeros((5, 7))
    bias[1, 2] = np.nan
    dtype = "float64" if implementation != "fused" else "float32"
    v = np.ones((2, 2, 7, 4))
    out = attend(framework)(Q, K, v, bias=bias, dtype=dtype, implementation=implementation)
    assert np.isnan(out[:, :, 1]).all()
    assert not np.isnan(np.delete(out, 1, -2)).any()


@both_frameworks
def test_segment_ids_of_any_size_are_compared_whole(framework):
    ids = np.array([[0, 2**32, 1, 1, 0]] * 2), np.array([[0, 2**32, 2**33, 1, 0, 5, -1]] * 2)
    _, weights = attend(framework)(Q, K, V, q_segment_ids=ids[0], kv_segment_ids=ids[1], return_weights=True)
    np.testing.assert_array_equal(weights[0, 0] > 0, ids[0][0][:, None] == ids[1][0])


@both_frameworks
def test_query_head_h_reads_kv_head_h_divided_by_the_group(framework):
    v = np.broadcast_to(np.arange(2.0)[:, None, None], V.shape)  # each kv head's values are its number
    out = attend(framework)(Q, K, v)
    np.testing.assert_array_equal(out[:, :, 0, 0].round(), [[0, 0, 0, 1, 1, 1]] * 2)
    dout = np.arange(6.0)[:, None, None] * np.ones_like(DOUT)
    dv = gradients(framework)(Q, K, v, dout)["dv"]
    np.testing.assert_array_equal(dv.sum((-2, -1)).round(), [[(0 + 1 + 2) * 15, (3 + 4 + 5) * 15]] * 2)


@both_frameworks
def test_softcap_comes_before_the_bias(framework):
    q, k, v, bias = np.array([[1.0]]), np.array([[10.0], [0.0]]), np.eye(2), np.array([[5.0, 0.0]])
    _, lse, (weights,) = attend(framework)(
        q, k, v, bias=bias, softcap=20.0, scale=1.0, return_lse=True, return_weights=True
    )
    score = np.log(weights[0]) + lse[0]
    assert round(float(score), 2) == 14.24  # 20 tanh(10 / 20) + 5; the other order gives 12.70


@both_frameworks
def test_a_sink_is_in_the_denominator_only(framework):
    sinks = np.array([0.5, 100.0])
    q, k, v = np.zeros((2, 3, 4)), np.zeros((2, 3, 4)), np.ones((2, 3, 4))
    mask = np.arange(3)[:, None] < 2
    out, lse = attend(framework)(q, k, v, sinks=sinks, mask=mask, return_lse=True)
    expected = np.log(3 + np.exp(sinks))
    np.testing.assert_array_almost_equal_nulp(lse[:, 0], expected, 4)
    np.testing.assert_array_almost_equal_nulp(out[:, 0, 0], 3 / np.exp(expected), 128)
    np.testing.assert_array_equal(lse[:, 2], sinks)  # the row that sees nothing
    np.testing.assert_array_equal(out[:, 2], 0)


@both_frameworks
def test_the_same_weights_are_dropped_in_both_frameworks(framework):
    q, k, v = np.zeros((2, 3, 4, 2)), np.zeros((2, 3, 8, 2)), np.ones((2, 3, 8, 2))
    _, weights = attend(framework)(q, k, v, dropout_p=0.25, dropout_seed=7, return_weights=True)
    kept = weights > 0
    picture = "00111111 11111101 01101111 11111111"  # batch 1, head 2
    np.testing.assert_array_equal(kept[1, 2], matrix(picture))
    np.testing.assert_array_equal(weights[kept], 1 / 8 / 0.75)
    _, again = attend(framework)(q, k, v, dropout_p=0.25, dropout_mask=kept, return_weights=True)
    np.testing.assert_array_equal(again, weights)


@both_frameworks
def test_dropout_drops_the_share_it_says_and_each_head_its_own(framework):
    q, k, v = np.zeros((2, 2, 64, 2)), np.zeros((2, 2, 64, 2)), np.ones((2, 2, 64, 2))
    _, weights = attend(framework)(
        q, k, v, dropout_p=0.3, dropout_seed=np.uint32(2**32 - 1), return_weights=True
    )
    kept = (weights > 0).reshape(4, -1)
    assert abs(kept.mean() - 0.7) < 5 * np.sqrt(0.21 / kept.size)  # five standard deviations of the share
    agreement = np.corrcoef(kept)[np.triu_indices(4, 1)]
    assert np.abs(agreement).max() < 5 / np.sqrt(64 * 64)


@both_frameworks
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_output_has_the_dtype_of_q_and_the_log_sum_exp_at_least_float32(framework, dtype):
    q, k, v = (to_native(framework, x, dtype) for x in (Q, K, V))
    out, lse, weights = package(framework).scaled_dot_product_attention(
        q, k, v, return_lse=True, return_weights=True
    )
    assert str(out.dtype).removeprefix("torch.") == dtype
    assert {str(x.dtype).removeprefix("torch.") for x in (lse, weights)} == {
        "float64" if dtype == "float64" else "float32"
    }


@both_frameworks
def test_any_leading_axes_and_none(framework):
    whole = attend(framework)(Q, K, V, causal=True)
    split = attend(framework)(*(x.reshape(2, 1, *x.shape[1:]) for x in (Q, K, V)), causal=True)
    np.testing.assert_array_equal(split[:, 0], whole)
    alone = attend(framework)(Q[0, 1], K[0, 0], V[0, 0], causal=True, return_lse=True)
    assert [x.shape for x in alone] == [(5, 3), (5,)]
    np.testing.assert_array_almost_equal_nulp(alone[0], whole[0, 1], 16)


@both_frameworks
@pytest.mark.parametrize(
    "q, kv, v_dim",
    [
        pytest.param((2, 6, 0, 4), (2, 2, 7, 4), 3, id="no query"),
        pytest.param((2, 6, 5, 4), (2, 2, 0, 4), 3, id="no key"),
        pytest.param((0, 6, 5, 4), (0, 2, 7, 4), 3, id="no batch"),
        pytest.param((2, 0, 5, 4), (2, 0, 7, 4), 3, id="no head"),
        pytest.param((2, 6, 5, 0), (2, 2, 7, 0), 3, id="no head size"),
        pytest.param((2, 6, 5, 4), (2, 2, 7, 4), 0, id="no value size"),
    ],
)
def test_an_axis_may_be_empty(framework, q, kv, v_dim):
    q, k, v = np.ones(q), np.ones(kv), np.ones((*kv[:-1], v_dim))
    out, lse = attend(framework)(q, k, v, causal=True, q_offset="bottom_right", return_lse=True)
    assert out.shape == (*q.shape[:-1], v_dim)
    if kv[-2] == 0:
        np.testing.assert_array_equal(out, 0)
        np.testing.assert_array_equal(lse, -np.inf)
    elif out.size:
        np.testing.assert_array_max_ulp(out, np.ones_like(out), 4)
    grads = gradients(framework)(q, k, v, np.ones_like(out), causal=True, q_offset="bottom_right")
    assert [grads[n].shape for n in ("dq", "dk", "dv")] == [q.shape, k.shape, v.shape]


@both_frameworks
def test_results_come_in_one_order(framework):
    def run(**wanted):
        return attend(framework)(Q, K, V, implementation="reference", **wanted)

    out, (_, lse), (_, weights) = run(), run(return_lse=True), run(return_weights=True)
    for was, now in zip((out, lse, weights), run(return_lse=True, return_weights=True), strict=True):
        np.testing.assert_array_equal(now, was)
    np.testing.assert_array_almost_equal_nulp(weights.sum(-1), np.ones((2, 6, 5)), 8)
