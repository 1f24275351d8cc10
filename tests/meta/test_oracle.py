"""The oracle against what one can work out by hand, and its gradients against finite differences."""

import math

import numpy as np
import pytest

from parity import oracle, oracle_block
from parity.montecarlo import Rounding
from parity.oracle import attention, threefry2x32
from parity.oracle_block import evaluate

B, H, G, Tq, Tk, D, Dv = 2, 2, 3, 5, 7, 4, 6


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def call(**options):
    """q, k, v, dout of grouped heads, and options."""
    q, dout = normal(1, B, H * G, Tq, D), normal(2, B, H * G, Tq, Dv)
    return {"q": q, "k": normal(3, B, H, Tk, D), "v": normal(4, B, H, Tk, Dv), "dout": dout} | options


def some_bias(*shape):
    """Finite, but for one pair in it that is hidden."""
    bias = normal(5, *shape)
    bias[..., 1, 2] = -np.inf
    return bias


Q_IDS, KV_IDS = np.array([[0, 0, 1, 1, 2]] * B), np.array([[0, 0, 0, 1, 1, 3, 3]] * B)
LENGTHS = {"q_lengths": np.array([5, 3]), "kv_lengths": np.array([7, 4])}
OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.7},
    "softcap": {"softcap": 0.8},
    "causal": {"causal": True, "q_offset": "bottom_right"},
    "window": {"window": (2, 1), "q_offset": np.array([0, 3])},
    "lengths": {"causal": True, "q_offset": "bottom_right", **LENGTHS},
    "segments": {"q_segment_ids": Q_IDS, "kv_segment_ids": KV_IDS},
    "mask": {"mask": normal(6, B, 1, Tq, Tk) < 0.3},
    "bias": {"bias": some_bias(H * G, Tq, Tk)},
    "bias-batch": {"bias": some_bias(B, 1, Tq, Tk)},
    "sinks": {"sinks": normal(7, H * G), "bias": some_bias(Tq, Tk)},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 11},
    "dropout-mask": {"dropout_p": 0.5, "dropout_mask": normal(8, Tq, Tk) < 0.0, "sinks": normal(7, H * G)},
    "everything": {
        "causal": True, "window": (4, None), "q_offset": 2, "softcap": 1.5, "bias": some_bias(H * G, Tq, Tk),
        "sinks": normal(7, H * G), "dropout_p": 0.2, "dropout_seed": 3, "kv_lengths": np.array([7, 6]),
    },
}  # fmt: skip


def slope(f, x, direction, h=1e-3):
    """The derivative of f at x along a direction: central differences, extrapolated; off by about h^4."""

    def central(h):
        return (f(x + h * direction) - f(x - h * direction)) / (2 * h)

    return (4 * central(h / 2) - central(h)) / 3


@pytest.mark.parametrize("name", OPTIONS)
def test_every_gradient_is_the_slope(name):
    given = call(**OPTIONS[name])
    found = attention(**given)
    wanted = [n for n in ("q", "k", "v", "bias", "sinks") if n in given]
    for seed, n in enumerate(wanted):
        direction = normal(20 + seed, *given[n].shape)

        def loss(x, n=n):
            return np.sum(attention(**given | {n: x, "dout": None}).out * given["dout"])

        got = np.sum(getattr(found, f"d{n}") * direction)
        assert got == pytest.approx(slope(loss, given[n], direction), rel=1e-7)


@pytest.mark.parametrize("name", OPTIONS)
def test_weights_and_values_make_the_output_and_scores_the_lse(name):
    given = call(**OPTIONS[name])
    found = attention(**given)
    v = np.repeat(given["v"], G, 1)
    assert found.out == pytest.approx(found.weights @ v, rel=1e-12)
    mass = np.exp(found.forward.scores).sum(-1)
    if found.call.sinks is not None:
        mass = mass + np.exp(found.call.sinks[..., 0])
    with np.errstate(divide="ignore"):
        assert np.exp(found.lse) == pytest.approx(mass.reshape(found.lse.shape), rel=1e-12)


def test_the_worked_example():
    """q.k is 2 and 0, over the root of 2: e^1.414 = 4.113 against 1."""
    found = attention(np.array([[1.0, 1.0]]), np.array([[1.0, 1.0], [1.0, -1.0]]), np.eye(2))
    assert np.round(found.weights, 3).tolist() == [[0.804, 0.196]]
    assert found.out.tolist() == found.weights.tolist()
    assert found.lse[0] == pytest.approx(math.log(math.exp(math.sqrt(2)) + 1))


