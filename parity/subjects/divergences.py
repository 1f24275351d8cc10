"""Where libraries differ from the contract: what they give instead, exactly, and where that was read or seen.

A divergence is checked both ways: with it the library must hold, without it the library must not. When a
library stops doing it, the run fails until the declaration goes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from parity import oracle
from parity.cases import Case
from parity.inputs import Inputs
from parity.oracle import Array, Oracle


@dataclass(frozen=True)
class Divergence:
    """Each callable takes (case, inputs, the contract's oracle).

    when: whether it shows in this case; dtypes: in which. instead: the oracle of what the library computes.
    nan: tensor name -> bool array (or True), where the library gives NaN. claims: dtype -> the weaker claim
    it keeps. always: it shows in every case where `when` holds; otherwise in some of them.
    """

    name: str
    says: str
    source: str
    when: Callable[[Case, Inputs, Oracle], bool] = lambda case, made, contract: True
    instead: Callable[[Case, Inputs, Oracle], Oracle] = lambda case, made, contract: contract
    nan: Callable[[Case, Inputs, Oracle], Mapping] = lambda case, made, contract: {}
    claims: Mapping[str, str] | None = None
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")
    always: bool = True


def coarser(claims: Mapping[str, str], says: str, source: str) -> Divergence:
    """The library keeps a weaker claim only. It may be exact by luck, so that not every case shows it."""
    name = ", ".join(claims.values())
    return Divergence(name, says, source, claims=claims, dtypes=tuple(claims), always=False)


def pairs(case: Case, made: Inputs, contract: Oracle) -> Array:
    """What each query sees, (*batch, Hq, Tq, Tk) bool."""
    return contract.call.visible.reshape(*made.q.shape[:-1], case.Tk)


# ---- a query that sees nothing: the mean of v


def mean_of_v(source: str, zero_past_q_lengths: bool = False) -> Divergence:
    """Hidden scores become a large finite number: a row of nothing else is uniform, over padding too."""

    def rows(case, made, contract):
        hidden_by_bias = made.options.get("bias", 0.0) == -np.inf  # those stay -inf
        empty = ~pairs(case, made, contract).any(-1) & ~np.all(hidden_by_bias, -1)
        if zero_past_q_lengths and "q_lengths" in made.options:
            empty &= np.arange(case.Tq) < np.asarray(made.options["q_lengths"])[..., None, None]
        return empty[..., None] & (case.Tk > 0)  # (*batch, Hq, Tq, 1)

    def instead(case, made, contract):
        """Scores of 0 are as equal as scores of -1e38; no gradient passes the mask to q, k and the bias."""
        empty = rows(case, made, contract)
        options = {n: x for n, x in made.options.items() if n in ("bias", "scale")}
        if "bias" in options:
            options["bias"] = np.where(empty, 0.0, options["bias"])
        q, dout = np.where(empty, 0.0, made.q), np.where(empty, np.nan_to_num(made.dout), made.dout)
        visible = pairs(case, made, contract) | empty
        found = oracle.attention(q, made.k, made.v, dout, mask=visible, **options)
        dq = found.dq if found.dq is None else np.where(empty, 0.0, found.dq)
        return replace(found, dq=dq, dbias=contract.dbias)

    return Divergence(
        "mean of v in empty rows",
        "a query that sees nothing gives the mean of v over all keys, and sends dout / Tk to each dv",
        source,
        when=lambda case, made, contract: bool(rows(case, made, contract).any()),
        instead=instead,
    )


# ---- NaN: 0 * NaN, and exp(-inf - -inf)


def textbook_nan(*, hidden: float | None = None, empty_is_zero: bool = False, heads_mix: bool = False):
    """(case, inputs, contract) -> where attention written out gives NaN, in each tensor.

    hidden: what a mask replaces scores by before the softmax; None: it adds -inf to them, as a bias does.
    empty_is_zero: a row of -inf gives weights 0, not 0/0. heads_mix: a projection precedes and follows, so
    that NaN or Inf in one head of a position is NaN in all of them.
    """

    def mixed(x, bad):
        return np.where(bad(x).any((-3, -1), keepdims=True), np.nan, x) if heads_mix else x

    def nan(case, made, contract):
        q, k, v, dout = (mixed(x, lambda x: ~np.isfinite(x)) for x in (made.q, made.k, made.v, made.dout))
        group = case.n_head // case.n_kv_head
        k, v = (np.repeat(x, group, -3) for x in (k, v))
        options = {n: x for n, x in made.options.items() if n not in ("bias", "sinks")}
        unbiased = oracle.attention(made.q, made.k, made.v, **options)
        visible = pairs(case, made, unbiased)
        bias = made.options.get("bias", 0.0)
        with np.errstate(invalid="ignore", over="ignore"):
            s = contract.call.scale * (q @ k.mT) + bias
            s = s + np.where(visible, 0.0, -np.inf) if hidden is None else np.where(visible, s, hidden)
            e = np.exp(s - s.max(-1, keepdims=True))
            p = e / e.sum(-1, keepdims=True)
            if empty_is_zero:
                p = np.where((s == -np.inf).all(-1, keepdims=True), 0.0, p)
            dp = dout @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdims=True))
            if hidden is not None:
                ds = np.where(visible, ds, 0.0)  # the gradient stops at the mask
            found = {"out": p @ v, "dq": ds @ k}
            found |= {"dk": grouped(ds.mT @ q, group), "dv": grouped(p.mT @ dout, group)}
            if "bias" in made.options:
                found["dbias"] = oracle.sum_to(ds, made.options["bias"].shape)
        where = {n: np.isnan(x if n == "dbias" else mixed(x, np.isnan)) for n, x in found.items()}
        return where | {"lse": np.isnan(s).any(-1)}

    return nan


def grouped(x: Array, group: int) -> Array:
    """Summed over the query heads of each kv head: (..., Hq, Tk, D) -> (..., Hkv, Tk, D)."""
    return x.reshape(*x.shape[:-3], -1, group, *x.shape[-2:]).sum(-3)


def spreading_nan(source: str, queries: bool = True, **how) -> Divergence:
    """NaN where nothing is read reaches what is read; queries: also from a query that reads nothing."""

    def when(case, made, contract):
        return any(not np.isfinite(x).all() for x in (made.k, made.v, *([made.q] if queries else [])))

    return Divergence(
        "NaN spreads",
        "NaN in a key that no query reads, or in a query that reads nothing, spreads by 0 * NaN",
        source,
        when=when,
        nan=textbook_nan(**how),
    )


def nan_in_empty_rows(source: str, by_bias_only: bool = False, **how) -> Divergence:
    """A softmax over nothing but -inf is 0/0."""

    def when(case, made, contract):
        finite = all(np.isfinite(x).all() for x in (made.q, made.k, made.v))
        hidden = (
            made.options.get("bias", np.zeros(1)) == -np.inf if by_bias_only else ~pairs(case, made, contract)
        )
        return finite and bool(hidden.all(-1).any())

    return Divergence(
        "NaN in empty rows",
        "a query whose scores are all -inf gives NaN, and through dk and dv spoils its whole batch entry",
        source,
        when=when,
        nan=textbook_nan(**how),
    )
