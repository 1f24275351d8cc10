"""The bounds: never exceeded by arithmetic that keeps to its claim, exceeded by what is wrong, never
constant."""

from dataclasses import replace

import numpy as np
import pytest

from parity import bounds, bounds_block, montecarlo, oracle_block, verdict
from parity.cases import CATALOGUE
from parity.claims import CLAIMS, Claim
from parity.inputs import make, round_to
from parity.oracle import attention, gradients
from parity.oracle_block import evaluate

NAMES = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")


def nearest(x, dtype: str):
    """round_to, and to tensorfloat32: 11 significant bits of float32."""
    if dtype != "tensorfloat32":
        return round_to(x, dtype)
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.rint(fraction * 2.0**11) / 2.0**11, exponent)


class Nearest:
    """The hooks of an arithmetic that rounds to nearest wherever its claim rounds."""

    def __init__(self, claim: Claim):
        self.claim = claim

    def matmul(self, x, y):
        if self.claim.u_input:
            x, y = self.operand(x), self.operand(y)
        return (x.astype(self.claim.accumulate) @ y.astype(self.claim.accumulate)).astype(np.float64)

    def total(self, x, axis):
        return x.astype(self.claim.accumulate).sum(axis, keepdims=True).astype(np.float64)

    def weight_gradient(self, x, dy):
        return self.output(self.matmul(x.T, dy))

    def computed(self, x, roundings=1.0):
        return round_to(x, self.claim.accumulate)

    def stored(self, x):
        return round_to(x, self.claim.store)

    def operand(self, x):
        return nearest(x, self.claim.operand)

    def output(self, x):
        return round_to(x, self.claim.io)

    reduced, function = total, computed


def results(found) -> dict:
    return {name: getattr(found, name) for name in NAMES if getattr(found, name) is not None}


def online(truth, claim: Claim, tile=4) -> dict:
    """A kernel that never holds a row of weights and makes them again from the log-sum-exp, all in one dtype.

    Weights and score gradients are rounded for their products. For calls without softcap.
    """
    call, axes, number = truth.call, truth.call.axes, np.dtype(claim.accumulate).type
    q, k, v, dout = (x.astype(number) for x in (call.q, call.k, call.v, truth.backward.dout))
    scores = q @ k.mT * number(call.scale)
    if call.bias is not None:
        scores = scores + np.where(call.visible, axes.group_pairs(call.bias), 0.0).astype(number)
    scores, keep = np.where(call.visible, scores, number(-np.inf)), call.keep.astype(number)
    peak = (
        np.full((*scores.shape[:-1], 1), -np.inf, number) if call.sinks is None else call.sinks.astype(number)
    )
    peak = np.broadcast_to(peak, (*scores.shape[:-1], 1))
    mass, out = (peak > -np.inf).astype(number), np.zeros(truth.forward.out.shape, number)

    def rounded(x):
        return round_to(x, claim.operand).astype(number)

    for tile_keys in np.split(np.arange(scores.shape[-1]), range(tile, scores.shape[-1], tile)):
        s, kept = scores[..., tile_keys], keep if keep.ndim == 1 else keep[..., tile_keys]
        highest = np.maximum(peak, s.max(-1, keepdims=True))
        shift = np.where(highest > -np.inf, highest, number(0))
        e, shrink = np.exp(s - shift), np.exp(peak - shift)
        mass, peak = mass * shrink + e.sum(-1, keepdims=True), highest
        out = out * shrink + rounded(e * kept) @ v[..., tile_keys, :]
    seen = mass > 0
    mass = np.where(seen, mass, number(1))
    out = round_to(out / mass, claim.io).astype(number)
    lse = np.where(seen, peak, number(0)) + np.log(mass)
    w = np.exp(scores - lse)
    delta = (dout * out).sum(-1, keepdims=True)
    ds = w * (dout @ v.mT * keep - delta)
    c = number(call.scale)
    bwd = replace(
        truth.backward, ds=ds, dq=rounded(ds) @ k * c, dk_heads=rounded(ds).mT @ q * c,
        dv_heads=rounded(w * keep).mT @ dout,
        ds_sink=0.0 if call.sinks is None else -np.exp(call.sinks.astype(number) - lse) * delta,
    )  # fmt: skip
    lse = np.where(seen, lse, number(-np.inf))
    return {"out": axes.rows(out), "lse": axes.rows(lse)[..., 0], **gradients(call, bwd, Nearest(claim))}


