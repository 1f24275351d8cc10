"""No correct implementation is ever above its bound, on the catalogue or on cases held out."""

import math

import pytest

from parity import calibrate, runner
from parity.cases import CATALOGUE
from parity.heldout import HELD_OUT
from parity.inputs import make
from parity.subjects import DTYPES, built_in
from parity.worker import Answer, Task

FEW = {"catalogue": lambda: (CATALOGUE["normal"],), "held out": lambda: HELD_OUT[:2]}


def test_the_cases_held_out_are_others():
    names = [case.name for case in HELD_OUT]
    assert len(set(names)) == len(names) > 50
    assert not set(names) & CATALOGUE.keys()
    assert not {case.fill for case in HELD_OUT} & {case.fill for case in CATALOGUE.values()}
    assert not {case.q for case in HELD_OUT} & {case.q for case in CATALOGUE.values()}
    first, again = (make(HELD_OUT[0], "float32", seed=1) for _ in range(2))
    assert (first.q == again.q).all()


def test_seeds_are_added_until_there_are_enough(monkeypatch):
    monkeypatch.setattr(calibrate, "SETS", FEW)
    uses: calibrate.Uses = {}
    cells = list(calibrate.calibrate(uses, (built_in()["torch.sdpa[math]"],), ("float32", "float64"), 30))
    assert set(uses) == {"catalogue", "held out"}
    for claims in uses.values():
        assert {claim: len(use.shares) for claim, use in claims.items()} == {
            "float32-direct": 32,  # four tensors a cell
            "float64-direct": 32,
        }
        assert not any(use.above for use in claims.values())
    assert len(cells) == 2 * (8 + 8)


def test_a_weaker_claim_that_is_kept_needs_as_many(monkeypatch):
    monkeypatch.setattr(calibrate, "SETS", {"catalogue": FEW["catalogue"]})
    uses: calibrate.Uses = {}
    for _ in calibrate.calibrate(uses, (built_in()["jax.nn"],), ("float64",), 9):
        pass
    assert {claim: len(use.shares) for claim, use in uses["catalogue"].items()} == {"float64-as-float32": 12}


def test_what_is_above_is_kept_and_makes_the_exit_code(capsys):
    case, subject = CATALOGUE["normal"], built_in()["torch.sdpa[math]"]
    task, truth = Task(subject.name, case, "float32", "cpu", 0), runner.truth_of((case, "float32", 0))[1]
    tensors = {name: 1.01 * getattr(truth, name) for name in ("out", "dq", "dk", "dv")}
    use = calibrate.Use()
    use.add(runner.judge(subject, task, Answer(tensors, dict.fromkeys(tensors, "float32"), 0.0)))
    use.add(runner.judge(subject, task, Answer({}, {}, 0.0, "it broke")))
    median, _, largest = use.quantiles()
    assert (len(use.shares), len(use.above)) == (4, 2)
    assert largest >= median > 1.0
    assert math.isnan(calibrate.Use().quantiles()[0])


@pytest.mark.slow
def test_no_correct_implementation_is_above_its_bound():
    """At least 10,000 judged outputs for each claim, on either set. Twenty minutes on two cores."""
    uses: calibrate.Uses = {}
    for _ in calibrate.calibrate(uses, tuple(built_in().values()), DTYPES, 10_000):
        pass
    pairs = ((subject, dtype) for subject in built_in().values() for dtype in subject.claims)
    every = set().union(*(calibrate.kept(*pair) for pair in pairs))
    for claims in uses.values():
        assert claims.keys() == every
        assert all(len(use.shares) >= 10_000 for use in claims.values())
        assert [(c["subject"], c["case"], c["dtype"]) for use in claims.values() for c in use.above] == []
        assert all(use.quantiles()[0] > 0.001 for use in claims.values())  # and none is slack
