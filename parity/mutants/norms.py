"""Norms, GELU and rotary positions: the layers around attention, each alone."""

import math

import numpy as np

from parity.inputs import round_to
from parity.mutants.arrays import coarse
from parity.mutants.layers import Gelu, LayerNorm, RMSNorm, Rotary
from parity.mutants.registry import mutant

# ---- layer_norm


@mutant(LayerNorm, "inverse_root", origin="eps outside the root")
def layer_norm_eps_outside(self, var):
    """eps is added to the standard deviation."""
    return 1 / (self.xp.sqrt(var) + self.eps())  # wrong: inside the root


@mutant(LayerNorm, "inverse_root", origin="eps squared")
def layer_norm_eps_squared(self, var):
    """eps is added squared."""
    return 1 / self.xp.sqrt(var + self.eps() ** 2)  # wrong: eps


@mutant(LayerNorm, "inverse_root", origin="eps omitted")
def layer_norm_eps_omitted(self, var):
    """There is no eps: constant rows give NaN."""
    return 1 / self.xp.sqrt(var)  # wrong: + eps


@mutant(LayerNorm, "eps", origin="C12: a library's default eps")
def layer_norm_eps_of_flax(self):
    """eps is 1e-6."""
    return 1e-6  # wrong: 1e-5


@mutant(LayerNorm, "variance", origin="Bessel's correction")
def layer_norm_bessel(self, x, centred):
    """The variance is divided by C - 1."""
    return self.mean(centred * centred) * (x.shape[-1] / (x.shape[-1] - 1))  # wrong: by C


@mutant(LayerNorm, "variance", origin="C13, C30: one pass", dtypes=("bfloat16", "float16", "float32"))
def layer_norm_one_pass(self, x, centred):
    """The variance is the mean square less the squared mean, in float32."""
    var = self.mean(x * x) - self.mean(x) ** 2  # wrong: cancels
    return self.xp.clip(var, 0.0, np.inf)


@mutant(LayerNorm, "centre", origin="statistics in bfloat16")
def layer_norm_bfloat16_mean(self, x):
    """The mean is held in bfloat16."""
    return coarse(self.mean(x), 8)  # wrong: rounded


@mutant(LayerNorm, "variance", origin="statistics in bfloat16")
def layer_norm_bfloat16_variance(self, x, centred):
    """The variance is held in bfloat16."""
    return coarse(self.mean(centred * centred), 8)  # wrong: rounded


@mutant(LayerNorm, "gain", origin="1 + w")
def layer_norm_one_plus_gain(self, gain):
    """The gain is taken for its distance from one."""
    return 1 + gain  # wrong: gain


@mutant(LayerNorm, "bias", origin="a parameter that is dropped")
def layer_norm_bias_omitted(self, bias):
    """The bias is left out."""
    return 0.0  # wrong: bias


@mutant(LayerNorm, "centre", origin="RMSNorm for LayerNorm")
def layer_norm_not_centred(self, x):
    """The mean is not subtracted."""
    return 0.0  # wrong: mean(x)


@mutant(LayerNorm, "dx", origin="the VJP of the mean", gradient_only=True)
def layer_norm_mean_not_differentiated(self, dx_hat, x_hat, r):
    """The mean is a constant in the backward."""
    return r * (dx_hat - x_hat * self.mean(dx_hat * x_hat))  # wrong: - mean(dx_hat)


@mutant(LayerNorm, "dx", origin="the VJP of the variance", gradient_only=True)
def layer_norm_variance_not_differentiated(self, dx_hat, x_hat, r):
    """The variance is a constant in the backward."""
    return r * (dx_hat - self.mean(dx_hat))  # wrong: - x_hat mean(dx_hat x_hat)


# ---- rms_norm


@mutant(RMSNorm, "variance", origin="a sum for a mean")
def rms_norm_sum(self, x, centred):
    """The sum of squares is taken for their mean."""
    return self.mean(centred * centred) * x.shape[-1]  # wrong: the mean


@mutant(RMSNorm, "centre", origin="LayerNorm for RMSNorm")
def rms_norm_centred(self, x):
    """The mean is subtracted."""
    return self.mean(x)  # wrong: 0


@mutant(RMSNorm, "inverse_root", origin="eps outside the root")
def rms_norm_eps_outside(self, var):
    """eps is added to the root of the mean square."""
    return 1 / (self.xp.sqrt(var) + self.eps())  # wrong: inside the root


@mutant(RMSNorm, "inverse_root", origin="eps omitted")
def rms_norm_eps_omitted(self, var):
    """There is no eps."""
    return 1 / self.xp.sqrt(var)  # wrong: + eps


