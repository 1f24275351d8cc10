"""Rotary turns far out, in both pairings and every scaling; ALiBi, the table of sines, T5's buckets."""

import math

import numpy as np
import pytest
from blocks import drawn, native_tree, part, part_by
from families import HEADS, C, random_tree
from frameworks import both_frameworks, to_native, to_numpy

from parity import bounds_block, oracle_block
from parity.claims import CLAIMS
from parity.verdict import judge_all

D = 8
FAR = np.array([0, 1, 6, 4095, 4096, 100_003])
X, DOUT = drawn(2, 3, 6, D), drawn(2, 3, 6, D, seed=2)


def turned(framework, x, positions, dtype=None, **options):
    rotary = part(framework, "positions").rotary
    return to_numpy(rotary(to_native(framework, x, dtype), to_native(framework, positions), **options))


@both_frameworks
@pytest.mark.parametrize("options", [{}, {"interleaved": True}, {"rotary_dim": 6, "theta": 500.0}])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_rotary_is_the_oracles_far_out(framework, options, dtype):
    x = to_numpy(to_native("torch", X, dtype)).astype(np.float64)
    exact = oracle_block.evaluate(oracle_block.rotary, {"x": x}, DOUT, positions=FAR, **options)
    allowed = bounds_block.rotary(x, FAR, DOUT, CLAIMS[dtype], **options)
    got = {"out": turned(framework, x, FAR, dtype, **options)}
    assert judge_all(got, {"out": exact["out"]}, {"out": allowed["out"]}).status == "passed"


@both_frameworks
def test_the_pairings_differ_and_positions_may_differ_by_row(framework):
    """Near position 0 every rotation is nearly the identity: what tells them apart is far out."""
    half, interleaved = (turned(framework, X, FAR, interleaved=x) for x in (False, True))
    assert part_by(half, interleaved) > 0.1
    np.testing.assert_array_equal(half[:, :, 0], X[:, :, 0])
    rows = np.stack([FAR, FAR + 7])[:, None]  # (B, 1, T)
    by_row = turned(framework, X, rows)
    np.testing.assert_array_equal(by_row[0], half[0])
    np.testing.assert_array_equal(by_row[1], turned(framework, X[1], FAR + 7))


@both_frameworks
def test_scores_depend_on_the_distance_alone(framework):
    q, k = drawn(1, D), drawn(1, D, seed=2)
    scores = [
        (turned(framework, q, np.array([i + 5])) * turned(framework, k, np.array([i]))).sum()
        for i in (0, 9, 4096, 60_000)
    ]
    assert np.ptp(scores) < 1e-10
    further = (turned(framework, q, np.array([6])) * turned(framework, k, np.array([0]))).sum()
    assert abs(further - scores[0]) > 1e-3


@both_frameworks
@pytest.mark.parametrize("rotary_dim", [4, 2])
def test_weights_of_one_pairing_serve_the_other_once_they_are_permuted(framework, rotary_dim):
    """Only q and k, within each head: attention's output is then the same, and without it is another."""
    params, x = random_tree("gpt2")["attn"], drawn(2, 6, C)
    head = C // HEADS
    order = np.arange(head)
    order[:rotary_dim] = np.arange(rotary_dim).reshape(2, -1).T.ravel()  # 0, d/2, 1, d/2 + 1, ...
    columns = (np.arange(2 * HEADS)[:, None] * head + order).ravel()  # of q and of k
    columns = np.concatenate([columns, np.arange(2 * C, 3 * C)])
    moved = params | {"w_qkv": params["w_qkv"][:, columns], "b_qkv": params["b_qkv"][columns]}

    def attend(params, interleaved):
        options = {"positions": "rotary", "rotary_dim": rotary_dim, "rotary_interleaved": interleaved}
        options["position_ids"] = to_native(framework, FAR)
        run = part(framework, "multihead").causal_self_attention
        return to_numpy(run(native_tree(framework, params), to_native(framework, x), HEADS, **options))

    half = attend(params, False)
    assert part_by(attend(moved, True), half) < 1e-13
    if rotary_dim > 2:  # a pair alone is the same in both
        assert part_by(attend(params, True), half) > 1e-3