IDS, KEY_IDS = np.array([0, 1, 2]), np.array([0, 0, 1, 3, 1])
BOTTOM_RIGHT = {"causal": True, "q_offset": "bottom_right"}
SIGHT = {
    "causal": ({"causal": True}, "10000 11000 11100"),
    "causal, offset 2": ({"causal": True, "q_offset": 2}, "11100 11110 11111"),
    "bottom right": (BOTTOM_RIGHT, "11100 11110 11111"),
    "bottom right of lengths": (BOTTOM_RIGHT | {"q_lengths": 2, "kv_lengths": 4}, "11100 11110 00000"),
    "window 1": ({"window": 1}, "11000 11100 01110"),
    "window (1, None), offset 2": ({"window": (1, None), "q_offset": 2}, "01111 00111 00011"),
    "window (None, 0)": ({"window": (None, 0)}, "10000 11000 11100"),
    "lengths": ({"q_lengths": 2, "kv_lengths": 3}, "11100 11100 00000"),
    "segments": ({"q_segment_ids": IDS, "kv_segment_ids": KEY_IDS}, "11000 00101 00000"),
    "mask and causal": ({"mask": np.array([1, 0, 1, 1, 0], bool), "causal": True}, "10000 10000 10100"),
    "bias": ({"bias": np.array([0, -np.inf, -1e30, 5, 0])}, "10111 10111 10111"),
}


@pytest.mark.parametrize("name", SIGHT)
def test_what_a_query_sees(name):
    options, picture = SIGHT[name]
    found = attention(normal(0, 3, 2), normal(1, 5, 2), normal(2, 5, 2), **options)
    wanted = [[pixel == "1" for pixel in row] for row in picture.split()]
    assert found.call.visible[0, 0, 0].tolist() == wanted


def test_grouped_heads_read_repeated_keys():
    given = call(causal=True)
    grouped = attention(**given)
    repeated = attention(**given | {n: np.repeat(given[n], G, 1) for n in "kv"})
    np.testing.assert_array_equal(grouped.out, repeated.out)
    assert grouped.dk == pytest.approx(repeated.dk.reshape(B, H, G, Tk, D).sum(2), rel=1e-12)


def test_a_sink_is_a_column_of_value_zero():
    q, k, v = normal(0, 3, 2), normal(1, 4, 2), normal(2, 4, 2)
    bias = np.c_[normal(3, 3, 4), np.full(3, 0.7)]
    column = attention(q, np.r_[k, np.zeros((1, 2))], np.r_[v, np.zeros((1, 2))], normal(4, 3, 2), bias=bias)
    sink = attention(q, k, v, normal(4, 3, 2), bias=bias[:, :4], sinks=np.array([0.7]))
    for name in ("out", "lse", "dq"):
        assert getattr(sink, name) == pytest.approx(getattr(column, name), rel=1e-12)
    assert sink.dsinks[0] == pytest.approx(column.dbias[:, 4].sum(), rel=1e-12)


def test_nothing_seen_is_exactly_nothing():
    mask = np.ones((B, 1, Tq, Tk), bool)
    mask[0, 0, 1] = mask[1, 0, :, 3] = False
    given = call(mask=mask)
    poisoned = {n: given[n].copy() for n in ("q", "k", "v", "dout")}
    poisoned["q"][0, :, 1] = poisoned["dout"][0, :, 1] = np.nan
    poisoned["k"][1, :, 3], poisoned["v"][1, :, 3] = np.nan, np.inf
    clean, found = attention(**given), attention(**given | poisoned)
    for name in ("out", "lse", "weights", "dq", "dk", "dv"):
        np.testing.assert_array_equal(getattr(found, name), getattr(clean, name))
    assert not found.out[0, :, 1].any()
    assert not found.dq[0, :, 1].any()
    assert not found.dk[1, :, 3].any()
    assert (found.lse[0, :, 1] == -np.inf).all()
    assert (attention(**given, sinks=np.arange(6.0)).lse[0, :, 1] == np.arange(6.0)).all()


