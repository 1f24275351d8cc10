"""Wrong calls of scaled_dot_product_attention, and what both packages say, which is the same: so one table.

A row changes one good call: q (2, 6, 5, 4), k (2, 2, 7, 4), v (2, 2, 7, 3), all float32.
"""

from typing import NamedTuple

import numpy as np


class Raw(NamedTuple):
    """An argument that reaches the package as it is; NumPy arrays otherwise become the framework's own."""

    x: object


def floats(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


def integers(*values):
    return np.array(values, "int32")


GOOD = {"q": floats(2, 6, 5, 4), "k": floats(2, 2, 7, 4), "v": floats(2, 2, 7, 3)}
ONES = {"q_segment_ids": np.ones((2, 5), "int32"), "kv_segment_ids": np.ones((2, 7), "int32")}
DTYPES = "float16, bfloat16, float32, float64"

BAD_CALLS = [
    ({"q": Raw([[1.0]])}, TypeError, "q: got list, wanted an array of this framework"),
    ({"k": Raw(floats(2, 2, 7, 4))}, TypeError, "k: got numpy.ndarray, wanted an array of this framework"),
    ({"q": Raw(None)}, TypeError, "q: got NoneType, wanted an array of this framework"),
    ({"q": integers(1, 2)}, TypeError, f"q: got dtype int32, wanted one of {DTYPES}"),
    ({"q": floats(4)}, ValueError, "q: got shape (4,), wanted (..., H, T, D) or (T, D)"),
    (
        {"k": floats(2, 2, 7, 4, dtype="float64")},
        TypeError,
        "k: got dtype float64, wanted float32, the dtype of q",
    ),
    ({"v": floats(2, 7, 3)}, ValueError, "v: got shape (2, 7, 3), wanted 4 axes like q, (2, 6, 5, 4)"),
    (
        {"k": floats(1, 2, 7, 4)},
        ValueError,
        "k: got shape (1, 2, 7, 4), wanted leading axes (2,) like q, (2, 6, 5, 4)",
    ),
    (
        {"k": floats(2, 2, 7, 3)},
        ValueError,
        "k: got shape (2, 2, 7, 3), wanted head size 4 like q, (2, 6, 5, 4)",
    ),
    (
        {"v": floats(2, 2, 8, 3)},
        ValueError,
        "v: got shape (2, 2, 8, 3), wanted (2, 2, 7, 'Dv') like k, (2, 2, 7, 4)",
    ),
    (
        {"v": floats(2, 3, 7, 3)},
        ValueError,
        "v: got shape (2, 3, 7, 3), wanted (2, 2, 7, 'Dv') like k, (2, 2, 7, 4)",
    ),
    (
        {"k": floats(2, 4, 7, 4), "v": floats(2, 4, 7, 3)},
        ValueError,
        "k: got 4 heads, wanted a divisor of the 6 heads of q",
    ),
    (
        {"k": floats(2, 0, 7, 4), "v": floats(2, 0, 7, 3)},
        ValueError,
        "k: got 0 heads, wanted a divisor of the 6 heads of q",
    ),
    ({"causal": 1}, TypeError, "causal: got int, wanted True or False"),
    ({"causal": "yes"}, TypeError, "causal: got str, wanted True or False"),
    (
        {"mask": floats(5, 7)},
        TypeError,
        "mask: got dtype float32, wanted bool, True = attend; what is added to the scores goes to bias=",
    ),
    ({"mask": np.ones((5, 7), "int32")}, TypeError, "mask: got dtype int32, wanted bool, True = attend"),
    ({"mask": Raw([[True]])}, TypeError, "mask: got list, wanted an array of this framework"),
    (
        {"mask": np.ones((5, 8), bool)},
        ValueError,
        "mask: got shape (5, 8), wanted one that broadcasts to the scores' (2, 6, 5, 7)",
    ),
    (
        {"mask": np.ones((1, 2, 6, 5, 7), bool)},
        ValueError,
        "mask: got shape (1, 2, 6, 5, 7), wanted one that broadcasts to the scores' (2, 6, 5, 7)",
    ),
    (
        {"bias": np.ones((5, 7), bool)},
        TypeError,
        "bias: got dtype bool, wanted float32; a boolean one goes to mask=",
    ),
    ({"bias": floats(5, 7, dtype="float64")}, TypeError, "bias: got dtype float64, wanted float32"),
    (
        {"bias": floats(2, 2, 5, 7)},
        ValueError,
        "bias: got shape (2, 2, 5, 7), wanted one that broadcasts to the scores' (2, 6, 5, 7)",
    ),
    ({"sinks": floats(2)}, ValueError, "sinks: got shape (2,), wanted (6,), a logit for each head of q"),
    ({"sinks": integers(*range(6))}, TypeError, "sinks: got dtype int32, wanted float32"),
    ({"scale": "1"}, TypeError, "scale: got str, wanted a number"),
    ({"scale": float("nan")}, ValueError, "scale: got nan, wanted a finite number"),
    (
        {"scale": 10**400},
        ValueError,
        "scale: got 10000000000000000000, wanted a finite number, of at most 1e+30",
    ),
    ({"softcap": 1e36}, ValueError, "softcap: got 1e+36, wanted a finite number above 0, of at most 1e+30"),
    ({"softcap": 0.0}, ValueError, "softcap: got 0.0, wanted a finite number above 0"),
    ({"softcap": True}, TypeError, "softcap: got bool, wanted a number"),
    ({"window": -1}, ValueError, "window: got -1, wanted nothing below 0; None leaves a side open"),
    ({"window": (2, -1)}, ValueError, "window: got (2, -1), wanted nothing below 0; None leaves a side open"),
    (
        {"window": 1.5},
        TypeError,
        "window: got 1.5, wanted an integer, or (left, right) of integers or None",
    ),
    (
        {"window": (1, 2, 3)},
        TypeError,
        "window: got (1, 2, 3), wanted an integer, or (left, right) of integers or None",
    ),
    (
        {"q_offset": "top_left"},
        ValueError,
        "q_offset: got 'top_left', wanted an integer, integers of shape (2,), or 'bottom_right'",
    ),
    ({"q_offset": 1.0}, TypeError, "q_offset: got float, wanted an integer or integers of shape (2,)"),
    (
        {"q_offset": integers(1, 2, 3)},
        ValueError,
        "q_offset: got shape (3,), wanted (2,), one for each row of the batch",
    ),
    (
        {"q_offset": 2**40},
        ValueError,
        f"q_offset: got {2**40}, wanted at least {-(2**29)} and at most {2**29}",
    ),
    ({"kv_lengths": floats(2)}, TypeError, "kv_lengths: got dtype float32, wanted integers"),
    ({"kv_lengths": integers(3, 8)}, ValueError, "kv_lengths: got 8, wanted at least 0 and at most 7"),
    ({"kv_lengths": 8}, ValueError, "kv_lengths: got 8, wanted at least 0 and at most 7"),
    ({"q_lengths": integers(-1, 5)}, ValueError, "q_lengths: got -1, wanted at least 0 and at most 5"),
    (
        {"q_lengths": Raw([5, 5])},
        TypeError,
        "q_lengths: got list, wanted an integer or integers of shape (2,)",
    ),
    (
        {"q_segment_ids": ONES["q_segment_ids"]},
        ValueError,
        "kv_segment_ids: got None, wanted segment ids, since q_segment_ids is given",
    ),
    (
        {"kv_segment_ids": ONES["kv_segment_ids"]},
        ValueError,
        "q_segment_ids: got None, wanted segment ids, since kv_segment_ids is given",
    ),
    (
        {"q_segment_ids": ONES["kv_segment_ids"], "kv_segment_ids": ONES["kv_segment_ids"]},
        ValueError,
        "q_segment_ids: got shape (2, 7), wanted (2, 5)",
    ),
    (
        {"q_segment_ids": floats(2, 5), "kv_segment_ids": floats(2, 7)},
        TypeError,
        "q_segment_ids: got dtype float32, wanted integers",
    ),
    (
        {"q_segment_ids": ONES["q_segment_ids"].astype("int8"), "kv_segment_ids": ONES["kv_segment_ids"]},
        TypeError,
        "kv_segment_ids: got dtype int32, wanted int8, the dtype of q_segment_ids",
    ),
    (
        {"dropout_p": 1.0, "dropout_seed": 0},
        ValueError,
        "dropout_p: got 1.0, wanted at least 0 and below 1",
    ),
    ({"dropout_p": None}, ValueError, "dropout_p: got None, wanted at least 0 and below 1"),
    (
        {"dropout_p": 0.5},
        ValueError,
        "dropout_seed: got neither dropout_seed nor dropout_mask, wanted one of the two with dropout_p > 0",
    ),
    (
        {"dropout_p": 0.5, "dropout_seed": 1, "dropout_mask": np.ones((5, 7), bool)},
        ValueError,
        "dropout_seed: got both dropout_seed and dropout_mask, wanted one of the two with dropout_p > 0",
    ),
    (
        {"dropout_mask": np.ones((5, 7), bool)},
        ValueError,
        "dropout_mask: got a mask with dropout_p = 0, wanted dropout_p above 0",
    ),
    (
        {"dropout_p": 0.5, "dropout_seed": -1},
        ValueError,
        f"dropout_seed: got -1, wanted at least 0 and at most {2**32 - 1}",
    ),
    (
        {"dropout_p": 0.5, "dropout_mask": floats(5, 7)},
        TypeError,
        "dropout_mask: got dtype float32, wanted bool, True = keep",
    ),
    (
        {"precision": "tf32"},
        ValueError,
        "precision: got 'tf32', wanted one of None, float32, tensorfloat32, bfloat16",
    ),
    (
        {"implementation": "flash"},
        ValueError,
        "implementation: got 'flash', wanted one of auto, reference, blockwise, fused",
    ),
    ({"return_lse": 1}, TypeError, "return_lse: got int, wanted True or False"),
]
