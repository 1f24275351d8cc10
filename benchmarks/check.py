"""Correctness before timing, by the bounds of parity and nothing else.

Attention: the very program that will be timed, at its shape, against the float64 oracle. The oracle holds
every pair, too many at long lengths, so it is asked about some rows of queries only: the last ones, which see
most, and for the output as many from the middle. To compare gradients the program gets a cotangent that is
zero outside the last rows: then dq is theirs alone, dk and dv come from them alone, exactly, and the bound of
the smaller problem holds for the whole.

A block: at a short length, output and all gradients within Monte-Carlo limits. Its attention is checked at
every length by the cells of attention.

A model: fewer of the same layers, and the logits of a step after a short context, within Monte-Carlo limits;
of the second step in the same place, so that one that leaves the context longer shows.
"""

from functools import lru_cache, partial

import numpy as np

from benchmarks.cells import Cell
from benchmarks.models import POSITIONS
from parity import bounds, inputs, montecarlo, oracle, oracle_block, verdict
from parity.cases import Case

ROWS, PAIRS = 32, 2**17  # queries; fewer where they see more pairs than that, for the oracle holds each
SHORT = 8  # positions of a block that is checked, or of a model's context
SHALLOW = 2  # layers of a model that is checked


def attention(cell: Cell, claim: str, out: np.ndarray, dq=None, dk=None, dv=None) -> dict:
    """The finding on a program's results for this cell under cotangent(cell), as float64."""
    last, middle = (slice(at, min(at + rows(cell), cell.Tq)) for at in starts(cell))
    exact, allowed = expected(cell.case(), cell.dtype, last.start, last.stop, claim)
    results = {"out": out[..., last, :]}
    if cell.backward:
        stray = np.any(dq[..., : last.start, :])
        results |= {"dq": np.where(stray, np.nan, dq[..., last, :]), "dk": dk, "dv": dv}
    judged = verdict.judge_all(results, exact, allowed).tensors
    exact, allowed = expected(cell.case(), cell.dtype, middle.start, middle.stop, claim)
    judged += verdict.judge_all({"out": out[..., middle, :]}, exact, allowed).tensors
    return finding(claim, verdict.Verdict(judged))