EMPTY = {
    "batch and queries": ((0, 3, 0, 4), (0, 3, 5, 4), (0, 3, 5, 2)),
    "heads": ((2, 0, 3, 4), (2, 0, 5, 4), (2, 0, 5, 2)),
    "keys": ((3, 4), (0, 4), (0, 2)),
    "head size": ((3, 0), (5, 0), (5, 2)),
    "value size": ((3, 4), (5, 4), (5, 0)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_axes_of_size_zero(name):
    q, k, v = EMPTY[name]
    found = attention(
        np.ones(q), np.ones(k), np.ones(v), np.ones((*q[:-1], v[-1])), sinks=np.zeros(q[-3:-2] or 1)
    )
    shapes = [x.shape for x in (found.out, found.dq, found.dk, found.dv)]
    assert shapes == [(*q[:-1], v[-1]), q, k, v]
    assert np.isfinite(found.out).all()


def test_threefry_gives_the_published_words():
    """Known answers of Random123 for threefry2x32, 20 rounds."""
    words = np.array(
        [
            [0, 0, 0, 0, 0x6B200159, 0x99BA4EFE],
            [0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0x1CB996FC, 0xBB002BE7],
            [0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3, 0xC4923A9C, 0x483DF7A0],
        ],
        np.uint32,
    )
    first, second = threefry2x32((words[:, 0], words[:, 1]), (words[:, 2], words[:, 3]))
    assert (first == words[:, 4]).all()
    assert (second == words[:, 5]).all()


def test_dropout_is_a_function_of_seed_batch_head_and_position():
    given = call(dropout_p=0.3, dropout_seed=11)
    keep = attention(**given).call.keep.reshape(B, H * G, Tq, Tk)
    for b, h, i, j in np.ndindex(keep.shape):
        word, _ = threefry2x32(
            (np.uint32([11]), np.uint32([b * H * G + h])), (np.uint32([i]), np.uint32([j]))
        )
        assert keep[b, h, i, j] == (1 / 0.7 if word[0] >= int(0.3 * 2**32) else 0.0)
    long = attention(np.ones((200, 1)), np.ones((300, 1)), np.ones((300, 1)), dropout_p=0.3, dropout_seed=5)
    assert np.mean(long.call.keep > 0) == pytest.approx(0.7, abs=0.01)  # four standard deviations: 0.0075


def test_erf_is_that_of_the_tables():
    """Abramowitz & Stegun, table 7.1."""
    assert oracle_block.erf(np.array([0.5, 1.0, -2.0])).tolist() == [
        0.5204998778130465,
        0.8427007929497149,
        -0.9953222650189527,
    ]


def parameters(n_embd):
    C = n_embd
    shapes = {"w_fc": (C, 4 * C), "b_fc": (4 * C,), "w_proj": (4 * C, C), "b_proj": (C,)}
    attn = {"w_qkv": (C, 3 * C), "b_qkv": (3 * C,), "w_out": (C, C), "b_out": (C,)}
    return {
        "attn": {name: 0.4 * normal(n, *shape) for n, (name, shape) in enumerate(attn.items())},
        "ln1": (1.0 + 0.2 * normal(10, C), normal(11, C)),
        "ln2": (1.0 + 0.2 * normal(12, C), normal(13, C)),
        **{name: 0.4 * normal(20 + n, *shape) for n, (name, shape) in enumerate(shapes.items())},
    }


x = 3.0 * normal(0, 2, 3, 8)
OPERATIONS = {
    "layer_norm": ({"x": x, "gain": normal(1, 8), "bias": normal(2, 8)}, {"eps": 0.1}),
    "rms_norm": ({"x": x, "gain": normal(1, 8)}, {"eps": 0.1, "offset": 1.0}),
    "gelu": ({"x": x}, {}),
    "gelu_tanh": ({"x": x}, {}),
    "silu": ({"x": x}, {}),
    "relu": ({"x": x}, {}),
    "rotary": ({"x": x}, {"positions": np.arange(3.0), "rotary_dim": 6}),
    "linear": ({"x": x, "w": normal(1, 8, 5), "b": normal(2, 5)}, {}),
    "mlp": ({"params": parameters(8), "x": x}, {}),
    "causal_self_attention": ({"params": parameters(8)["attn"], "x": x}, {"n_head": 2}),
    "block": ({"params": parameters(8), "x": x}, {"n_head": 2}),
}


def moved(tree, name, path, step):
    """The tree called name with a step added to the leaf called path."""
    if name == path:
        return tree + step
    if not isinstance(tree, (dict, tuple)):
        return tree
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    branches = {key: moved(branch, f"{name}.{key}", path, step) for key, branch in items}
    return branches if isinstance(tree, dict) else tuple(branches.values())


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_gradient_of_an_operation_is_the_slope(name):
    inputs, options = OPERATIONS[name]
    op = getattr(oracle_block, name)
    dout = normal(30, *evaluate(op, inputs, **options)["out"].shape)
    found = evaluate(op, inputs, dout, **options)
    for path, gradient in found.items():
        if path == "out":
            continue
        direction = normal(31, *gradient.shape)

        def loss(step, path=path):
            there = {
                n: moved(t, f"d{n}", path, step) if path.startswith(f"d{n}") else t for n, t in inputs.items()
            }
            return np.sum(evaluate(op, there, **options)["out"] * dout)

        got = np.sum(gradient * direction)
        assert got == pytest.approx(slope(loss, np.zeros(gradient.shape), direction), rel=1e-7), path


def test_rotary_turns_pairs():
    """At position pi/2 (theta 1: all channels turn alike) a pair (x, y) becomes (-y, x)."""
    x = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    options = {"positions": np.array([math.pi / 2]), "theta": 1.0, "rotary_dim": 4}
    half = evaluate(oracle_block.rotary, {"x": x}, **options)["out"]
    interleaved = evaluate(oracle_block.rotary, {"x": x}, interleaved=True, **options)["out"]
    assert half[0] == pytest.approx([-3.0, -4.0, 1.0, 2.0, 5.0])
    assert interleaved[0] == pytest.approx([-2.0, 1.0, -4.0, 3.0, 5.0])


def test_zero_projections_leave_the_residual_stream_alone():
    params = parameters(8)
    params["attn"]["w_out"], params["attn"]["b_out"] = np.zeros((8, 8)), np.zeros(8)
    params["w_proj"], params["b_proj"] = np.zeros((32, 8)), np.zeros(8)
    assert evaluate(oracle_block.block, {"params": params, "x": x}, n_head=2)["out"].tolist() == x.tolist()


def test_a_rounding_arithmetic_has_every_hook_of_the_exact_one():
    hooks = {name for name in vars(oracle.Exact) if not name.startswith("_")}
    assert hooks <= set(vars(Rounding))
