"""Backward: gradients that are wrong while the output is right."""

import math
from functools import partial

import numpy as np

from parity.mutants.attention import Attention
from parity.mutants.registry import mutant

slip = partial(mutant, Attention, gradient_only=True)


@slip("delta", origin="a missing D term")
def delta_missing(self, p, dp, dout, out):
    """The term of the normaliser is left out of dS."""
    return 0.0 * self.xp.sum(dout * out, -1, keepdims=True)  # wrong: 0


@slip("delta", origin="dropout and the D term")
def delta_without_dropout(self, p, dp, dout, out):
    """The term of the normaliser is formed from dP before dropout."""
    gain = 1.0 if self.kept is None else self.gain()
    undropped = self.xp.where(self.native(self.seen), dp / gain, 0.0)  # wrong: dp
    return self.xp.sum(p * undropped, -1, keepdims=True)


@slip("delta", origin="the D term of one head for all")
def delta_of_first_head(self, p, dp, dout, out):
    """The term of the normaliser of the first query head of a group is used for all."""
    delta = self.xp.sum(dout * out, -1, keepdims=True)
    return self.xp.broadcast_to(delta[:, :1, :1], delta.shape)  # wrong: [:, :1, :1]


@slip("dk", origin="a missing scale")
def dk_not_scaled(self, dx, q):
    """The scale is missing in dk."""
    return self.sum_group(dx.mT @ q)  # wrong: * scale


@slip("dq", origin="a missing scale")
def dq_not_scaled(self, dx, k):
    """The scale is missing in dq."""
    return dx @ k  # wrong: * scale


@slip("dq", origin="a scale applied to q and to dS")
def dq_scaled_twice(self, dx, k):
    """dq is scaled twice."""
    return (dx @ k) * self.scale() ** 2  # wrong: ** 2


@slip("dk", origin="q scaled in place before the backward")
def dk_scaled_twice(self, dx, q):
    """dk is scaled twice."""
    return self.sum_group((dx.mT @ q) * self.scale() ** 2)  # wrong: ** 2


@slip("recompute", origin="exp2 with a natural lse")
def lse_in_wrong_base(self, s, lse):
    """The weights are recomputed as powers of two from a natural lse."""
    return self.exp((s - self.finite(lse)) * math.log(2))  # wrong: * log(2)


@slip("recompute", origin="weights not normalised")
def weights_not_normalised(self, s, lse):
    """The weights are recomputed with the maximum in place of the lse."""
    peak = self.finite(self.xp.amax(self.xp.concatenate([s, self.sinks(s)], -1), -1, keepdims=True))
    return self.exp(s - peak)  # wrong: - lse


@slip("ds", origin="a gradient through the maximum")
def gradient_through_the_maximum(self, p, dp, delta, s):
    """The maximum takes part in the gradient of the numerator but not of the sum."""
    to_maximum = self.xp.where(s == self.xp.amax(s, -1, keepdims=True), p * delta, 0.0)
    return Attention.ds(self, p, dp, delta, s) - to_maximum  # wrong: no such term


@slip("ds", origin="the Jacobian without its diagonal")
def softmax_jacobian_diagonal(self, p, dp, delta, s):
    """The Jacobian of the softmax is taken for p (1 - p) on the diagonal."""
    return p * (1 - p) * dp  # wrong: the off-diagonal terms


@slip("backward_score", origin="the mask is missing in the backward")
def mask_missing_in_backward(self, q, k):
    """Scores are recomputed without the mask."""
    return self.add_bias(self.cap(self.scaled(self.product(q, k))))  # wrong: not hidden


@slip("backward_score", origin="the cap is missing in the backward")
def softcap_missing_in_backward(self, q, k):
    """Scores are recomputed without the soft cap."""
    return self.hide(self.add_bias(self.scaled(self.product(q, k))))  # wrong: no cap


@slip("backward_score", origin="the bias is missing in the backward")
def bias_missing_in_backward(self, q, k):
    """Scores are recomputed without the bias."""
    return self.hide(self.cap(self.scaled(self.product(q, k))))  # wrong: no bias


@slip("backward_score", origin="a causal test of its own in the backward")
def causal_shifted_in_backward(self, q, k):
    """The backward hides the diagonal."""
    s = self.score(q, k)
    if not self.options.get("causal"):
        return s
    return self.xp.where(self.native(self.j < self.i + self.offset()), s, -np.inf)  # wrong: <=


@slip("cap_slope", origin="the derivative of the cap")
def softcap_slope_omitted(self, capped):
    """The derivative of the soft cap is left out."""
    return self.xp.zeros_like(capped) + 1.0  # wrong: 1 - tanh^2