@mutant(RMSNorm, "eps", origin="C12: a library's default eps")
def rms_norm_eps_of_llama(self):
    """eps is 1e-5."""
    return 1e-5  # wrong: 1e-6


# Of bfloat16 results, the error is half a unit in the last place.
@mutant(RMSNorm, "offset_gain", origin="C34", dtypes=("float16", "float32", "float64"))
def rms_norm_offset_in_bfloat16(self, offset, gain):
    """The offset is added in bfloat16."""
    return coarse(offset + gain, 8)  # wrong: rounded


@mutant(RMSNorm, "offset_gain", origin="C34: one folded in twice")
def rms_norm_offset_twice(self, offset, gain):
    """The offset is added twice."""
    return 2 * offset + gain  # wrong: once


@mutant(RMSNorm, "dx", origin="the VJP of the mean square", gradient_only=True)
def rms_norm_scale_not_differentiated(self, dx_hat, x_hat, r):
    """The mean square is a constant in the backward."""
    return r * dx_hat  # wrong: - x_hat mean(dx_hat x_hat)


# ---- GELU


@mutant(Gelu, "cdf", origin="C11: tanh for erf")
def gelu_tanh_for_erf(self, x):
    """The cdf is approximated by a tanh."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * (1 + self.xp.tanh(inner))  # wrong: erf


@mutant(Gelu, "cdf", origin="quick-gelu")
def gelu_quick(self, x):
    """The cdf is approximated by a logistic function."""
    return 1 / (1 + self.xp.exp(-1.702 * x))  # wrong: erf


@mutant(Gelu, "cdf", origin="SiLU for GELU")
def gelu_silu(self, x):
    """SiLU is taken for GELU."""
    return 1 / (1 + self.xp.exp(-x))  # wrong: erf


@mutant(Gelu, "cdf", origin="erf of x")
def gelu_without_root_of_two(self, x):
    """erf is taken of x, not of x / sqrt(2)."""
    return 0.5 * (1 + self.arrays.erf(x))  # wrong: / sqrt(2)


@mutant(Gelu, "slope", origin="half of the product rule", gradient_only=True)
def gelu_slope_without_density(self, x):
    """The derivative leaves out x times the density."""
    return self.cdf(x)  # wrong: + x density


@mutant(Gelu, "density", origin="the density of a variance of 1/2", gradient_only=True)
def gelu_density_of_other_variance(self, x):
    """The density in the derivative is exp(-x^2)."""
    return self.xp.exp(-x * x) / math.sqrt(math.pi)  # wrong: -x^2 / 2


# ---- rotary


@mutant(Rotary, "halves", origin="C37: half-split and interleaved")
def rotary_pairs_interleaved(self, x):
    """Neighbouring entries are paired."""
    return x[..., ::2], x[..., 1::2]  # wrong: halves


@mutant(Rotary, "positions", origin="C17: off by one")
def rotary_off_by_one(self, positions):
    """Positions begin at 1."""
    return positions + 1  # wrong: as given


@mutant(Rotary, "positions", origin="C16, C17: positions of the call")
def rotary_positions_ignored(self, positions):
    """Positions are counted from 0, whatever is given."""
    return np.arange(len(positions))  # wrong: as given


@mutant(Rotary, "positions", origin="C23: positions in bfloat16")
def rotary_positions_in_bfloat16(self, positions):
    """Positions are held in bfloat16: those above 256 merge."""
    return round_to(positions, "bfloat16")  # wrong: exact


@mutant(Rotary, "theta", origin="another theta")
def rotary_theta(self):
    """theta is 5e5."""
    return 5e5  # wrong: 1e4


@mutant(Rotary, "frequency_span", origin="exponents d / D for 2d / D")
def rotary_frequencies_of_half(self, D):
    """The exponents run over D - 2, so that the last is -1."""
    return D - 2  # wrong: D


@mutant(Rotary, "angles", origin="angles in bfloat16")
def rotary_angles_in_bfloat16(self, angle):
    """Angles are rounded to bfloat16."""
    return round_to(angle, "bfloat16")  # wrong: rounded


@mutant(Rotary, "turn", origin="a sign")
def rotary_turned_backwards(self, x, cos, sin):
    """The rotation has the wrong sense."""
    return Rotary.turn(self, x, cos, -sin)  # wrong: sin


@mutant(Rotary, "backward_sign", origin="the transpose of a rotation", gradient_only=True)
def rotary_gradient_turned_forwards(self):
    """The gradient is turned as the input is, not back."""
    return 1.0  # wrong: -1
