"""Who judges the judge: every wrong implementation is rejected, every right one accepted."""

import inspect
import re
from collections import Counter
from itertools import product

import numpy as np
import pytest

from parity import verdict
from parity.cases import CATALOGUE, REPORTS, select
from parity.mutants import DTYPES, MUTANTS, THEMES, killers, run, survey
from parity.mutants.arrays import FRAMEWORKS, coarse, load
from parity.mutants.attention import Attention, Tiled
from parity.mutants.layers import Block, Gelu, LayerNorm, RMSNorm, Rotary
from parity.mutants.registry import mutant
from parity.mutants.trials import LAYERS, prepare

RIGHT = {right.operator: right for right in (Attention, LayerNorm, RMSNorm, Gelu, Rotary, Block)}
SEEDS = (0, 1, 2)
ENOUGH = 2  # killers that each mutant must have in the default set, so that no case is indispensable


def wanted(dtypes, seeds=(0,)):
    mutants = MUTANTS.values()
    return {(m.name, dtype, seed) for m in mutants for dtype in m.dtypes if dtype in dtypes for seed in seeds}


def test_there_are_many_and_each_theme_has_some():
    assert len(MUTANTS) >= 60
    themes = Counter(m.theme for m in MUTANTS.values())
    assert themes.keys() == {theme.__name__.rpartition(".")[2] for theme in THEMES}
    assert min(themes.values()) >= 10
    assert sum(m.gradient_only for m in MUTANTS.values()) >= 20


@pytest.mark.parametrize("name", MUTANTS)
def test_each_marks_its_wrong_line_and_says_what_it_does(name):
    m = MUTANTS[name]
    assert inspect.getsource(m.wrong).count("# wrong") in (1, 2)
    assert m.does.endswith(".")
    assert m.origin
    assert set(re.findall(r"\bC\d+", m.origin)) <= REPORTS.keys()
    assert set(m.dtypes) <= set(DTYPES)


def test_a_mutant_is_its_twin_but_for_one_step():
    m = MUTANTS["scale-by-d"]
    wrong = m.build()
    assert m.right is Attention
    assert vars(wrong)["scale"] is m.wrong
    assert wrong.softmax is Attention.softmax


def test_a_step_that_does_not_exist_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'scaling'"):
        mutant(Attention, "scaling")(lambda self: 1.0)


def test_a_mutant_without_a_name_or_a_docstring_is_refused():
    with pytest.raises(ValueError, match="a mutant needs a name of its own and a docstring, got '<lambda>'"):
        mutant(Attention, "scale")(lambda self: 1.0)


def test_an_unknown_framework_is_refused():
    with pytest.raises(ValueError, match=r"framework must be one of .*, got 'keras'"):
        load("keras")


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("bits", [4, 8, 11])
def test_coarse_rounds_to_so_many_bits(framework, bits):
    arrays = load(framework)
    x = np.random.default_rng(0).standard_normal(1000)
    mantissa, exponent = np.frexp(x.astype(np.float32).astype(np.float64))
    expected = np.ldexp(np.rint(mantissa * 2.0**bits) / 2.0**bits, exponent)
    got = arrays.numpy(coarse(arrays.array(x, "float32"), bits))
    np.testing.assert_array_equal(got.astype(np.float64), expected)


# JAX compiles each operation for each shape; the slow tests give it all cases.
FEW = ("plain-causal", "layer-norm-tiny", "rotary-37")
TRIED = [
    (f, case) for f in FRAMEWORKS for case in (*FEW, *(("everything", "block-24") if f != "jax" else ()))
]


@pytest.mark.parametrize(("framework", "case"), TRIED)
def test_twins_pass_in_every_framework(framework, case):
    for dtype in ("float32", "bfloat16"):
        trial = prepare(CATALOGUE.get(case, case), dtype, seed=0)
        for right in (Attention, Tiled) if trial.operator == "attention" else (RIGHT[trial.operator],):
            tensors = run(right, framework, trial.inputs, dtype)
            assert trial.judge(tensors).status == verdict.PASSED


def test_gradient_only_mutants_leave_the_output_alone():
    cases = [CATALOGUE[name] for name in ("everything", "sinks", "dropout-causal", "softcap-2-causal")]
    for case in [*cases, *LAYERS]:
        trial = prepare(case, "float32", seed=0)
        for m in MUTANTS.values():
            if m.gradient_only and m.operator == trial.operator:
                got = run(m, "numpy", trial.inputs, "float32")
                right = run(m.right, "numpy", trial.inputs, "float32")
                for name in {"out", "lse"} & got.keys():
                    np.testing.assert_array_equal(got[name], right[name], err_msg=m.name)


def test_every_mutant_has_two_killers_in_the_default_set():
    rows = list(survey(dtypes=["float32"], enough=ENOUGH))
    assert all(row.twin_passed for row in rows)
    found = killers(rows)
    assert {key for key in wanted(["float32"]) if len(found[key]) < ENOUGH} == set()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_mutant_has_two_killers_in_every_dtype_and_seed(dtype):
    found = killers(survey(dtypes=[dtype], seeds=SEEDS, enough=ENOUGH))
    assert {key for key in wanted([dtype], SEEDS) if len(found[key]) < ENOUGH} == set()


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_every_mutant_has_two_killers_in_the_arithmetic_of(framework):
    found = killers(survey(dtypes=["float32", "bfloat16"], framework=framework, enough=ENOUGH))
    assert {key for key in wanted(["float32", "bfloat16"]) if len(found[key]) < ENOUGH} == set()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_twins_pass_on_the_whole_catalogue(dtype):
    failed = []
    for case, seed in product([*select("full"), *LAYERS], SEEDS):
        trial = prepare(case, dtype, seed)
        for right in (Attention, Tiled) if trial.operator == "attention" else (RIGHT[trial.operator],):
            found = trial.judge(run(right, "numpy", trial.inputs, dtype))
            failed += [(case, seed, right.__name__)] * (found.status == verdict.FAILED)
    assert failed == []