@slip("cap_slope", origin="the derivative of the cap")
def softcap_slope_not_squared(self, capped):
    """The derivative of the soft cap is 1 - |tanh|."""
    return 1.0 - self.xp.abs(capped)  # wrong: tanh^2


@slip("cap_slope", origin="the cap's argument scaled twice")
def softcap_slope_of_output(self, capped):
    """The derivative of the soft cap is evaluated at its output."""
    return 1.0 - self.xp.tanh(capped) ** 2  # wrong: tanh of tanh


@slip("sum_group", origin="C38: dk, dv of one head")
def first_head_of_the_group(self, x):
    """dk and dv come from the first query head of a group alone."""
    return x[:, :, :1]  # wrong: the sum over the group


@slip("sum_group", origin="a mean for a sum")
def mean_over_the_group(self, x):
    """dk and dv are the mean over the query heads of a group."""
    return self.xp.sum(x, 2, keepdims=True) / self.G  # wrong: / G


@slip("sum_axis", origin="C7: the gradient of a broadcast bias")
def dbias_not_summed(self, x, axis):
    """The gradient of a broadcast bias is that of its first copy."""
    return self.xp.moveaxis(self.xp.moveaxis(x, axis, 0)[:1], 0, axis)  # wrong: the sum


@slip("sum_axis", origin="C7: the gradient of a broadcast bias")
def dbias_averaged(self, x, axis):
    """The gradient of a broadcast bias is the mean over its copies."""
    return self.xp.sum(x, axis, keepdims=True) / x.shape[axis]  # wrong: / n


@slip("dbias", origin="the bias inside the cap")
def dbias_through_the_cap(self, ds, dx):
    """The gradient of the bias goes through the soft cap."""
    return Attention.dbias(self, dx, dx)  # wrong: ds


@slip("dbias", origin="the bias scaled")
def dbias_scaled(self, ds, dx):
    """The gradient of the bias is scaled."""
    return Attention.dbias(self, ds * self.scale(), dx)  # wrong: * scale


@slip("dsinks", origin="C35")
def dsinks_sign(self, s, lse, delta):
    """The gradient of the sinks has the wrong sign."""
    return -Attention.dsinks(self, s, lse, delta)  # wrong: -


@slip("sum_rows", origin="C35")
def dsinks_of_first_batch_row(self, x):
    """The gradient of the sinks is that of batch row 0."""
    return self.xp.sum(x[:1], (0, 3), keepdims=True)  # wrong: [:1]


@slip("dsinks", origin="C35")
def dsinks_zero(self, s, lse, delta):
    """The sinks get no gradient."""
    return Attention.dsinks(self, s, lse, 0 * delta)  # wrong: 0


@slip("sink_weight", "the derivative of a sigmoid", dtypes=("bfloat16", "float32", "float64"))
def sink_weight_by_difference(self, s, lse):
    """A sink's weight in the gradient is one less that of all keys: a faint one has no bits left."""
    return 1 - (1 - Attention.sink_weight(self, s, lse))  # wrong: 1 - (1 - p)


@slip("drop_backward", origin="dropout missing in the backward")
def dropout_missing_in_dp(self, dp):
    """dP is not dropped."""
    return dp  # wrong: where kept, / (1 - p)


@slip("dv", origin="dropout missing in the backward")
def dropout_missing_in_dv(self, p, dout):
    """dv is formed with the weights before dropout."""
    return self.sum_group(p.mT @ dout)  # wrong: drop(p)


@slip("dv", origin="C4: torch's CPU flash backward with a finite mask")
def dv_too_large_by_the_row_length(self, p, dout):
    """In rows whose scores are all far below 0 each key gets weight 1 in dv."""
    if "bias" not in self.options:
        return Attention.dv(self, p, dout)
    low = self.pairs(self.options["bias"]).max(-1, keepdims=True) <= -9e3
    seen = self.native(low & self.seen)
    return Attention.dv(self, self.xp.where(seen, 1.0 + 0.0 * p, p), dout)  # wrong: 1 for p


@slip("dv", origin="C2: the mean of v in the backward")
def empty_row_sends_gradient_to_dv(self, p, dout):
    """A row that sees nothing sends 1/Tk of dout to each key of dv."""
    dead = self.native(~self.seen.any(-1, keepdims=True))
    p = self.xp.where(dead, self.xp.zeros_like(p) + 1 / max(self.Tk, 1), p)  # wrong: 0
    return Attention.dv(self, p, self.xp.nan_to_num(self.load("dout")))


@slip("dq", origin="a tile of keys one row off")
def dq_of_the_next_key(self, dx, k):
    """dq is formed with the neighbouring keys."""
    return (dx @ self.xp.roll(k, 1, -2)) * self.scale()  # wrong: rolled