@both_frameworks
def test_scaled_frequencies(framework):
    """Of 8 channels, by hand: linear by 4; Llama 3.1 by 8, of 200 positions; YaRN by 4, of 32."""
    frequencies = part(framework, "positions").frequencies

    def off(scaling, want, want_factor=1.0):
        got, factor = frequencies(8, 10000.0, scaling)
        return max(part_by(np.array(got), np.array(want)), abs(factor - want_factor))

    plain = [1.0, 0.1, 0.01, 0.001]
    assert off(None, plain) < 1e-15
    assert off({"rope_type": "linear", "factor": 4.0}, np.divide(plain, 4)) < 1e-15
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    kept = (200 / (2 * math.pi / 0.1) - 1.0) / 3.0  # of the wave 20 pi long, which is between 50 and 200
    want = [1.0, 0.1 * kept + 0.1 / 8 * (1 - kept), 0.01 / 8, 0.001 / 8]
    assert off(llama3 | {"original_max_position_embeddings": 200}, want) < 1e-15
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    slow = 8 * math.log(32 / (2 * math.pi)) / (2 * math.log(10000))  # the pair of one turn in 32: 0.7
    want, grown = [1.0, 0.1 / 4, 0.01 / 4, 0.001 / 4], 0.1 * math.log(4) + 1
    assert off(yarn, want, grown) < 1e-15
    exact = yarn | {"truncate": False, "beta_slow": 0.1}  # 32 turns are before pair 0, a tenth at slow + 1
    kept = 1 - 1 / (slow + 1)
    want[1] = 0.1 * kept + 0.1 / 4 * (1 - kept)
    assert off(exact, want, grown) < 1e-15
    assert off(yarn | {"attention_factor": 1.5}, [1.0, 0.1 / 4, 0.01 / 4, 0.001 / 4], 1.5) < 1e-15
    both = yarn | {"mscale": 2.0, "mscale_all_dim": 1.0}
    assert abs(frequencies(8, 10000.0, both)[1] - (0.2 * math.log(4) + 1) / grown) < 1e-15


@both_frameworks
def test_alibi(framework):
    positions = part(framework, "positions")
    assert positions.alibi_slopes(8) == [2.0**-h for h in range(1, 9)]
    assert positions.alibi_slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2]
    at = to_native(framework, np.array([0, 1, 5]))
    want = -np.array([[0, 1, 5], [1, 0, 4], [5, 4, 0]])
    bias = to_numpy(positions.alibi(2, at, at))
    np.testing.assert_array_equal(bias, np.stack([want / 16, want / 256]))
    rows = to_numpy(positions.alibi(2, *[to_native(framework, np.array([[0, 1, 5], [3, 4, 8]]))] * 2))
    np.testing.assert_array_equal(rows, np.stack([bias, bias]))


@both_frameworks
def test_sinusoidal(framework):
    table = part(framework, "positions").sinusoidal
    at = to_native(framework, np.array([0, 3, 4096]))
    angle = np.array([[0.0], [3.0], [4096.0]]) * np.array([1.0, 0.01])
    want = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(3, 4)
    double = to_native(framework, np.zeros(1), "float64").dtype
    assert np.abs(to_numpy(table(at, 4, dtype=double)) - want).max() < 1e-12
    halves = to_numpy(table(at, 4, interleaved=False, dtype=double))
    np.testing.assert_array_equal(halves, to_numpy(table(at, 4, dtype=double))[:, [0, 2, 1, 3]])
    assert to_numpy(table(at, 4)).dtype == np.float32


@both_frameworks
def test_t5s_buckets(framework):
    """32 buckets up to 128: each distance below 8 its own, then steps of a factor 16^(1/8), either side."""
    bucket = part(framework, "positions").relative_bucket
    zero, far = (
        to_native(framework, np.array(x)) for x in ([0], [-200, -128, -91, -90, -16, -8, -3, 0, 1, 8, 16])
    )
    got = to_numpy(bucket(zero, far))[0]
    np.testing.assert_array_equal(got, [15, 15, 15, 14, 10, 8, 3, 0, 17, 24, 26])
    one_way = to_numpy(bucket(zero, far, bidirectional=False))[0]
    np.testing.assert_array_equal(one_way, [31, 31, 29, 29, 16, 8, 3, 0, 0, 0, 0])


@both_frameworks
def test_relative_bias_is_the_tables_entry_by_bucket_and_head(framework):
    positions, table = part(framework, "positions"), drawn(32, 3)
    at = to_native(framework, np.arange(20))
    bias = to_numpy(positions.relative_bias(to_native(framework, table), at, at))
    bucket = to_numpy(positions.relative_bucket(at, at))
    np.testing.assert_array_equal(bias, np.moveaxis(table[bucket], -1, 0))


def test_positions_may_be_closed_over_or_traced():
    """In a jitted function a constant's values can be read, a traced array's cannot."""
    import jax

    from attn_jax.multihead import causal_self_attention

    params, x = native_tree("jax", random_tree("gpt2")["attn"]), to_native("jax", drawn(2, 6, C))
    at = to_native("jax", FAR)

    def run(at):
        return causal_self_attention(params, x, HEADS, positions="rotary", position_ids=at)

    np.testing.assert_array_equal(jax.jit(lambda: run(at))(), jax.jit(run)(at))


def test_positions_are_integers():
    with pytest.raises(TypeError, match=r"^position_ids: got float64, wanted an array of integers$"):
        part("torch", "multihead").causal_self_attention(
            native_tree("torch", random_tree("gpt2")["attn"]),
            to_native("torch", drawn(2, 6, C)),
            HEADS,
            positions="rotary",
            position_ids=to_native("torch", np.arange(6.0)),
        )
