"""The judgement, on tensors that one can see."""

import json
import math

import numpy as np
import pytest

from parity import bounds
from parity.claims import CLAIMS
from parity.oracle import attention
from parity.verdict import FAILED, NO_EVIDENCE, PASSED, judge, judge_all

REFERENCE = np.array([[1.0, -2.0], [3.0, -4.0]])
BOUND = np.full((2, 2), 0.125)


def judged(got, reference=REFERENCE, bound=BOUND, **more):
    return judge("out", np.array(got), np.array(reference), np.array(bound), **more)


def test_inside_is_passed_with_the_share_of_the_worst_element():
    found = judged([[1.0, -2.015625], [3.0625, -4.0]])
    assert (found.status, found.worst, found.expected, found.got, found.bound) == (
        PASSED,
        (1, 0),
        3.0,
        3.0625,
        0.125,
    )
    assert (found.max_share, found.p99_share, found.atol) == (0.5, 0.5, 0.0625)
    assert found.rtol * 3.0 == found.atol


def test_one_element_outside_is_failed():
    found = judged([[1.0, -2.0], [3.0, -4.25]])
    assert (found.status, found.worst, found.max_share) == (FAILED, (1, 1), 2.0)


def test_the_bound_itself_is_inside_and_a_bound_of_zero_wants_equality():
    assert judged([[1.0, -2.0], [3.0, -4.125]]).status == PASSED
    assert judged(REFERENCE, bound=0 * BOUND).status == PASSED
    assert judged(REFERENCE + 1e-300, np.zeros((2, 2)), 0 * BOUND).status == FAILED


@pytest.mark.parametrize("stray, counted", [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "inf")])
def test_what_is_not_finite_fails_and_is_counted_apart(stray, counted):
    found = judged([[stray, -2.0], [3.0, stray]])
    assert (found.status, found.max_share, found.worst) == (FAILED, math.inf, (0, 0))
    assert getattr(found, counted) == 2
    assert found.nan + found.inf == 2
    assert not found.atol  # of the finite ones


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_what_the_oracle_has_must_be_there(special):
    reference = [[special, -2.0], [3.0, -4.0]]
    assert judged(reference, reference).status == PASSED
    found = judged(REFERENCE, reference)
    assert (found.status, found.lost, found.nan, found.inf) == (FAILED, 1, 0, 0)
    assert judged([[-np.inf, -2.0], [3.0, -4.0]], [[np.inf, -2.0], [3.0, -4.0]]).status == FAILED


def test_another_shape_is_failed():
    found = judged([1.0, -2.0])
    assert (found.status, found.reason) == (FAILED, "shape (2,), wanted (2, 2)")


def test_no_elements_are_right():
    assert judged(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3))).status == PASSED


def test_bounds_that_prove_nothing_are_no_evidence():
    half, most = np.array([[np.inf, np.nan], [0.125, 0.125]]), np.array([[np.inf, np.nan], [np.inf, 0.125]])
    assert judged(REFERENCE, bound=half).status == PASSED
    assert judged(REFERENCE, bound=most).status == NO_EVIDENCE
    assert judged(REFERENCE, bound=most).vacuous == 0.75
    assert judged([[np.nan, np.inf], [7.0, -4.0]], bound=most).status == NO_EVIDENCE
    assert (
        judged([[np.nan, np.inf], [7.0, -4.2]], bound=most).status == FAILED
    )  # what proves something, proves it


def test_a_bound_is_small_against_the_size_of_what_it_bounds():
    """The spread of the reference, by default; for equal elements, their magnitude."""
    assert judged(REFERENCE, bound=0.2 * REFERENCE.std() + 0 * BOUND).status == PASSED
    assert judged(REFERENCE, bound=0.3 * REFERENCE.std() + 0 * BOUND).status == NO_EVIDENCE
    assert judged(7.0 + 0 * BOUND, 7.0 + 0 * BOUND).status == PASSED
    assert judged(REFERENCE, size=0.3).status == NO_EVIDENCE
    assert judged(REFERENCE, size=0.0).status == PASSED  # nothing but zero can come of such inputs


def test_a_pass_may_carry_a_warning():
    got = [[1.0, -2.0], [3.078125, -4.0]]  # 0.625 of the bound
    assert judged(got, warn_above=0.5).warn
    assert not judged(got, warn_above=0.7).warn
    assert not judged(got).warn


def test_a_run_fails_with_one_tensor_and_needs_one_that_passes():
    references, limits = {"out": REFERENCE, "dq": REFERENCE}, {"out": BOUND, "dq": BOUND * np.inf}
    found = judge_all({"out": REFERENCE, "dq": REFERENCE}, references, limits)
    assert (found.status, [tensor.status for tensor in found.tensors]) == (PASSED, [PASSED, NO_EVIDENCE])
    assert judge_all({"dq": REFERENCE}, references, limits).status == NO_EVIDENCE
    assert judge_all({}, references, limits).status == NO_EVIDENCE
    failed = judge_all({"out": REFERENCE + 1, "dq": REFERENCE}, references, limits)
    assert (failed.status, failed.worst.name) == (FAILED, "out")


def test_a_record_is_json():
    found = judge_all({"out": REFERENCE * np.nan}, {"out": REFERENCE}, {"out": BOUND})
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert record["status"] == FAILED
    assert record["tensors"][0]["worst"] == [0, 0]
    assert (record["tensors"][0]["max_share"], record["tensors"][0]["got"]) == ("inf", "nan")


def test_an_oracle_and_its_bounds():
    random = np.random.default_rng(0)
    q, k, v, dout = (random.standard_normal((3, 4, 8)) for _ in range(4))
    truth = attention(q, k, v, dout, causal=True)
    names = ("out", "lse", "dq", "dk", "dv")
    limits, sizes = bounds.attention(truth, CLAIMS["float32"]), bounds.sizes(truth)
    single = {name: getattr(truth, name).astype(np.float32) for name in names}
    half = {name: getattr(truth, name).astype(np.float16) for name in names}
    assert [t.status for t in judge_all(single, truth, limits, sizes).tensors] == [PASSED] * 5
    assert [t.status for t in judge_all(half, truth, limits, sizes).tensors] == [FAILED] * 5
