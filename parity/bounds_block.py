"""How far a correct norm, activation or rotary may be from the oracle: output and gradients, by element.

The same analysis as in parity.bounds: roundings of a claim, pushed through the formula. What is judged is one
operation, from inputs that are exact; what is made of several is judged by parity.montecarlo.

Every function takes what parity.oracle_block's operation of that name takes, the cotangent dout and a claim,
and returns bounds by the names that parity.oracle_block.evaluate gives: out, dx, dgain, dbias.
"""

import math
from typing import NamedTuple

import numpy as np

from parity.bounds import finish, gamma
from parity.claims import Claim
from parity.oracle import Array
from parity.oracle_block import erf, evaluate, over_rows, pairs, sigmoid
from parity.oracle_block import rotary as exact_rotary


class Normalised(NamedTuple):
    """x_hat = (x - mean) r and r, with the absolute error of the first and the relative one of the second."""

    x_hat: Array
    error: Array
    r: Array
    r_error: Array


def mean(x: Array) -> Array:
    return x.mean(-1, keepdims=True)


def normalised(x: Array, centred: bool, eps: float, claim: Claim) -> Normalised:
    """Of x less its mean, or of x itself.

    var~ = var + (error of the mean)^2, as deviations from the mean sum to 0, and the error of its own sum.
    Made as E[x^2] - E[x]^2 it has the errors of both, which are of their size and not of their difference.
    x_hat may be made as (x - mean) r or as x r - mean r.
    """
    u, u_store, sums = claim.u_acc, claim.u_store, gamma(x.shape[-1], claim.u_acc)
    centre = mean(x) if centred else np.zeros(1)
    centre_error = sums * mean(np.abs(x)) + u * np.abs(centre) if centred else np.zeros(1)
    moved = centre_error + u * (np.abs(x) + np.abs(centre)) if centred else np.zeros(1)
    z = x - centre
    var = mean(z * z)
    var_error = (sums + 4 * u + 2 * u_store) * var + centre_error**2
    if claim.one_pass and centred:
        var_error = var_error + (sums + 4 * u) * (mean(x * x) + centre**2) + 2 * np.abs(centre) * centre_error
    r = 1.0 / np.sqrt(var + eps)
    relative = np.minimum(var_error * r * r + 2 * u, 1.0 - 1e-9)
    r_error = (1.0 - relative) ** -0.5 - 1.0 + 3 * u
    error = np.abs(z * r) * (r_error + 2 * u + u_store) + r * (1.0 + r_error) * moved
    return Normalised(z * r, error, r, r_error)


def layer_norm(x, gain, bias, dout, claim: Claim, eps=1e-5) -> dict[str, Array]:
    """dx = r (a - mean(a) - x_hat mean(a x_hat)), a = dout gain."""
    u, u_store, sums = claim.u_acc, claim.u_store, gamma(x.shape[-1], claim.u_acc)
    centre, a = np.abs(mean(x)), dout * gain
    n = normalised(x, True, eps, claim)
    bounds = affine(n, gain, bias, dout, claim)
    along, along_error = projection(n, a, claim)
    size, x_hat, level = np.abs(a), np.abs(n.x_hat), np.abs(mean(a))
    inner = (u + u_store) * size + (sums + u) * mean(size)
    if claim.one_pass:  # mean(a x_hat) from E[a x] - E[a] E[x], and x_hat times it from x and E[x] apart
        sums_error = sums * (mean(size * np.abs(x)) + centre * mean(size) + level * mean(np.abs(x)))
        along_error = along_error + n.r * sums_error
        inner = inner + u * n.r * along * (np.abs(x) + centre)
    inner = inner + x_hat * along_error + n.error * (along + along_error)
    inner = inner + (3 * u + u_store) * (size + level + x_hat * along)
    dx = n.r * (a - mean(a) - n.x_hat * mean(a * n.x_hat))
    bounds["dx"] = finish(claim, dx, n.r * (1.0 + n.r_error) * inner + n.r_error * np.abs(dx))
    return bounds


def rms_norm(x, gain, dout, claim: Claim, eps=1e-6, offset=0.0) -> dict[str, Array]:
    """dx = r (a - x_hat mean(a x_hat)), a = dout (offset + gain)."""
    u, u_store = claim.u_acc, claim.u_store
    n = normalised(x, False, eps, claim)
    a = dout * (offset + gain)
    bounds = affine(n, offset + gain, np.zeros(1), dout, claim)
    del bounds["dbias"]
    along, along_error = projection(n, a, claim)
    inner = (2 * u + u_store) * np.abs(a) + np.abs(n.x_hat) * along_error + n.error * (along + along_error)
    inner = inner + (3 * u + u_store) * (np.abs(a) + np.abs(n.x_hat) * along)
    dx = n.r * (a - n.x_hat * mean(a * n.x_hat))
    bounds["dx"] = finish(claim, dx, n.r * (1.0 + n.r_error) * inner + n.r_error * np.abs(dx))
    return bounds


def projection(n: Normalised, a: Array, claim: Claim) -> tuple[Array, Array]:
    """|mean(a x_hat)|, the part of a along x_hat, and its error."""
    per_term = gamma(a.shape[-1], claim.u_acc) + 3 * claim.u_acc + claim.u_store
    error = mean(np.abs(a) * n.error) + per_term * mean(np.abs(a * n.x_hat))
    return np.abs(mean(a * n.x_hat)), error


