"""The attention contract in float64 NumPy: output, log-sum-exp, weights and every gradient.

The truth of this project. Written from the formulae, it shares no code with the packages it judges. Each step
passes through a hook of `arithmetic`: EXACT leaves it as it is, parity.montecarlo perturbs it.

Axes: B batch, H kv heads, G query heads per kv head, Tq/Tk positions, D head size, Dv value size.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

Array = np.ndarray
NEG_INF = float("-inf")


class Exact:
    """float64 as it is: the places where an implementation rounds, left alone."""

    def matmul(self, x: Array, y: Array) -> Array:
        """x @ y: inner products, accumulated."""
        return x @ y

    def total(self, x: Array, axis) -> Array:
        """The sum over axis, kept with size 1."""
        return x.sum(axis, keepdims=True)

    def reduced(self, x: Array, axis) -> Array:
        """The sum over axis, kept with size 1, of a gradient that was broadcast."""
        return x.sum(axis, keepdims=True)

    def weight_gradient(self, x: Array, dy: Array) -> Array:
        """x^T dy, a result: (N, C), (N, F) -> (C, F)."""
        return x.T @ dy

    def computed(self, x: Array, roundings: float = 1.0) -> Array:
        """The result of so many elementwise operations in the accumulation dtype."""
        return x

    def function(self, x: Array) -> Array:
        """The result of exp, tanh or erf in the accumulation dtype."""
        return x

    def stored(self, x: Array) -> Array:
        """An intermediate written to memory between two operations."""
        return x

    def operand(self, x: Array) -> Array:
        """An intermediate on its way into a matrix product."""
        return x

    def output(self, x: Array) -> Array:
        """A result in the dtype of the inputs."""
        return x


EXACT = Exact()


@dataclass(frozen=True)
class Axes:
    """The axes of a call: as given, (*batch, Hq, T, X) or (T, X), and as computed, (B, H, G, T, X)."""

    batch: tuple[int, ...]
    heads: tuple[int, ...]  # (Hq,), or () without a head axis
    kv_heads: tuple[int, ...]
    Tq: int
    Tk: int

    @property
    def grouped(self) -> tuple[int, int, int]:
        """(B, H, G)"""
        H = math.prod(self.kv_heads)
        return math.prod(self.batch), H, math.prod(self.heads) // max(H, 1)

    def group_rows(self, x) -> Array:
        """(*batch, Hq, Tq, X) -> (B, H, G, Tq, X)"""
        x = np.asarray(x, np.float64)
        return x.reshape(*self.grouped, self.Tq, x.shape[-1])

    def group_keys(self, x) -> Array:
        """(*batch, Hkv, Tk, X) -> (B, H, 1, Tk, X)"""
        B, H, _ = self.grouped
        x = np.asarray(x, np.float64)
        return x.reshape(B, H, 1, self.Tk, x.shape[-1])

    def group_pairs(self, x) -> Array:
        """What broadcasts to (*batch, Hq, Tq, Tk) -> (B, H, G, Tq, Tk)"""
        full = (*self.batch, *self.heads, self.Tq, self.Tk)
        return np.broadcast_to(np.asarray(x), full).reshape(*self.grouped, self.Tq, self.Tk)

    def per_batch(self, x) -> Array:
        """An integer, or integers of shape batch -> (B | 1, 1, 1, 1, 1)"""
        return np.asarray(x, np.int64).reshape(-1, 1, 1, 1, 1)

    def rows(self, x: Array) -> Array:
        """(B, H, G, Tq, X) -> (*batch, Hq, Tq, X)"""
        return x.reshape(*self.batch, *self.heads, self.Tq, x.shape[-1])

    def keys(self, x: Array) -> Array:
        """(B, H, 1, Tk, X) -> (*batch, Hkv, Tk, X)"""
        return x.reshape(*self.batch, *self.kv_heads, self.Tk, x.shape[-1])


@dataclass(frozen=True)
class Call:
    """The inputs, grouped and resolved; zero where nothing is read.

    q (B, H, G, Tq, D), k (B, H, 1, Tk, D), v (B, H, 1, Tk, Dv), visible (B, H, G, Tq, Tk) bool, keep the same
    (0 or 1/(1 - dropout_p)) or (1,), sinks (1, H, G, 1, 1), bias as given.
    """

    axes: Axes
    q: Array
    k: Array
    v: Array
    scale: float
    softcap: float | None
    bias: Array | None
    sinks: Array | None
    visible: Array
    keep: Array


@dataclass(frozen=True)
class Forward:
    """Pairs (B, H, G, Tq, Tk): product q.k, capped tanh(scale q.k / softcap), scores (-inf where hidden), p
    their softmax. Rows (B, H, G, Tq, 1): peak the largest score, mass = sum exp(s - peak), lse, p_sink.
    out (B, H, G, Tq, Dv)."""

    product: Array
    capped: Array | None
    scores: Array
    peak: Array
    mass: Array
    lse: Array
    p: Array
    p_sink: Array
    out: Array


@dataclass(frozen=True)
class Backward:
    """Pairs: dp = keep * (dout.v), ds = p (dp - delta) the gradient of the final scores, dx of scale q.k.
    Rows: delta = sum p dp, ds_sink. dout as out, dq as q; dk_heads, dv_heads (B, H, G, Tk, D or Dv)."""

    dout: Array
    dp: Array
    delta: Array
    ds: Array
    ds_sink: Array
    dx: Array
    dq: Array
    dk_heads: Array
    dv_heads: Array


@dataclass(frozen=True)
class Oracle:
    """out (*batch, Hq, Tq, Dv), lse (*batch, Hq, Tq), weights (*batch, Hq, Tq, Tk) after dropout (no heads:
    (Tq, Dv), (Tq,), (Tq, Tk)). Gradients as what they belong to; None without dout, bias or sinks."""

    out: Array
    lse: Array
    weights: Array
    call: Call
    forward: Forward
    backward: Backward | None = None
    dq: Array | None = None
    dk: Array | None = None
    dv: Array | None = None
    dbias: Array | None = None
    dsinks: Array | None = None

    def vjp(self, dout, arithmetic=EXACT) -> "Oracle":
        """The same with every gradient, for a cotangent of out's shape."""
        reads = self.call.visible.any(-1, keepdims=True)
        dout = np.where(reads, self.call.axes.group_rows(dout), 0.0)
        bwd = backward(self.call, self.forward, dout, arithmetic)
        return replace(self, backward=bwd, **gradients(self.call, bwd, arithmetic))


