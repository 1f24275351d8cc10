"""The catalogue: complete, small where it must be, and each case with its reason."""

import inspect
import re
from collections import Counter

import numpy as np
import pytest

from parity import oracle
from parity.cases import BUDGETS, CATALOGUE, REPORTS, Case, select
from parity.fills import FILLS, RECIPES
from parity.heldout import HELD_OUT
from parity.inputs import LAYOUTS, make
from parity.record import describe_case

# Those that are inputs of attention itself; the others are of norms, caches, wrong calls or ports.
OF_ATTENTION = {f"C{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 21, 22, 25, 26, 28, 29, 31, 35, 36, 38, 39)}
KEYWORDS = set(inspect.signature(oracle.attention).parameters) - {"q", "k", "v", "dout", "arithmetic"}


def test_names_are_unique_and_say_something():
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in CATALOGUE)
    assert all(case.name == name for name, case in CATALOGUE.items())
    assert all(case.catches and "\n" not in case.catches for case in CATALOGUE.values())


def test_budgets_nest_and_hold_their_size():
    quick, default, full = (select(budget) for budget in BUDGETS)
    assert set(quick) < set(default) < set(full) == set(CATALOGUE.values())
    assert 20 <= len(quick) <= 30
    assert 60 <= len(default) <= 85
    assert len(full) >= 110


def test_an_unknown_budget_is_refused():
    with pytest.raises(ValueError, match=r"budget must be one of .*, got 'huge'"):
        select("huge")


def test_the_default_cases_share_few_shapes():
    assert len({(case.q, case.kv, case.v_dim) for case in select("default")}) <= 8


SHAPES = sorted({shape for case in select("default") for shape in (case.q, case.kv)})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_axes_of_a_family_differ(shape):
    assert all(count == 1 for size, count in Counter(shape).items() if size > 1)


@pytest.mark.parametrize("budget", ["quick", "default"])
def test_every_keyword_of_the_contract_is_used(budget):
    assert {keyword for case in select(budget) for keyword in case.options} == KEYWORDS


def test_every_report_on_attention_is_retold():
    told = {case.origin for case in select("full")}
    assert told >= OF_ATTENTION
    assert {origin for origin in told if origin.startswith("C")} <= REPORTS.keys()


def test_every_fill_recipe_and_layout_is_used():
    cases = (*CATALOGUE.values(), *HELD_OUT)
    recipes = {spec[0] for c in cases for spec in (c.mask, c.bias, c.dropout_mask) if spec}
    assert {case.fill for case in cases} == FILLS.keys()
    assert recipes == RECIPES.keys()
    assert {case.layout for case in cases} == LAYOUTS.keys()


def test_the_shapes_of_the_contract_are_there():
    cases = select("full")
    assert {case.head_dim for case in cases} >= {0, 1, 40, 59, 96, 111, 160, 256}
    assert any(case.Tq < case.Tk for case in cases)
    assert any(case.Tq > case.Tk for case in cases)
    assert any(case.Tq == case.Tk == 1 for case in cases)
    assert any(case.Tq == 1 and case.Tk >= 257 for case in cases)
    assert any(case.Tk % 16 for case in cases)
    assert any(case.v_dim != case.head_dim for case in cases)
    assert any(len(case.q) == 2 for case in cases)
    assert any(len(case.q) > 5 for case in cases)
    assert any(case.n_kv_head == 1 < case.n_head for case in cases)
    assert any(0 in (case.Tq, case.Tk, case.v_dim, *case.batch) for case in cases)


def test_options_are_what_differs_from_the_default():
    case = Case("x", "y", q=(2, 3), kv=(4, 3), v_dim=5, scale=0.0, window=0, q_lengths=0)
    assert case.options == {"scale": 0.0, "window": 0, "q_lengths": 0}
    assert (case.batch, case.n_head, case.n_kv_head, case.Tq, case.Tk) == ((), 1, 1, 2, 4)
    assert case.v_shape == (4, 5)


@pytest.mark.parametrize("case", CATALOGUE.values(), ids=CATALOGUE.keys())
def test_the_oracle_takes_every_case(case):
    made = make(case, "float16")
    truth = oracle.attention(made.q, made.k, made.v, made.dout, **made.options)
    assert truth.out.shape == made.dout.shape
    assert not np.isnan(truth.lse).any()
    for name in ("out", "dq", "dk", "dv"):
        assert np.isfinite(getattr(truth, name)).all()


@pytest.mark.parametrize("case", CATALOGUE.values(), ids=CATALOGUE.keys())
def test_every_case_can_be_described(case):
    said = describe_case(case)
    assert len(said["picture"]) <= case.Tq
    assert all(len(row) <= case.Tk for row in said["picture"])
    assert bool(said["origin"]) == bool(case.origin)
