"""The bounds that tiles are skipped by, and the count of pairs, against masks that are written out."""

from itertools import product

import numpy as np
import pytest

from attn_torch.schedule import key_range, visible_pairs

RULES = [
    (causal, window, q_offset)
    for causal, window, q_offset in product(
        (False, True), (None, (0, 0), (2, 1), (None, 2), (3, None)), (-9, -3, 0, 1, 4, 12)
    )
]


def seen(n_q, n_k, causal, window, q_offset, q_length=None, kv_length=None):
    i, j = np.arange(n_q)[:, None] + q_offset, np.arange(n_k)
    left, right = window or (None, None)
    rules = [np.ones((n_q, n_k), bool)]
    rules += [j <= i] if causal else []
    rules += [] if left is None else [j >= i - left]
    rules += [] if right is None else [j <= i + right]
    rules += [] if q_length is None else [np.arange(n_q)[:, None] < q_length]
    rules += [] if kv_length is None else [j < kv_length]
    return np.logical_and.reduce(np.broadcast_arrays(*rules))


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_a_range_holds_every_visible_key_and_is_tight(rules):
    for n_q, n_k in ((5, 7), (7, 5), (1, 9), (6, 1)):
        visible = seen(n_q, n_k, *rules)
        for i0, i1 in product(range(n_q + 1), repeat=2):
            j0, j1 = key_range(i0, i1, n_k, *rules)
            columns = np.flatnonzero(visible[i0:i1].any(0))
            assert 0 <= j0 <= j1 <= n_k
            assert (j0, j1) == ((columns[0], columns[-1] + 1) if columns.size else (j0, j0))


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_pairs_are_counted_exactly(rules):
    for n_q, n_k in ((5, 7), (7, 5), (0, 3), (3, 0)):
        for lengths in ((None, None), (n_q // 2, None), (None, n_k // 2), (n_q, n_k)):
            assert visible_pairs(n_q, n_k, *rules, *lengths) == seen(n_q, n_k, *rules, *lengths).sum()