def attention(
    q, k, v, dout=None, causal=False, *,
    mask=None, bias=None, scale=None, softcap=None, window=None, q_offset=0, q_lengths=None, kv_lengths=None,
    q_segment_ids=None, kv_segment_ids=None, sinks=None, dropout_p=0.0, dropout_seed=None, dropout_mask=None,
    arithmetic=EXACT,
) -> Oracle:  # fmt: skip
    """softmax(cap(scale q k^T) + bias, over the visible keys and the sink) v; with dout, all its gradients.

    q (*batch, Hq, Tq, D), k (*batch, Hkv, Tk, D), v (*batch, Hkv, Tk, Dv), dout as the output; (T, D) without
    heads. Keywords as in the contract. A key that no query reads and a query that reads no key may hold NaN;
    such a query gives output and gradients 0, lse -inf or the sink.
    Source: Vaswani et al. 2017, eq. 1. A sink is one more column, with value 0 (Xiao et al. 2023).
    """
    axes = Axes(np.shape(q)[:-3], np.shape(q)[-3:-2], np.shape(k)[-3:-2], np.shape(q)[-2], np.shape(k)[-2])
    q, k, v = axes.group_rows(q), axes.group_keys(k), axes.group_keys(v)
    visible = positions_visible(axes, causal, window, q_offset, q_lengths, kv_lengths)
    if q_segment_ids is not None:
        q_ids = np.reshape(q_segment_ids, (axes.grouped[0], 1, 1, axes.Tq, 1))
        visible = visible & (q_ids == np.reshape(kv_segment_ids, (axes.grouped[0], 1, 1, 1, axes.Tk)))
    if mask is not None:
        visible = visible & axes.group_pairs(mask)
    if bias is not None:
        bias = np.asarray(bias, np.float64)
        visible = visible & (axes.group_pairs(bias) != NEG_INF)
    if sinks is not None:
        sinks = np.asarray(sinks, np.float64).reshape(1, *axes.grouped[1:], 1, 1)
    visible = np.broadcast_to(visible, (*axes.grouped, axes.Tq, axes.Tk))
    reads = visible.any(-1, keepdims=True)  # (B, H, G, Tq, 1)
    read = np.any(visible, axis=(2, 3), keepdims=True).mT  # (B, H, 1, Tk, 1)
    scale = 1.0 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    keep = dropout_keep(axes, dropout_p, dropout_seed, dropout_mask)
    q, k, v = np.where(reads, q, 0.0), np.where(read, k, 0.0), np.where(read, v, 0.0)
    call = Call(axes, q, k, v, scale, softcap, bias, sinks, visible, keep)
    fwd = forward(call, arithmetic)
    oracle = Oracle(axes.rows(fwd.out), axes.rows(fwd.lse)[..., 0], axes.rows(fwd.p * keep), call, fwd)
    return oracle if dout is None else oracle.vjp(dout, arithmetic)


