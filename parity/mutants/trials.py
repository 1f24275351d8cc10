"""What a mutant is tried on: a case of the catalogue, or an input of a norm, GELU, rotary or the block."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from parity import bounds, bounds_block, montecarlo, oracle, oracle_block, verdict
from parity.cases import Case
from parity.claims import CLAIMS
from parity.inputs import ACTIVATIONS, NORMS, Inputs, make, make_activation, make_block, make_norm, represent


class Trial(NamedTuple):
    """Inputs for the classes of `operator`, the right results, and how far each element may be from them."""

    operator: str
    inputs: Inputs | dict
    truth: oracle.Oracle | dict
    bound: dict[str, np.ndarray]
    sizes: dict[str, float] | None = None

    def judge(self, tensors: dict[str, np.ndarray]) -> verdict.Verdict:
        with np.errstate(invalid="ignore"):  # quantiles of infinite shares
            return verdict.judge_all(tensors, self.truth, self.bound, self.sizes)


def prepare(case: Case | str, dtype: str, seed: int, claim: str = "") -> Trial:
    """The trial of a case, or of a name in LAYERS, under a claim: the dtype's strict one by default."""
    claim = claim or dtype
    if isinstance(case, str):
        return LAYERS[case](dtype, seed, claim)
    inputs = make(case, dtype, seed)
    truth = oracle.attention(inputs.q, inputs.k, inputs.v, inputs.dout, **inputs.options)
    with np.errstate(divide="ignore"):  # a bound may be infinite
        bound = bounds.attention(truth, CLAIMS[claim])
    return Trial("attention", inputs, truth, bound, bounds.sizes(truth))


def alone(operator: str, inputs: dict, claim: str, **options) -> Trial:
    """The trial of one operation; operator names it in oracle_block and in bounds_block."""
    given = {name: x for name, x in inputs.items() if name != "dout"}
    truth = oracle_block.evaluate(getattr(oracle_block, operator), given, inputs["dout"], **options)
    bound = getattr(bounds_block, operator)(**inputs, claim=CLAIMS[claim], **options)
    return Trial(operator, inputs | options, truth, bound)


def layer_norm(name: str, dtype: str, seed: int, claim: str) -> Trial:
    return alone("layer_norm", make_norm(name, dtype, seed), claim)


def rms_norm(name: str, offset: float, dtype: str, seed: int, claim: str) -> Trial:
    """offset 1: gains of 15.8125, stored as their distance from one; 16.8125 needs nine bits."""
    made = make_norm(name, dtype, seed)
    gain = np.full_like(made["gain"], 15.8125) if offset else made["gain"]
    return alone("rms_norm", {"x": made["x"], "gain": gain, "dout": made["dout"]}, claim, offset=offset)


def gelu(name: str, dtype: str, seed: int, claim: str) -> Trial:
    return alone("gelu", make_activation(name, dtype, seed), claim)


def rotary(first: int, dtype: str, seed: int, claim: str) -> Trial:
    """Twelve positions from `first` on."""
    made = make_norm("norm-normal", dtype, seed)
    x, dout = (made[name].reshape(12, -1) for name in ("x", "dout"))  # (12, 40)
    return alone("rotary", {"x": x, "dout": dout}, claim, positions=np.arange(first, first + 12.0))


def block(n_embd: int, n_head: int, B: int, T: int, size: float, dtype: str, seed: int, claim: str) -> Trial:
    """size: of x, as a multiple of a standard normal one."""
    params, x, dout = make_block(n_embd, n_head, B, T, dtype, seed)
    given = {"params": params, "x": represent(size * x, dtype)}
    truth, limits = montecarlo.limits(oracle_block.block, given, dout, [claim], n_head=n_head)
    return Trial("block", given | {"dout": dout, "n_head": n_head}, truth, limits[claim])


LAYERS: dict[str, Callable[[str, int, str], Trial]] = {
    **{f"layer-{name}": partial(layer_norm, name) for name in NORMS},
    **{f"rms-{name}": partial(rms_norm, name, 0.0) for name in NORMS},
    **{f"rms-{name}-offset": partial(rms_norm, name, 1.0) for name in ("norm-normal", "norm-16")},
    **{name: partial(gelu, name) for name in ACTIVATIONS},
    **{f"rotary-{first}": partial(rotary, first) for first in (0, 37, 1500, 4090)},
    "block-24": partial(block, 24, 3, 2, 7, 1.0),
    "block-60": partial(block, 60, 5, 1, 12, 1.0),
    "block-24-tiny": partial(block, 24, 2, 2, 5, 2e-3),
    "block-60-tiny": partial(block, 60, 3, 1, 11, 1e-3),
}