def rows(cell: Cell) -> int:
    """How many queries are checked in one place."""
    return max(1, min(ROWS, PAIRS // cell.Tk))


def starts(cell: Cell) -> tuple[int, int]:
    """The first of the last rows, and of the middle ones."""
    return max(0, cell.Tq - rows(cell)), max(0, cell.Tq // 2 - rows(cell))


def cotangent(cell: Cell) -> np.ndarray:
    """The case's dout where the last rows are, 0 elsewhere."""
    dout = made(cell.case(), cell.dtype).dout.copy()
    dout[..., : starts(cell)[0], :] = 0.0
    return dout


def block(cell: Cell, claim: str, results: dict) -> dict:
    """The finding on a block's results ("out", "dx", "dparams..."; float64) for the cell short(cell)."""
    exact, allowed = block_limits(cell, claim)
    return finding(claim, verdict.judge_all(results, exact, allowed[claim], warn_above=montecarlo.WARN_ABOVE))


def finding(claim: str, found: verdict.Verdict) -> dict:
    """{"claim", "verdict": parity's, "max_share": largest error over its bound, "reason": of a failure}."""
    wrong = [tensor for tensor in found.tensors if tensor.status == verdict.FAILED]
    reasons = [t.reason or f"{t.name} is off by {t.max_share:.3g} times its bound" for t in wrong]
    share = found.worst.max_share if found.worst else 0.0
    return {"claim": claim, "verdict": found.status, "max_share": share, "reason": "; ".join(reasons)}


@lru_cache(maxsize=1)
def made(case: Case, dtype: str) -> inputs.Inputs:
    """The case's arrays in NumPy, made once for all contenders."""
    return inputs.make(case, dtype)


@lru_cache(maxsize=4)  # the next contender of the cell asks for the same
def expected(case: Case, dtype: str, start: int, stop: int, claim: str) -> tuple[oracle.Oracle, dict]:
    """The oracle's answer for queries start to stop against all keys, and the bounds of its tensors."""
    given = made(case, dtype)
    q, dout = (x[..., start:stop, :] for x in (given.q, given.dout))
    exact = oracle.attention(q, given.k, given.v, dout, **given.options | {"q_offset": start})
    return exact, bounds.attention(exact, bounds.CLAIMS[claim])


def made_block(cell: Cell) -> tuple[dict, np.ndarray, np.ndarray]:
    """(parameter tree, x, dout), x and dout (B, T, C)."""
    return inputs.make_block(cell.C, cell.H, cell.B, cell.T, cell.dtype)


@lru_cache(maxsize=1)
def block_limits(cell: Cell, claim: str) -> tuple[dict, dict]:
    tree, x, dout = made_block(cell)
    return montecarlo.limits(oracle_block.block, {"params": tree, "x": x}, dout, [claim], n_head=cell.H)


def model(cell: Cell, claim: str, logits: np.ndarray) -> dict:
    """The finding on a model's logits (B, V), float64, for a short and shallow cell."""
    exact, allowed = model_limits(cell, claim)
    results = {"out": logits[:, None]}
    return finding(claim, verdict.judge_all(results, exact, allowed[claim], warn_above=montecarlo.WARN_ABOVE))


def made_model(cell: Cell) -> tuple[dict, np.ndarray]:
    """(parameter tree, as params.from_tree takes it, tokens (B, T + 1)); float64 rounded to dtype, int32."""
    tokens = inputs.stream("tokens", cell.B, cell.T).integers(0, cell.V, (cell.B, cell.T + 1), np.int32)
    return made_parameters(cell.C, cell.H, cell.L, cell.V, cell.dtype), tokens


@lru_cache(maxsize=2)  # the model that is timed, and the one that is checked
def made_parameters(C: int, H: int, L: int, V: int, dtype: str) -> dict:
    """Blocks of make_block; embeddings of its weights' size, a last norm of its norms'."""

    def draw(name, *shape, mean=0.0, sd=1.0):
        return inputs.represent(mean + sd * inputs.stream("model", C, name).standard_normal(shape), dtype)

    return {
        "wte": draw("wte", V, C, sd=C**-0.5),
        "wpe": draw("wpe", POSITIONS, C, sd=C**-0.5),
        "ln_f": (draw("ln_f gain", C, mean=1.0, sd=0.2), draw("ln_f bias", C, sd=0.2)),
        "blocks": tuple(inputs.make_block(C, H, 1, 1, dtype, seed=layer)[0] for layer in range(L)),
    }


@lru_cache(maxsize=1)
def model_limits(cell: Cell, claim: str) -> tuple[dict, dict]:
    tree, tokens = made_model(cell)
    return montecarlo.limits(gpt2, {"params": tree}, None, [claim], tokens=tokens, n_head=cell.H)


def gpt2(a, params, tokens, n_head):
    """An op as parity.oracle_block's, without a gradient: logits (B, 1, V) after tokens (B, T)."""
    x = a.output(params["wte"][tokens] + params["wpe"][: tokens.shape[1]])
    blocks = [
        partial(oracle_block.block, a, p, n_head=n_head, activation=oracle_block.gelu_tanh)
        for p in params["blocks"]
    ]
    x, _ = oracle_block.chain(x, blocks)
    x, _ = oracle_block.layer_norm(a, x[:, -1:], *params["ln_f"])
    return oracle_block.linear(a, x, params["wte"].T)


def forget():
    """Let go of the arrays that are kept for the next contender of a cell."""
    made.cache_clear()
    expected.cache_clear()
    made_parameters.cache_clear()