def truth_of(case: str, dtype: str, seed=0):
    given = make(CATALOGUE[case], dtype, seed)
    return given, attention(given.q, given.k, given.v, given.dout, **given.options)


def failed(found: verdict.Verdict) -> set[str]:
    return {tensor.name for tensor in found.tensors if tensor.status == verdict.FAILED}


def judged(got: dict, truth, claim: str) -> verdict.Verdict:
    return verdict.judge_all(got, truth, bounds.attention(truth, CLAIMS[claim]), bounds.sizes(truth))


KINDS = (
    *("normal", "big", "huge", "one-hot", "flat", "equal", "uniform", "cancelling", "ascending", "clusters"),
    *("alternating", "low-rank", "mixed-scales", "tiny-v", "offset-keys", "causal-bottom-right-tall"),
    *("window-left", "mask-dead-rows", "bias-alibi", "bias-key-axis", "bias-minus-1e4", "softcap-2-mask"),
    *("sinks-empty-rows", "dropout-grouped", "grouped-causal", "decode-tiny", "everything"),
)
DIRECT = ("float32-direct", "bfloat16-direct", "bfloat16-naive", "float16-direct", "float16-naive", "tf32")


@pytest.mark.parametrize("claim", DIRECT)
def test_the_formula_in_the_claimed_arithmetic_stays_inside(claim):
    used = []
    for case in KINDS:
        given, truth = truth_of(case, CLAIMS[claim].io)
        got = attention(
            given.q, given.k, given.v, given.dout, **given.options, arithmetic=Nearest(CLAIMS[claim])
        )
        found = judged(results(got), truth, claim)
        assert found.status != verdict.FAILED, (case, found.worst)
        used.append(found.worst.max_share)
    assert max(used) > 0.02, "a bound that nothing comes near"


@pytest.mark.parametrize("claim", ["float64", "float32", "bfloat16", "float16"])
def test_an_online_kernel_stays_inside(claim):
    for case in KINDS:
        if "softcap" in CATALOGUE[case].options:
            continue
        _, truth = truth_of(case, claim, seed=1)
        found = judged(online(truth, CLAIMS[claim]), truth, claim)
        assert found.status != verdict.FAILED, (case, found.worst)


WRONG = {
    "scale 1.001 times too large": ("normal", lambda o: o | {"scale": 1.001 / 8**0.5}, {"out", "lse"}),
    "diagonal hidden": ("causal", lambda o: o | {"q_offset": -1}, {"out", "dk"}),
    "window one key too wide": ("window-left", lambda o: o | {"window": (3, 0)}, {"out", "dv"}),
    "no softcap": ("softcap-2-causal", lambda o: o | {"softcap": None}, {"out", "dq"}),
    "sinks left out": ("sinks-causal", lambda o: o | {"sinks": None}, {"out", "lse"}),
    "another seed": ("dropout", lambda o: o | {"dropout_seed": 1}, {"out", "dv"}),
}


