"""Heat maps and histograms, of tensors whose errors one can place by hand."""

import numpy as np
import pytest

from parity.evidence import DIGITS, EDGES, attention


def seen(name, shape, errors, bound=1.0):
    """The evidence of a tensor of zeros but for errors, {index: its error}."""
    got = np.zeros(shape)
    for index, error in errors.items():
        got[index] = error
    return attention(name, got, np.zeros(shape), np.full(shape, bound))


def test_a_query_and_its_head_are_where_the_error_is():
    found = seen("out", (2, 3, 5, 4), {(1, 2, 3, 0): 0.5, (0, 0, 1, 3): 2.0, (1, 0, 1, 3): 0.02})
    assert found["heat"] == ["08000", "00000", "00070"]
    assert found["heat_of"] == [3, 5]
    assert found["histogram"] == [117, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "name, shape, where, heat",
    [
        ("lse", (2, 2, 3), (1, 1, 0), ["000", "700"]),
        ("lse", (3,), (2,), ["007"]),
        ("dk", (2, 1, 4, 2), (0, 0, 3, 1), ["0007"]),
        ("dv", (4, 2), (1, 0), ["0700"]),
        ("dbias", (1, 1, 3, 5), (0, 0, 2, 4), ["007"]),
        ("dbias", (5,), (4,), ["7"]),
        ("dsinks", (3,), (1,), ["0", "7", "0"]),
    ],
)
def test_each_tensor_has_its_own_axes(name, shape, where, heat):
    assert seen(name, shape, {where: 1.0})["heat"] == heat


def test_a_share_belongs_to_the_level_that_ends_with_it():
    shares = np.array([0.0, *EDGES, 1e9, np.nan])
    found = attention("lse", shares, np.zeros(len(shares)), np.ones(len(shares)))
    assert found["heat"] == [f"{DIGITS}b"]
    assert found["histogram"] == [1] * 11 + [2]


def test_what_no_bound_proves_is_a_dot_and_is_not_counted():
    bound = np.array([[1.0, np.inf], [np.nan, np.inf]])
    found = attention("lse", np.zeros((2, 2)), np.ones((2, 2)), bound)
    assert found["heat"] == ["7.", ".."]
    assert sum(found["histogram"]) == 1


def test_a_large_tensor_keeps_its_worst_and_its_size():
    found = seen("out", (1, 40, 1030, 1), {(0, 39, 1029, 0): np.inf})
    assert len(found["heat"]) <= 16
    assert {len(row) for row in found["heat"]} == {61}
    assert [row for row in found["heat"] if set(row) != {"0"}] == ["0" * 60 + "b"]
    assert found["heat"][-1][-1] == "b"
    assert found["heat_of"] == [40, 1030]


def test_a_tensor_without_elements_has_none():
    assert seen("out", (2, 3, 0, 4), {}) == {}