def positions_visible(axes: Axes, causal, window, q_offset, q_lengths, kv_lengths) -> Array:
    """What positions alone decide: causal, window, lengths. (B | 1, 1, 1, Tq, Tk) bool."""
    q_lengths = axes.per_batch(axes.Tq if q_lengths is None else q_lengths)
    kv_lengths = axes.per_batch(axes.Tk if kv_lengths is None else kv_lengths)
    bottom_right = isinstance(q_offset, str)
    offset = kv_lengths - q_lengths if bottom_right else axes.per_batch(q_offset)
    i, j = np.arange(axes.Tq)[:, None], np.arange(axes.Tk)
    left, right = window if isinstance(window, (tuple, list)) else (window, window)
    visible = (i < q_lengths) & (j < kv_lengths)
    if causal:
        visible = visible & (j <= i + offset)
    if left is not None:
        visible = visible & (j >= i + offset - left)
    if right is not None:
        visible = visible & (j <= i + offset + right)
    return visible


def pair_scores(call: Call, arithmetic) -> tuple[Array, Array | None, Array]:
    """q.k, the capped tanh, and the score scaled, capped, biased, -inf where hidden: (B, H, G, Tq, Tk)."""
    a = arithmetic
    product = a.matmul(a.stored(call.q), call.k.mT)
    scores, capped = a.stored(a.computed(call.scale * product)), None
    if call.softcap is not None:
        capped = a.stored(a.function(np.tanh(scores / call.softcap)))
        scores = a.stored(call.softcap * capped)
    if call.bias is not None:
        bias = np.where(call.visible, call.axes.group_pairs(call.bias), 0.0)
        scores = a.stored(a.computed(scores + bias))
    return product, capped, np.where(call.visible, scores, NEG_INF)


def forward(call: Call, arithmetic) -> Forward:
    """From scores to output. A sink takes part in the largest score and in the sum, and has no value."""
    a = arithmetic
    product, capped, scores = pair_scores(call, a)
    sink = NEG_INF if call.sinks is None else call.sinks
    peak = np.maximum(scores.max(-1, keepdims=True, initial=NEG_INF), sink)
    peak = np.where(peak == NEG_INF, 0.0, peak)  # of a row that sees nothing
    e = a.stored(a.function(np.exp(a.computed(scores) - a.computed(peak))))
    e_sink = a.function(np.exp(sink - peak))
    mass = a.total(e, -1) + e_sink  # (B, H, G, Tq, 1)
    with np.errstate(divide="ignore"):
        lse = a.computed(peak + np.log(mass))  # log 0: -inf
    mass = np.where(mass == 0.0, 1.0, mass)
    p = a.stored(a.computed(e / mass))
    out = a.output(a.computed(a.matmul(a.operand(p * call.keep), call.v)))
    return Forward(product, capped, scores, peak, mass, lse, p, e_sink / mass, out)


