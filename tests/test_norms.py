"""Norms and activations: the formula, its derivatives, float32 inside for half types, wrong calls."""

import math
import re

import numpy as np
import pytest
from bad_calls import Raw
from blocks import drawn, jitted, part, part_by
from frameworks import both_frameworks, to_native, to_numpy

HALVES = ("float16", "bfloat16")
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}  # half the spacing of the numbers at one


def function(framework, name, dtype, **options):
    """f(*NumPy arrays) -> NumPy array, each argument in dtype."""
    f = getattr(part(framework, "norms" if "norm" in name else "mlp"), name)
    f = jitted(framework, lambda *xs, f=f: f(*xs, **options))
    return lambda *xs: to_numpy(f(*(to_native(framework, x, dtype) for x in xs)))


def derivatives(framework, name, dout, *xs, **options):
    """d sum(f(*xs) * dout) by every one of xs, float64."""
    f = getattr(part(framework, "norms" if "norm" in name else "mlp"), name)
    xs, dout = [to_native(framework, x) for x in xs], to_native(framework, dout)
    if framework == "torch":
        xs = [x.requires_grad_() for x in xs]
        f(*xs, **options).backward(dout)
        return [to_numpy(x.grad) for x in xs]
    import jax

    return to_numpy(jax.jit(lambda xs, dout: jax.vjp(lambda *xs: f(*xs, **options), *xs)[1](dout))(xs, dout))


X, GAIN, BIAS, DOUT = drawn(2, 3, 7), drawn(7, seed=2), drawn(7, seed=3), drawn(2, 3, 7, seed=4)


def librarys(name, dout, x, *vectors, eps):
    """Value and derivatives of torch's own norm."""
    import torch

    norm = {"layer_norm": torch.nn.functional.layer_norm, "rms_norm": torch.nn.functional.rms_norm}[name]
    x, *vectors = (torch.from_numpy(t).requires_grad_() for t in (x, *vectors))
    y = norm(x, (x.shape[-1],), *vectors, eps=eps)
    y.backward(torch.from_numpy(dout))
    return to_numpy(y), [to_numpy(t.grad) for t in (x, *vectors)]


@both_frameworks
@pytest.mark.parametrize("name, eps", [("layer_norm", 1e-5), ("layer_norm", 0.3), ("rms_norm", 1e-6)])
def test_norms_and_their_derivatives_are_torchs(framework, name, eps):
    given = (X, GAIN, BIAS)[: 3 if name == "layer_norm" else 2]
    want, want_derivatives = librarys(name, DOUT, *given, eps=eps)
    assert part_by(function(framework, name, "float64", eps=eps)(*given), want) < 1e-13
    for got, want in zip(derivatives(framework, name, DOUT, *given, eps=eps), want_derivatives, strict=True):
        assert part_by(got, want) < 1e-13


@both_frameworks
def test_default_eps(framework):
    x = np.array([[1e-3, -1e-3]])
    one, nil = np.ones(2), np.zeros(2)
    want = x / np.sqrt(1e-6 + 1e-5)
    assert part_by(function(framework, "layer_norm", "float64")(x, one, nil), want) < 1e-13
    want = x / np.sqrt(1e-6 + 1e-6)
    assert part_by(function(framework, "rms_norm", "float64")(x, one), want) < 1e-13


@both_frameworks
@pytest.mark.parametrize("eps", [1e-6, 1e-5, 2.0**-23])
def test_eps_decides_where_the_input_is_small(framework, eps):
    """At x = 1e-4 the result is 0.0995, 0.0316 or 0.278."""
    got = function(framework, "rms_norm", "float64", eps=eps)(np.full((1, 4), 1e-4), np.ones(4))
    assert part_by(got, np.full((1, 4), 1e-4 / math.sqrt(1e-8 + eps))) < 1e-13


@both_frameworks
@pytest.mark.parametrize(
    "x",
    [1e4 + 0.01 * np.arange(8), 1000 + drawn(768), -1e6 + drawn(64)],
    ids=["ramp", "wide", "far"],
)
def test_a_large_mean_costs_only_its_own_rounding(framework, x):
    """The error stays below what rounding C additions of x can do; E[x^2] - E[x]^2 would lose every digit."""
    x = np.float32(x)
    one, nil = np.ones_like(x), np.zeros_like(x)
    exact = np.float64(x) - np.float64(x).mean()
    spread = np.sqrt((exact**2).mean() + 1e-5)
    rounding = 2 * (x.size + 2) * UNIT["float32"] * np.abs(x).max() / spread
    got = function(framework, "layer_norm", "float32")(x, one, nil)
    assert (np.abs(got - exact / spread) <= rounding * (1 + np.abs(exact / spread))).all()


@both_frameworks
def test_a_constant_row_gives_the_bias_and_finite_derivatives(framework):
    x = np.full((2, 7), 3.0)
    np.testing.assert_array_equal(function(framework, "layer_norm", "float64")(x, GAIN, BIAS), [BIAS, BIAS])
    assert all(np.isfinite(g).all() for g in derivatives(framework, "layer_norm", DOUT[0, :2], x, GAIN, BIAS))
    x = np.zeros((2, 7))
    assert (function(framework, "rms_norm", "float64")(x, GAIN) == 0).all()
    assert all(np.isfinite(g).all() for g in derivatives(framework, "rms_norm", DOUT[0, :2], x, GAIN))


