"""What a call of attention must look like, and what is said if it does not: on shapes and dtype names alone.

Every message names the argument, what was got and what was wanted. Nothing here knows a framework.
"""

from numbers import Integral, Real
from typing import NamedTuple

ARITHMETIC = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
PRECISIONS = (None, "float32", "tensorfloat32", "bfloat16")
LARGEST = 1e30  # of a scale or a cap: float32 holds it, its reciprocal and their products
FURTHEST = 2**29  # of an offset: positions, with a window added, are 32-bit


class Spec(NamedTuple):
    """An array, as far as a check looks at it. low, high: its extremes, if they can be read at once."""

    shape: tuple
    dtype: str
    low: int | None = None
    high: int | None = None


def attention(
    q,
    k,
    v,
    causal,
    *,
    mask,
    bias,
    scale,
    softcap,
    window,
    q_offset,
    q_lengths,
    kv_lengths,
    q_segment_ids,
    kv_segment_ids,
    sinks,
    dropout_p,
    dropout_seed,
    dropout_mask,
    precision,
    return_lse,
    return_weights,
    implementation,
    implementations,
):
    """Raise TypeError or ValueError unless scaled_dot_product_attention can take these arguments.

    Arrays come as Spec, everything else as it was given. implementations: the names there are.
    """
    batch, Hq, Tq, Tk = _qkv(q, k, v)
    scores = (*batch, Hq, Tq, Tk)[-max(len(q.shape), 2) :]
    for name, x in (("causal", causal), ("return_lse", return_lse), ("return_weights", return_weights)):
        flag(name, x)
    _mask("mask", mask, scores, "True = attend", hint="; what is added to the scores goes to bias=")
    _bias(bias, scores, q.dtype)
    number("scale", scale)
    number("softcap", softcap, positive=True)
    window_sides(window)
    if not isinstance(q_offset, str):
        per_row("q_offset", q_offset, batch, -FURTHEST, FURTHEST)
    elif q_offset != "bottom_right":
        raise ValueError(
            f"q_offset: got {q_offset!r}, wanted an integer, integers of shape {batch}, or 'bottom_right'"
        )
    per_row("q_lengths", 0 if q_lengths is None else q_lengths, batch, 0, Tq)
    per_row("kv_lengths", 0 if kv_lengths is None else kv_lengths, batch, 0, Tk)
    _segments(q_segment_ids, kv_segment_ids, batch, Tq, Tk)
    _sinks(sinks, Hq, q.dtype)
    _mask("dropout_mask", dropout_mask, scores, "True = keep")
    _dropout(dropout_p, dropout_seed, dropout_mask)
    one_of("precision", precision, PRECISIONS)
    one_of("implementation", implementation, implementations)


def _qkv(q, k, v):
    for name, x in (("q", q), ("k", k), ("v", v)):
        array(name, x)
        if x.dtype not in ARITHMETIC:
            raise TypeError(f"{name}: got dtype {x.dtype}, wanted one of {', '.join(ARITHMETIC)}")
        if len(x.shape) < 2:
            raise ValueError(f"{name}: got shape {x.shape}, wanted (..., H, T, D) or (T, D)")
        if x.dtype != q.dtype:
            raise TypeError(f"{name}: got dtype {x.dtype}, wanted {q.dtype}, the dtype of q")
        if len(x.shape) != len(q.shape):
            raise ValueError(f"{name}: got shape {x.shape}, wanted {len(q.shape)} axes like q, {q.shape}")
        if x.shape[:-3] != q.shape[:-3]:
            raise ValueError(
                f"{name}: got shape {x.shape}, wanted leading axes {q.shape[:-3]} like q, {q.shape}"
            )
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k: got shape {k.shape}, wanted head size {q.shape[-1]} like q, {q.shape}")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v: got shape {v.shape}, wanted {(*k.shape[:-1], 'Dv')} like k, {k.shape}")
    Hq, Hkv = (x.shape[-3] if len(x.shape) > 2 else 1 for x in (q, k))
    if Hq % Hkv if Hkv else Hq:
        raise ValueError(f"k: got {Hkv} heads, wanted a divisor of the {Hq} heads of q")
    return q.shape[:-3], Hq, q.shape[-2], k.shape[-2]


def array(name, x):
    """Raise TypeError unless x is a Spec."""
    if not isinstance(x, Spec):
        raise TypeError(f"{name}: got {kind_of(x)}, wanted an array of this framework")


def kind_of(x):
    kind = type(x)
    return (
        kind.__name__
        if kind.__module__ == "builtins"
        else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    )


def flag(name, x):
    if not isinstance(x, bool):
        raise TypeError(f"{name}: got {kind_of(x)}, wanted True or False")


def _broadcastable(name, x, scores):
    if len(x.shape) > len(scores) or any(
        n not in (1, m) for n, m in zip(x.shape[::-1], scores[::-1], strict=False)
    ):
        raise ValueError(f"{name}: got shape {x.shape}, wanted one that broadcasts to the scores' {scores}")