def backward(call: Call, fwd: Forward, dout: Array, arithmetic) -> Backward:
    """The vector-Jacobian product with dout, from p computed once more, as kernels that do not keep it do.

    dp = keep (dout v^T), delta = sum_j p dp = dout.out, ds = p (dp - delta), for the sink -p_sink delta;
    dx = ds (1 - tanh^2); dq = scale dx k, dk = scale dx^T q, dv = (p keep)^T dout.
    Source: Dao et al. 2022, appendix B.2.
    """
    a = arithmetic
    _, capped, scores = pair_scores(call, a)
    p = a.stored(a.function(np.exp(a.computed(scores) - a.computed(fwd.peak))) / fwd.mass)
    dp = a.stored(a.computed(a.matmul(dout, call.v.mT) * call.keep))
    delta = a.stored(a.total(dout * fwd.out, -1))
    ds = a.stored(a.computed(p * a.stored(dp - delta)))
    ds_sink = a.computed(-fwd.p_sink * delta, 2)
    dx = ds if capped is None else a.stored(a.computed(ds * (1.0 - capped * capped), 2))
    dx_operand = a.operand(dx)
    dq = a.output(call.scale * a.matmul(dx_operand, call.k))
    dk_heads = a.output(call.scale * a.matmul(dx_operand.mT, call.q))
    dv_heads = a.output(a.matmul(a.operand(p * call.keep).mT, dout))
    return Backward(dout, dp, delta, ds, ds_sink, dx, dq, dk_heads, dv_heads)


def gradients(call: Call, bwd: Backward, arithmetic) -> dict:
    """dq, dk, dv, and dbias, dsinks if there are such, in the shapes of what they belong to."""
    a, axes = arithmetic, call.axes
    dk, dv = (axes.keys(a.output(x.sum(2, keepdims=True))) for x in (bwd.dk_heads, bwd.dv_heads))
    found = {"dq": axes.rows(bwd.dq), "dk": dk, "dv": dv}
    if call.bias is not None:
        found["dbias"] = a.output(sum_to(axes.rows(bwd.ds), call.bias.shape))
    if call.sinks is not None:
        found["dsinks"] = a.output(a.reduced(bwd.ds_sink, (0, 3)).reshape(-1))
    return found


def sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The transpose of broadcasting: x summed over the axes along which an array of shape was repeated."""
    lead = x.ndim - len(shape)
    repeated = tuple(range(lead)) + tuple(lead + n for n, size in enumerate(shape) if size == 1)
    return x.sum(repeated, keepdims=True).reshape(shape)


def dropout_keep(axes: Axes, p: float, seed, mask) -> Array:
    """What multiplies each weight: 0, or 1/(1 - p) where it is kept. (B, H, G, Tq, Tk), or (1,) if p is 0.

    Without a mask: key words (seed, b * Hq + h), counter words (i, j); first word >= floor(p 2**32) keeps.
    """
    if p == 0.0:
        return np.ones(1)
    if mask is None:
        stream = np.arange(math.prod(axes.grouped), dtype=np.uint32).reshape(*axes.grouped, 1, 1)
        i, j = np.arange(axes.Tq, dtype=np.uint32)[:, None], np.arange(axes.Tk, dtype=np.uint32)
        word, _ = threefry2x32((int(seed), stream), (i, j))
        kept = word >= np.uint32(math.floor(p * 2.0**32))
    else:
        kept = axes.group_pairs(mask)
    return kept / (1.0 - p)


def threefry2x32(key: tuple, counter: tuple) -> tuple[Array, Array]:
    """Threefry-2x32, 20 rounds: two uint32 words for two key and two counter words, which broadcast.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; words as in Random123.
    """
    words = [np.asarray(word, np.uint32) for word in (*key, *counter)]
    k0, k1, x0, x1 = (word.copy() for word in np.broadcast_arrays(*words))
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    x0 += keys[0]
    x1 += keys[1]
    for n in range(20):
        left = (13, 15, 26, 6, 17, 29, 16, 24)[n % 8]
        x0 += x1
        x1 = ((x1 << np.uint32(left)) | (x1 >> np.uint32(32 - left))) ^ x0
        if n % 4 == 3:
            turn = n // 4 + 1
            x0 += keys[turn % 3]
            x1 += keys[(turn + 1) % 3]
            x1 += np.uint32(turn)
    return x0, x1
