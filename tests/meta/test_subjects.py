"""Subjects: what they state is consistent, and a declared divergence is checked both ways."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from parity import choose, oracle, runner
from parity.bounds import CLAIMS
from parity.cases import CATALOGUE
from parity.subjects import DTYPES, Subject, built_in, find, plugin, takes
from parity.subjects.divergences import coarser, mean_of_v, nan_in_empty_rows, spreading_nan
from parity.subjects.sight import RULES
from parity.subjects.torch_cpu import CAUSAL_SCALE, FINITE_ROW
from parity.subjects.torch_multihead import overflowing
from parity.worker import RUNS, Answer, Task, answer

SUBJECTS = built_in()
CONTRACT = tuple(inspect.signature(oracle.attention).parameters)
each_subject = pytest.mark.parametrize("name", SUBJECTS)


@each_subject
def test_claims_exist_and_divergences_have_sources(name):
    subject = SUBJECTS[name]
    assert set(subject.claims) <= set(DTYPES)
    assert set(subject.claims.values()) <= CLAIMS.keys()
    for divergence in subject.diverges:
        assert any(word in divergence.source for word in ("torch 2.", "jax 0.", "flax 0."))
        assert set((divergence.claims or {}).values()) <= CLAIMS.keys()
    assert all(divergence.name and divergence.says for divergence in subject.diverges)


@each_subject
def test_a_case_it_does_not_refuse_names_no_keyword_that_it_lacks(name):
    subject = SUBJECTS[name]
    named = inspect.signature(subject.load()).parameters
    takes_more = any(p.kind is p.VAR_KEYWORD for p in named.values())  # and hands it on to what names it
    handed_on = CONTRACT if name.startswith("attn_") else RULES
    allowed = {*named, *(handed_on if takes_more else ())}
    for case in CATALOGUE.values():
        if not subject.cannot(case):
            assert set(case.options) <= allowed, case.name


def test_what_cannot_be_expressed_has_a_reason():
    case = CATALOGUE["softcap"]
    assert takes("causal")(case) == "has no softcap"
    assert takes("softcap")(case) is None
    with pytest.raises(KeyError):
        find("nobody")


# ---- divergences, both ways: a library that does what is declared, and one that stopped


def cell(divergences, case, *, does=(), dtype="float32", claim="float32-direct"):
    """The cell of a planted library that declares `divergences` and really does those of `does`.

    Its values are the float64 ones of what it does; arithmetic is not what is tested here.
    """
    constants = ("bias",) if FINITE_ROW in (*divergences, *does) else ()
    declared = {"diverges": tuple(divergences), "constants": constants}
    subject = Subject("planted", "torch", lambda: None, {dtype: claim}, **declared)
    task = Task("planted", case, dtype, "cpu", 0)
    gives = runner.expected(replace(subject, diverges=tuple(does)), task, does).values
    names = ("out", "dq", "dk", "dv", *(() if constants else ("dbias",)))
    tensors = {name: gives[name] for name in names if name in gives}
    return runner.judge(subject, task, Answer(tensors, dict.fromkeys(tensors, dtype), 0.0))


MEAN = mean_of_v("jax 0.0")
NAN = spreading_nan("torch 2.0", empty_is_zero=True)
EMPTY = nan_in_empty_rows("torch 2.0")
SCALE, _ = CAUSAL_SCALE
BOTH_WAYS = [
    (MEAN, "mask-dead-rows"),
    (MEAN, "mask-blind-queries"),
    (NAN, "mask-hidden-key"),
    (NAN, "bias-inf-some"),
    (EMPTY, "mask-block"),
    (EMPTY, "bias-inf-row"),
    (SCALE, "scale-zero-causal"),
    (SCALE, "scale-negative-causal"),
    (FINITE_ROW, "bias-finite-row"),
]
both_ways = pytest.mark.parametrize("divergence, name", BOTH_WAYS, ids=lambda x: getattr(x, "name", x))


@both_ways
def test_a_library_that_diverges_as_declared(divergence, name):
    found = cell([divergence], CATALOGUE[name], does=[divergence])
    assert (found["status"], found["diverges"]) == ("diverges", [divergence.name])
    assert divergence.says in found["reason"]


@both_ways
def test_a_library_that_stopped_diverging_fails(divergence, name):
    found = cell([divergence], CATALOGUE[name], does=[])
    assert (found["status"], found["reason"]) == ("failed", f"no longer diverges: {divergence.name}")


@both_ways
def test_the_same_without_a_declaration_fails(divergence, name):
    found = cell([], CATALOGUE[name], does=[divergence])
    assert found["status"] == "failed" or divergence is FINITE_ROW  # there the bound alone proves nothing


def test_a_third_way_to_differ_is_not_covered_by_a_declaration():
    case = CATALOGUE["mask-dead-rows"]
    found = cell([MEAN], case, does=[EMPTY])  # NaN where mean(v) is declared
    assert found["status"] == "failed"


def test_two_divergences_at_once_are_told_apart():
    case = CATALOGUE["mask-blind-queries"]
    finite = spreading_nan("jax 0.0", hidden=-1e38)
    assert cell([MEAN, finite], case, does=[MEAN, finite])["diverges"] == [MEAN.name, finite.name]
    one_stopped = cell([MEAN, finite], case, does=[finite])
    assert (one_stopped["status"], one_stopped["reason"]) == ("failed", f"no longer diverges: {MEAN.name}")


def test_less_precision_than_claimed_is_seen_and_may_be_absent():
    """float64 in and out, float32 inside: worse than a float64 claim, unless it happens to be exact."""
    less = coarser({"float64": "float64-as-float32"}, "float32 inside", "jax 0.0")
    case, claims = CATALOGUE["normal"], {"float64": "float64"}
    subject = Subject("planted", "jax", lambda: None, claims, diverges=(less,))
    task, truth = Task("planted", case, "float64", "cpu", 0), runner.truth_of((case, "float64", 0))[1]
    exact = {name: getattr(truth, name) for name in ("out", "dq", "dk", "dv")}
    rounded = {name: x.astype(np.float32).astype(np.float64) for name, x in exact.items()}
    cells = [
        runner.judge(subject, task, Answer(x, dict.fromkeys(x, "float64"), 0.0)) for x in (exact, rounded)
    ]
    assert [(c["status"], c["claim"]) for c in cells] == [
        ("passed", "float64"),
        ("diverges", "float64-as-float32"),
    ]


def test_a_divergence_that_shows_in_no_case_of_a_whole_run_fails_it():
    less = coarser({"float64": "float64-as-float32"}, "float32 inside", "jax 0.0")
    subject = Subject("planted", "jax", lambda: None, {"float64": "float64"}, diverges=(less,))

    def planted(case, status, diverges=()):
        where = {"subject": "planted", "case": case, "dtype": "float64"}
        return {**where, "status": status, "reason": "", "diverges": list(diverges)}

    exact = [planted("a", "passed"), planted("b", "passed"), planted("c", "no_evidence")]
    stopped = list(runner.overdue(exact, [subject]))
    assert sorted(cell["case"] for cell in stopped) == ["a", "b", "c"]
    assert [cell["reason"] for cell in stopped if cell["status"] == "failed"] == [
        f"no longer diverges: {less.name}, in none of the cases"
    ]
    still = [*exact, planted("d", "diverges", [less.name])]
    found = list(runner.overdue(still, [subject]))
    assert sorted(cell["case"] for cell in found) == ["a", "b", "c", "d"]
    assert "failed" not in {cell["status"] for cell in found}


# ---- plug-ins: what a declaration may say


def test_a_wrong_declaration_is_refused_at_once():
    with pytest.raises(ValueError, match="framework must be one of"):
        plugin.subject(framework="tensorflow")
    with pytest.raises(ValueError, match="no claim named 'float8'"):
        plugin.subject(claims={"float32": "float8"})


def test_an_address_that_leads_nowhere_says_so(tmp_path):
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "number.py").write_text("attend = 3")
    (tmp_path / "neither.py").write_text("def attend(q, k, v): ...")
    for address, error, text in (
        (f"{tmp_path}/nothing.py:attend", FileNotFoundError, "no file"),
        (f"{tmp_path}/empty.py:attend", AttributeError, "has no attend"),
        (f"{tmp_path}/number.py:attend", TypeError, "is not a function"),
        (f"{tmp_path}/neither.py:attend", ValueError, "cannot tell the framework"),
    ):
        with pytest.raises(error, match=text):
            find(address)


def test_an_installed_package_may_bring_subjects(tmp_path, monkeypatch):
    (tmp_path / "kernels.py").write_text("import torch\ndef attend(q, k, v): return torch.zeros_like(q)\n")
    info = tmp_path / "kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[parity.subjects]\nmine = kernels:attend\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert plugin.installed() == {"mine": "kernels:attend"}
    assert choose.subjects(["mine", "torch.sdpa"]) == ("kernels:attend", SUBJECTS["torch.sdpa"])
    found = find("kernels:attend")
    assert (found.framework, found.process) == ("torch", "kernels:attend")


def test_an_overflow_in_one_head_is_declared_where_it_shows_in_the_others():
    case, subject = CATALOGUE["mixed-scales"], SUBJECTS["torch.MultiheadAttention[weights]"]
    seed = next(n for n in range(100) if overflowing(runner.truth_of((case, "float16", n))[1]).any())
    task = Task(subject.name, case, "float16", "cpu", seed)
    cell = runner.judge(subject, task, answer(RUNS["torch"], task, find))
    assert (cell["status"], cell["diverges"]) == ("diverges", ["an overflow spreads over heads"])
    strict = replace(subject, diverges=())
    assert runner.judge(strict, task, answer(RUNS["torch"], task, find))["status"] == "failed"
    before = next(n for n in range(100) if not overflowing(runner.truth_of((case, "float16", n))[1]).any())
    task = Task(subject.name, case, "float16", "cpu", before)
    assert runner.judge(subject, task, answer(RUNS["torch"], task, find))["status"] == "passed"