def _mask(name, x, scores, meaning, hint=""):
    if x is None:
        return
    array(name, x)
    if x.dtype != "bool":
        raise TypeError(
            f"{name}: got dtype {x.dtype}, wanted bool, {meaning}{hint if x.dtype in ARITHMETIC else ''}"
        )
    _broadcastable(name, x, scores)


def _wide(name, x, dtype):
    array(name, x)
    if x.dtype not in (dtype, ARITHMETIC[dtype]):
        wanted = " or ".join(dict.fromkeys((dtype, ARITHMETIC[dtype])))
        hint = "; a boolean one goes to mask=" if name == "bias" and x.dtype == "bool" else ""
        raise TypeError(f"{name}: got dtype {x.dtype}, wanted {wanted}{hint}")


def _bias(x, scores, dtype):
    if x is not None:
        _wide("bias", x, dtype)
        _broadcastable("bias", x, scores)


def _sinks(x, Hq, dtype):
    if x is not None:
        _wide("sinks", x, dtype)
        if x.shape != (Hq,):
            raise ValueError(f"sinks: got shape {x.shape}, wanted {(Hq,)}, a logit for each head of q")


def number(name, x, positive=False):
    if x is None:
        return
    if not isinstance(x, Real) or isinstance(x, bool):
        raise TypeError(f"{name}: got {kind_of(x)}, wanted a number")
    value = x if isinstance(x, int) else float(x)
    if not -LARGEST <= value <= LARGEST or (positive and value <= 0):
        above = " above 0" if positive else ""
        raise ValueError(f"{name}: got {str(x)[:20]}, wanted a finite number{above}, of at most {LARGEST:g}")


def epsilon(eps):
    """What a norm adds to a variance."""
    if eps is None:
        raise TypeError("eps: got NoneType, wanted a number")
    number("eps", eps)
    if eps < 0:
        raise ValueError(f"eps: got {eps}, wanted at least 0")


def is_integer(x):
    return isinstance(x, Integral) and not isinstance(x, bool)


def above_zero(name, n):
    if not is_integer(n) or n < 1:
        raise ValueError(f"{name}: got {n!r}, wanted an integer above 0")


def window_sides(window):
    sides = window if isinstance(window, (tuple, list)) else (window, window)
    if len(sides) != 2 or not all(side is None or is_integer(side) for side in sides):
        raise TypeError(f"window: got {window!r}, wanted an integer, or (left, right) of integers or None")
    if any(side is not None and side < 0 for side in sides):
        raise ValueError(f"window: got {window!r}, wanted nothing below 0; None leaves a side open")


def per_row(name, x, batch, low, high):
    if is_integer(x):
        least = most = x
    elif isinstance(x, Spec):
        least, most = x.low, x.high
        if x.dtype not in INTEGERS:
            raise TypeError(f"{name}: got dtype {x.dtype}, wanted integers")
        if x.shape != batch:
            raise ValueError(f"{name}: got shape {x.shape}, wanted {batch}, one for each row of the batch")
    else:
        raise TypeError(f"{name}: got {kind_of(x)}, wanted an integer or integers of shape {batch}")
    if least is not None and not low <= least <= most <= high:
        raise ValueError(
            f"{name}: got {least if least < low else most}, wanted at least {low} and at most {high}"
        )


def _segments(q_ids, kv_ids, batch, Tq, Tk):
    if (q_ids is None) != (kv_ids is None):
        given, missing = (
            ("kv_segment_ids", "q_segment_ids") if q_ids is None else ("q_segment_ids", "kv_segment_ids")
        )
        raise ValueError(f"{missing}: got None, wanted segment ids, since {given} is given")
    for name, x, T in (("q_segment_ids", q_ids, Tq), ("kv_segment_ids", kv_ids, Tk)):
        if x is None:
            continue
        array(name, x)
        if x.dtype not in INTEGERS:
            raise TypeError(f"{name}: got dtype {x.dtype}, wanted integers")
        if x.shape != (*batch, T):
            raise ValueError(f"{name}: got shape {x.shape}, wanted {(*batch, T)}")
    if q_ids is not None and q_ids.dtype != kv_ids.dtype:
        raise TypeError(
            f"kv_segment_ids: got dtype {kv_ids.dtype}, wanted {q_ids.dtype}, the dtype of q_segment_ids"
        )


def seed(x, name="dropout_seed"):
    per_row(name, x, (), 0, 2**32 - 1)


def _dropout(dropout_p, dropout_seed, dropout_mask):
    number("dropout_p", dropout_p)
    if dropout_p is None or not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p: got {dropout_p}, wanted at least 0 and below 1")
    if dropout_seed is not None:
        seed(dropout_seed)
    if dropout_p > 0 and (dropout_seed is None) == (dropout_mask is None):
        got = "neither dropout_seed nor" if dropout_mask is None else "both dropout_seed and"
        raise ValueError(f"dropout_seed: got {got} dropout_mask, wanted one of the two with dropout_p > 0")
    if dropout_p == 0 and dropout_mask is not None:
        raise ValueError("dropout_mask: got a mask with dropout_p = 0, wanted dropout_p above 0")


def one_of(name, x, choices):
    if x not in choices:
        raise ValueError(f"{name}: got {x!r}, wanted one of {', '.join(map(str, choices))}")