@both_frameworks
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "gelu", "gelu_tanh", "gelu_sigmoid", "silu"])
def test_half_types_are_computed_in_float32_and_rounded_once(framework, name, dtype):
    given = {"layer_norm": (100 + X, GAIN, BIAS), "rms_norm": (X, GAIN)}.get(name, (3 * X,))
    given = [to_numpy(to_native(framework, t, dtype)) for t in given]
    wide = function(framework, name, "float32")(*given)
    once_rounded = to_numpy(to_native(framework, wide, dtype))
    np.testing.assert_array_equal(function(framework, name, dtype)(*given), once_rounded)


@both_frameworks
def test_the_offset_is_added_in_float32(framework):
    """15.8125 is a bfloat16, 16.8125 is not."""
    norm = part(framework, "norms").rms_norm
    x, gain = to_native(framework, np.ones((1, 2)), "float32"), np.full(2, 15.8125)
    gain = to_native(framework, gain, "bfloat16")
    assert (to_numpy(norm(x, gain, eps=0.0, offset=1.0)) == 16.8125).all()
    assert (to_numpy(norm(x, gain, eps=0.0)) == 15.8125).all()


LAST = "wanted (7,), the last axis of x"
OURS = "wanted an array of this framework"
BAD_CALLS = [
    ("layer_norm", (X, GAIN[:3], BIAS), ValueError, f"gain: got shape (3,), {LAST}"),
    ("layer_norm", (X, GAIN, BIAS[None]), ValueError, f"bias: got shape (1, 7), {LAST}"),
    ("layer_norm", (X, GAIN, BIAS[:1]), ValueError, f"bias: got shape (1,), {LAST}"),
    ("rms_norm", (X, GAIN[:1]), ValueError, f"gain: got shape (1,), {LAST}"),
    (
        "layer_norm",
        (np.float32(X), np.float32(GAIN), BIAS),
        TypeError,
        "bias: got dtype float64, wanted float32, the dtype of x",
    ),
    (
        "rms_norm",
        (X, np.ones(7, "int32")),
        TypeError,
        "gain: got dtype int32, wanted float64, the dtype of x",
    ),
    ("layer_norm", (Raw(X), GAIN, BIAS), TypeError, f"x: got numpy.ndarray, {OURS}"),
    ("layer_norm", (X, GAIN, Raw(BIAS)), TypeError, f"bias: got numpy.ndarray, {OURS}"),
    ("rms_norm", (X, Raw([1.0])), TypeError, f"gain: got list, {OURS}"),
    (
        "rms_norm",
        (np.ones((2, 7), "int32"), GAIN),
        TypeError,
        "x: got dtype int32, wanted float16, bfloat16, float32 or float64",
    ),
]


@both_frameworks
@pytest.mark.parametrize("name, given, error, text", BAD_CALLS)
def test_a_wrong_call_is_refused_in_the_same_words(framework, name, given, error, text):
    given = [x.x if isinstance(x, Raw) else to_native(framework, x) for x in given]
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        getattr(part(framework, "norms"), name)(*given)


def test_torch_differentiates_norms_twice():
    import torch

    from attn_torch.norms import layer_norm, rms_norm

    x, gain, bias = (torch.from_numpy(t[..., :3].copy()).requires_grad_() for t in (X[:1, :2], GAIN, BIAS))
    assert torch.autograd.gradgradcheck(layer_norm, (x, gain, bias))
    assert torch.autograd.gradgradcheck(rms_norm, (x, gain))


# Activations.

LINE = np.linspace(-9, 9, 145)  # zero is one of them
ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / (1 + math.exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_sigmoid": lambda x: x / (1 + math.exp(-1.702 * x)),
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x / (1 + math.exp(-x)),
}
SLOPES = {
    "gelu": lambda x: 0.5 * math.erfc(-x / math.sqrt(2)) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_sigmoid": lambda x: (1 + 1.702 * x / (1 + math.exp(1.702 * x))) / (1 + math.exp(-1.702 * x)),
    "relu": lambda x: float(x > 0),
    "silu": lambda x: (1 + x / (1 + math.exp(x))) / (1 + math.exp(-x)),
}


@both_frameworks
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_accurate_where_they_are_small_too(framework, name, dtype):
    """Relative to the value itself, down to 1e-18: the tail is exp(-e), and a rounded e costs e roundings."""
    want, size = np.array([ACTIVATIONS[name](x) for x in LINE]), np.abs(LINE)
    e = {"gelu": size**2 / 2, "gelu_tanh": 1.6 * size + 0.0714 * size**3}.get(name, 1.702 * size)
    got = function(framework, name, dtype)(LINE)
    assert (np.abs(got - want) <= (8 + 6 * e) * UNIT[dtype] * np.abs(want)).all()


@both_frameworks
@pytest.mark.parametrize("name", SLOPES)
def test_slopes(framework, name):
    (got,) = derivatives(framework, name, np.ones_like(LINE), LINE)
    assert part_by(got, np.array([SLOPES[name](x) for x in LINE])) < 1e-13


@both_frameworks
def test_gelu_is_the_exact_one_and_gelu_tanh_is_another(framework):
    x = np.linspace(-4, 4, 801)
    exact, tanh = (function(framework, name, "float64")(x) for name in ("gelu", "gelu_tanh"))
    by_tanh = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    assert part_by(tanh, by_tanh) < 1e-13
    assert f"{np.abs(exact - tanh).max():.2e}" == "4.73e-04"