def affine(n: Normalised, gain: Array, bias: Array, dout: Array, claim: Claim) -> dict[str, Array]:
    """Bounds of x_hat gain + bias, and of the gradients of gain and bias: sums over all rows."""
    u, scaled = claim.u_acc, np.abs(n.x_hat * gain)
    error = np.abs(gain) * n.error + (2 * u + claim.u_store) * scaled + u * np.abs(n.x_hat * gain + bias)
    rows = gamma(math.prod(dout.shape[:-1]), claim.u_reduce)
    dgain = np.abs(dout) * n.error + (rows + u + claim.u_store) * np.abs(dout * n.x_hat)
    return {
        "out": finish(claim, n.x_hat * gain + bias, error),
        "dgain": finish(claim, over_rows(dout * n.x_hat).sum(0), over_rows(dgain).sum(0)),
        "dbias": finish(claim, over_rows(dout).sum(0), rows * np.abs(over_rows(dout)).sum(0)),
    }


def pointwise(dout, claim: Claim, value, value_error, slope, slope_error) -> dict[str, Array]:
    """Bounds of an activation from its value and slope and their errors, but for their own roundings."""
    slope_error = slope_error + (claim.u_acc + 2 * claim.u_store) * (1.0 + np.abs(slope))
    dx = np.abs(dout) * (slope_error + claim.eta) + (claim.u_acc + claim.u_store) * np.abs(dout * slope)
    return {"out": finish(claim, value, value_error), "dx": finish(claim, dout * slope, dx)}


def gelu(x, dout, claim: Claim) -> dict[str, Array]:
    """Phi = (1 + erf) / 2 has an absolute error where 1 + erf cancels; the rounding of x / sqrt(2) counts
    most in the tail, where it is amplified by x^2."""
    u, u_store, size = claim.u_acc, claim.u_store, np.abs(x)
    cdf, pdf = 0.5 * (1.0 + erf(x / math.sqrt(2.0))), np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    argument = (2 * u + u_store) * size * pdf * np.exp(np.minimum(2 * x * x * (2 * u + u_store), 50.0))
    cdf_error = 0.5 * claim.u_function + u + argument
    value_error = size * cdf_error + (2 * u + 3 * u_store) * np.abs(x * cdf)
    pdf_error = (claim.u_function + (x * x + 3) * u + (2 * x * x + 4) * u_store) * pdf
    slope_error = cdf_error + size * (pdf_error + (u + 2 * u_store) * pdf + claim.eta)
    return pointwise(dout, claim, x * cdf, value_error, cdf + x * pdf, slope_error)


def gelu_tanh(x, dout, claim: Claim) -> dict[str, Array]:
    """As gelu, but 1 + tanh is what cancels, and all of tanh's argument is rounded."""
    u, u_store, size = claim.u_acc, claim.u_store, np.abs(x)
    root = math.sqrt(2.0 / math.pi)
    z = root * (size + 0.044715 * size**3)
    z_error = (5 * u + 4 * u_store) * z
    t, z_slope = np.tanh(z), root * (1.0 + 3.0 * 0.044715 * x * x)
    steepest = 1.0 / np.cosh(np.clip(z - z_error, 0.0, 300.0)) ** 2
    t_error = steepest * z_error + claim.u_function + u + u_store
    signed = np.copysign(t, x)
    value_error = 0.5 * size * t_error + (2 * u + 2 * u_store) * np.abs(0.5 * x * (1.0 + signed))
    rounding = 2 * u + (4 * u + 3 * u_store) * (1.0 - t * t)
    slope_error = 0.5 * t_error + 0.5 * size * z_slope * ((2 * t + t_error) * t_error + rounding)
    slope = 0.5 * (1.0 + signed) + 0.5 * x * (1.0 - t * t) * z_slope
    return pointwise(dout, claim, 0.5 * x * (1.0 + signed), value_error, slope, slope_error)


def silu(x, dout, claim: Claim) -> dict[str, Array]:
    """The sigmoid has a relative error: nothing cancels in it."""
    u, u_store, size = claim.u_acc, claim.u_store, np.abs(x)
    s = sigmoid(x)
    s_error = s * (claim.u_function + 3 * u + u_store) + claim.eta
    value_error = size * s_error + (u + u_store) * np.abs(x * s)
    inner = 1.0 + size * (1.0 - s)
    slope_error = s_error * inner + s * (size * (s_error + u) + 3 * (u + u_store) * inner)
    return pointwise(dout, claim, x * s, value_error, s * (1.0 + x * (1.0 - s)), slope_error)


def relu(x, dout, claim: Claim) -> dict[str, Array]:
    """Nothing is rounded."""
    return {"out": np.zeros(x.shape), "dx": np.zeros(x.shape)}


def rotary(
    x, positions, dout, claim: Claim, theta=10000.0, rotary_dim=None, interleaved=False
) -> dict[str, Array]:
    """The angle is a position times a power, which exp and log may make; of it come cos and sin, stored."""
    d = x.shape[-1] if rotary_dim is None else rotary_dim
    log = np.arange(0, d, 2) / d * math.log(theta)
    angle = np.abs(positions)[..., None] * np.exp(-log)
    per_channel = claim.u_acc * angle * (2.0 + log) + claim.u_function + 2 * claim.u_acc + 2 * claim.u_store
    options = {"positions": positions, "theta": theta, "rotary_dim": rotary_dim, "interleaved": interleaved}
    exact = evaluate(exact_rotary, {"x": x}, dout, **options)
    bounds, (first, second) = {}, pairs(d, interleaved)
    for name, given in (("out", x), ("dx", dout)):
        error = per_channel * (np.abs(given[..., first]) + np.abs(given[..., second]))
        bound = np.zeros(x.shape)  # channels from d on are copied
        for half in (first, second):
            bound[..., half] = finish(claim, exact[name][..., half], error)
        bounds[name] = bound
    return bounds