@pytest.mark.parametrize("claim", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_falls(name, claim):
    case, change, falls = WRONG[name]
    given, truth = truth_of(case, claim)
    got = attention(
        given.q, given.k, given.v, given.dout, **change(given.options), arithmetic=Nearest(CLAIMS[claim])
    )
    found = failed(judged(results(got), truth, claim))
    assert found & falls if claim == "bfloat16" else found >= falls


def without_delta(truth):
    ds = truth.forward.p * truth.backward.dp
    return {"dq": truth.call.scale * ds @ truth.call.k}


WRONG_GRADIENTS = {
    "delta left out": ("normal", "dq", without_delta),
    "one query head's dk": (
        "grouped",
        "dk",
        lambda truth: {"dk_heads": truth.backward.dk_heads[:, :, :1] * 3},
    ),
    "dbias averaged": ("bias-key-axis", "dbias", lambda truth: {"ds": truth.backward.ds / 2}),
    "dsinks of the wrong sign": ("sinks", "dsinks", lambda truth: {"ds_sink": -truth.backward.ds_sink}),
}


@pytest.mark.parametrize("claim", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", WRONG_GRADIENTS)
def test_a_wrong_gradient_falls(name, claim):
    case, falls, change = WRONG_GRADIENTS[name]
    _, truth = truth_of(case, claim)
    got = gradients(truth.call, replace(truth.backward, **change(truth)), Nearest(CLAIMS[claim]))
    assert failed(judged(got, truth, claim)) == {falls}


def median_bounds(claim: Claim, D=8, Tk=16, spread=1.0, keys=1.0) -> dict:
    """Of plain attention with independent entries."""
    random = np.random.default_rng(0)
    q, k, v, dout = (random.standard_normal(shape) for shape in ((64, D), (Tk, D), (Tk, 8), (64, 8)))
    truth = attention(spread * q, keys * k, v, dout)
    return {name: float(np.median(bound)) for name, bound in bounds.attention(truth, claim).items()}


def test_bounds_grow_as_the_theory_says():
    claim = CLAIMS["float32-direct"]
    base, larger, keys = (
        median_bounds(claim),
        median_bounds(claim, spread=4.0),
        median_bounds(claim, keys=4.0),
    )
    assert larger["lse"] > 2.0 * base["lse"]  # scores four times as large: so are their errors
    assert larger["dk"] > 2.0 * base["dk"]  # and those of the weights made of them
    assert keys["dq"] > 2.0 * larger["dq"]  # the same scores, but dq is a product with k besides
    assert median_bounds(claim, D=256)["lse"] > 32.0 * base["lse"]  # D products of a sum of order sqrt(D)
    assert median_bounds(claim, Tk=1024)["lse"] > 8.0 * base["lse"]  # Tk weights of a sum
    assert median_bounds(replace(claim, function_units=64.0))["out"] > 1.5 * base["out"]


def test_bounds_are_of_the_roundoff_and_differ_by_element():
    single, double = (median_bounds(CLAIMS[name]) for name in ("float32-direct", "float64-direct"))
    for name in single:
        assert 0.999 < single[name] / double[name] / 2.0**28 < 1.001  # 2^-24 against twice 2^-53
    _, truth = truth_of("normal", "float32")
    for name, bound in bounds.attention(truth, CLAIMS["float32"]).items():
        assert np.unique(bound).size == bound.size, name


def test_a_number_too_large_for_the_claim_is_no_evidence():
    _, truth = truth_of("raw-overflow", "float16")
    assert np.isinf(bounds.attention(truth, CLAIMS["float16-naive"])["out"]).all()
    assert np.isfinite(bounds.attention(truth, CLAIMS["float16"])["out"]).all()


def flat(Tk, size):
    """One query that sees Tk keys alike, and gradients of that size."""
    random = np.random.default_rng(0)
    made = ((1, 0.1), (Tk, 0.1), (Tk, size), (1, size))
    return attention(*(round_to(x * random.standard_normal((1, n, 8)), "float16") for n, x in made))


def derived_softmax_gradient(truth):
    """dq in float16 as jax.nn.softmax's derived JVP makes it, with the inverse of the squared sum."""
    half, call = np.float16, truth.call
    e = np.exp(half(truth.forward.scores - truth.forward.peak)).astype(half)
    mass = half(e.sum(-1, keepdims=True, dtype=np.float32))
    dp = half(truth.backward.dp)
    with np.errstate(over="ignore"):
        part = (dp * (half(1) / (mass * mass))) * e
    ds = (dp / mass - np.add.accumulate(part, -1)[..., -1:]) * e
    return half(half(ds.astype(np.float32) @ call.k) * half(call.scale))[0, 0]


@pytest.mark.parametrize("size", [1.0, 0.02, 0.002])
def test_a_softmax_gradient_made_with_the_squared_sum_stays_inside(size):
    truth = flat(250, size)
    off = np.abs(derived_softmax_gradient(truth) - truth.dq)
    assert (off <= bounds.attention(truth, CLAIMS["float16-flax"])["dq"]).all()


def test_a_squared_sum_that_overflows_is_no_evidence_of_the_gradients_behind_it():
    truth = flat(300, 1.0)
    limits = bounds.attention(truth, CLAIMS["float16-flax"])
    assert np.isinf([*limits["dq"].flat, *limits["dk"].flat]).all()
    assert np.isfinite(limits["out"]).all()


# ---- norms, activations, rotary


def rows(kind, C):
    random = np.random.default_rng(C)
    x = random.standard_normal((5, C))
    shift = {"normal": 0, "offset": 100, "tiny": 0, "constant": 1.5, "ramp": np.linspace(-6, 6, C)}[kind]
    return x * {"tiny": 2e-3, "constant": 0, "ramp": 0}.get(kind, 1) + shift


X, POSITIONS = np.linspace(-9.0, 9.0, 600), np.arange(600.0) * 37
ACTIVATIONS = {name: ({"x": X}, {}) for name in ("gelu", "gelu_tanh", "silu", "relu")}
ROTARY = {"rotary": ({"x": rows("normal", 600).T[:, :4]}, {"positions": POSITIONS, "rotary_dim": 2})}
NORMS = {
    f"{name} {kind} {C}": ({"x": rows(kind, C), "gain": rows("normal", C)[0], **bias(C)}, {})
    for name, bias in (("layer_norm", lambda C: {"bias": rows("normal", C)[1]}), ("rms_norm", lambda C: {}))
    for kind in ("normal", "offset", "tiny", "constant", "ramp")
    for C in (16, 96)
}
SINGLE = ACTIVATIONS | ROTARY | NORMS


def compared(name, claim, change=lambda inputs, options: (inputs, options), op=None) -> verdict.Verdict:
    """A single operation in the claimed arithmetic, perhaps changed, against its bounds."""
    inputs, options = SINGLE[name]
    inputs = {n: round_to(x, CLAIMS[claim].io) for n, x in inputs.items()}
    dout = round_to(np.random.default_rng(1).standard_normal(inputs["x"].shape), CLAIMS[claim].io)
    exact_op = getattr(oracle_block, name.split()[0])
    bound = getattr(bounds_block, name.split()[0])(
        *inputs.values(), dout=dout, claim=CLAIMS[claim], **options
    )
    exact = evaluate(exact_op, inputs, dout, **options)
    inputs, options = change(inputs, options)
    got = evaluate(op or exact_op, inputs, dout, Nearest(CLAIMS[claim]), **options)
    return verdict.judge_all(got, exact, bound)


@pytest.mark.parametrize("claim", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", SINGLE)
def test_a_single_operation_stays_inside(name, claim):
    found = compared(name, claim)
    assert found.status != verdict.FAILED, found.worst


WRONG_OPERATIONS = {
    "tanh for erf": ("gelu", {"op": oracle_block.gelu_tanh}), "erf for tanh": ("gelu_tanh", {"op":
    oracle_block.gelu}), "eps a tenth": ("layer_norm tiny 96", {"change": lambda inputs, options: (inputs,
    {"eps": 1e-6})}), "gain as an offset": ("rms_norm normal 16", {"change": lambda inputs, options:
    (inputs, {"offset": 1.0})}), "positions off by one": (
        "rotary", {"change": lambda inputs, options: (inputs, options | {"positions": POSITIONS + 1})},
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", WRONG_OPERATIONS)
def test_a_wrong_operation_falls(name, claim):
    operation, wrong = WRONG_OPERATIONS[name]
    assert failed(compared(operation, claim, **wrong)) >= {"out", "dx"}


# ---- composites


def block_inputs(dtype, C=16):
    random = np.random.default_rng(0)

    def normal(*shape, scale=0.1, shift=0.0):
        return round_to(shift + scale * random.standard_normal(shape), dtype)

    attn = {"w_qkv": normal(C, 3 * C, scale=0.25), "b_qkv": normal(3 * C), "w_out": normal(C, C, scale=0.25)}
    mlp = {
        "w_fc": normal(C, 4 * C, scale=0.25),
        "b_fc": normal(4 * C),
        "w_proj": normal(4 * C, C, scale=0.125),
    }
    params = {"attn": attn | {"b_out": normal(C)}, **mlp, "b_proj": normal(C)}
    params |= {name: (normal(C, shift=1.0), normal(C)) for name in ("ln1", "ln2")}
    return {"params": params, "x": normal(2, 7, C, scale=1.0)}, normal(2, 7, C, scale=1.0)


@pytest.mark.parametrize("claim", ["float32", "bfloat16", "float16"])
def test_a_block_in_the_claimed_arithmetic_stays_inside(claim):
    inputs, dout = block_inputs(claim)
    exact, limits = montecarlo.limits(oracle_block.block, inputs, dout, [claim], n_head=2)
    got = evaluate(oracle_block.block, inputs, dout, Nearest(CLAIMS[claim]), n_head=2)
    found = verdict.judge_all(got, exact, limits[claim], warn_above=montecarlo.WARN_ABOVE)
    assert (found.status, found.warn) == (verdict.PASSED, False), found.worst
    assert found.worst.max_share > 0.05, "a limit that nothing comes near"
    wrong = evaluate(oracle_block.block, inputs, dout, Nearest(CLAIMS[claim]), n_head=4)
    assert failed(verdict.judge_all(wrong, exact, limits[claim])) >= {"out", "dx", "dparams.attn.w_qkv"}


def test_a_block_with_a_slightly_wrong_norm_falls():
    inputs, dout = block_inputs("float32")
    exact, limits = montecarlo.limits(oracle_block.block, inputs, dout, ["float32", "float64"], n_head=2)
    wrong = evaluate(oracle_block.block, inputs, dout, n_head=2, eps=2e-5)
    for claim in limits:
        assert failed(verdict.judge_all(wrong, exact, limits[claim])) >= {"out", "dx", "dparams.attn.w_qkv"}


def test_claims_of_one_roundoff_share_their_runs_rightly():
    """The shared deviations, scaled, are those of the claim's own runs: the same random numbers, another
    u."""
    inputs, dout = block_inputs("float32")
    for name in ("float32", "float64"):
        claim = CLAIMS[name]
        _, own = montecarlo.deviations(oracle_block.block, inputs, dout, claim, 4.0, 4, 0, n_head=2)
        shared = montecarlo.SHARED_U / claim.u_out
        _, scaled = montecarlo.deviations(
            oracle_block.block, inputs, dout, claim, 4.0 * shared, 4, 0, n_head=2
        )
        for tensor, rms in own.items():
            ratio = np.sqrt(np.mean(rms**2) / np.mean(scaled[tensor] ** 2))
            assert abs(ratio * shared - 1.0) < (0.05 if name == "float64" else 0.001), tensor


def test_a_weight_s_own_rounding_counts_though_it_is_not_drawn():
    """x fixed, dout fixed: the only error of dw is its own sum's, whose deviation the recorded formula
    gives."""
    random = np.random.default_rng(0)
    inputs = {"x": random.standard_normal((50, 3)), "w": random.standard_normal((3, 4)), "b": np.zeros(4)}
    dout = random.standard_normal((50, 4))
    claim = CLAIMS["float32"]
    exact, rms = montecarlo.deviations(oracle_block.linear, inputs, dout, claim, 1.0, 3, 0)
    terms = inputs["x"][:, :, None] * dout[:, None, :]
    wanted = claim.u_acc * np.sqrt((50 * (exact["dw"] ** 2 + (terms**2).sum(0)) / 3 + exact["dw"] ** 2) / 3)
    assert np.abs(rms["dw"] / wanted - 1.0).max() < 1e-12
