"""Which keys a tile of queries may read, and how many (query, key) pairs there are, from the bounds alone.

Rules as in visibility.Sight, for one row of the batch, with Python integers. Nothing is of size (Tq, Tk).
"""


def key_range(i0, i1, n_k, causal=False, window=None, q_offset=0):
    """(j0, j1) in [0, n_k) with every key that a query in [i0, i1) may read; j0 == j1 if there is none."""
    left, right = window or (None, None)
    if causal:
        right = 0 if right is None else min(right, 0)
    j0 = 0 if left is None else min(max(i0 + q_offset - left, 0), n_k)
    j1 = n_k if right is None else min(max(i1 - 1 + q_offset + right + 1, 0), n_k)
    return (j0, j1) if i0 < i1 and j0 < j1 else (j0, j0)


def visible_pairs(n_q, n_k, causal=False, window=None, q_offset=0, q_length=None, kv_length=None):
    """The exact number of (query, key) pairs that causal, window, offset and lengths leave, of n_q * n_k."""
    n_q = n_q if q_length is None else min(n_q, q_length)
    n_k = n_k if kv_length is None else min(n_k, kv_length)
    bounds = (key_range(i, i + 1, n_k, causal, window, q_offset) for i in range(n_q))
    return sum(j1 - j0 for j0, j1 in bounds)
