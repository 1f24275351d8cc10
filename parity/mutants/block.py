"""The block: how norms, attention, MLP and the residual stream are put together."""

import math

import numpy as np

from parity.mutants.layers import Block, Gelu, LayerNorm
from parity.mutants.norms import gelu_quick, gelu_tanh_for_erf, layer_norm_bessel, layer_norm_eps_outside
from parity.mutants.registry import mutant


def with_step(right, step, wrong):
    """A class with one step replaced."""
    return type(right.__name__, (right,), {step: wrong})


def normalised_by(step, wrong):
    return lambda self, layer, x: with_step(LayerNorm, step, wrong)(self.arrays, {}, self.dtype).normalise(x)


@mutant(Block, "normalise", origin="eps outside the root")
def block_eps_outside(self, layer, x):
    """The norms add eps to the standard deviation."""
    return normalised_by("inverse_root", layer_norm_eps_outside)(self, layer, x)  # wrong: inside the root


@mutant(Block, "normalise", origin="C40: one altered eps")
def block_eps_altered(self, layer, x):
    """The norms use eps = 1e-3."""
    return normalised_by("eps", lambda layer: 1e-3)(self, layer, x)  # wrong: 1e-5


# In bfloat16 it is lost in a block's rounding: layer_norm_bessel is the norm alone.
@mutant(Block, "normalise", origin="Bessel's correction", dtypes=("float16", "float32", "float64"))
def block_bessel(self, layer, x):
    """The norms divide the variance by C - 1."""
    return normalised_by("variance", layer_norm_bessel)(self, layer, x)  # wrong: by C


@mutant(Block, "normalise", origin="RMSNorm for LayerNorm")
def block_not_centred(self, layer, x):
    """The norms do not subtract the mean."""
    return normalised_by("centre", lambda layer, x: 0.0)(self, layer, x)  # wrong: the mean


@mutant(Block, "norm", origin="1 + w")
def block_one_plus_gain(self, x, gain, bias):
    """The gains are taken for their distance from one."""
    return Block.norm(self, x, 1 + gain, bias)  # wrong: gain


@mutant(Block, "residual", origin="post- for pre-norm")
def block_residual_of_the_norm(self, x, delta, h):
    """The residual is the normalised stream, as after a post-norm."""
    return self.store(h + delta)  # wrong: x


@mutant(Block, "residual", origin="the residual is left out")
def block_without_residual(self, x, delta, h):
    """Sublayers replace the stream."""
    return delta  # wrong: x + delta


@mutant(Block, "second_norm", origin="parallel for sequential")
def block_parallel(self, x, x1, w):
    """The MLP reads the stream from before attention."""
    return self.norm(x, w["ln2_gain"], w["ln2_bias"])  # wrong: x1


@mutant(Block, "second_norm", origin="one norm for both sublayers")
def block_first_norm_twice(self, x, x1, w):
    """The second norm uses the parameters of the first."""
    return self.norm(x1, w["ln1_gain"], w["ln1_bias"])  # wrong: ln2


@mutant(Block, "second_norm", origin="a norm is left out")
def block_second_norm_omitted(self, x, x1, w):
    """The MLP reads the stream as it is."""
    return x1, lambda dh: (dh, self.sum_rows(dh * x1), self.sum_rows(dh))  # wrong: normalised


@mutant(Block, "split", origin="packed q, k, v in another order")
def block_packed_kqv(self, qkv):
    """The packed projection is taken for [k, q, v]."""
    k, q, v = Block.split(self, qkv)  # wrong: q, k, v
    return q, k, v


@mutant(Block, "heads", origin="GPT-NeoX packs (H, 3, D)")
def block_packed_per_head(self, qkv):
    """The packed projection is taken for (H, 3, D)."""
    B, T, C3 = qkv.shape
    per_head = qkv.reshape(B, T, self.n_head, 3, C3 // 3 // self.n_head)  # wrong: (3, H, D)
    return tuple(self.xp.swapaxes(per_head[:, :, :, n], 1, 2) for n in range(3))


@mutant(Block, "merge", origin="heads not transposed back")
def block_heads_not_transposed_back(self, x):
    """The heads are merged without being moved behind the positions."""
    B, H, T, D = x.shape
    return x.reshape(B, T, H * D)  # wrong: transposed first


@mutant(Block, "unmerge", origin="D and H confused")
def block_heads_interleaved(self, x):
    """Channel c belongs to head c mod H."""
    B, T, C = x.shape
    return self.xp.moveaxis(x.reshape(B, T, C // self.n_head, self.n_head), 3, 1)  # wrong: (H, D)


@mutant(Block, "scale", origin="a classic: the scale forgotten")
def block_scale_forgotten(self, D):
    """Scores are not scaled."""
    return 1.0  # wrong: 1 / sqrt(D)


@mutant(Block, "scale", origin="the scale of the model's width")
def block_scale_by_width(self, D):
    """Scores are divided by the root of C."""
    return 1 / math.sqrt(D * self.n_head)  # wrong: D


@mutant(Block, "visible", origin="causal is left out")
def block_not_causal(self, T):
    """Every position sees every other."""
    return np.ones((T, T), bool)  # wrong: a triangle


@mutant(Block, "visible", origin="a strict triangle, with the first position kept")
def block_causal_off_by_one(self, T):
    """A position sees the next one too."""
    return np.tri(T, k=1, dtype=bool)  # wrong: k=0


@mutant(Block, "output_bias", origin="a bias for each head")
def block_output_bias_per_head(self, bias):
    """The output bias is added once for each head."""
    return bias * self.n_head  # wrong: once


@mutant(Block, "activation", origin="C11: tanh for erf", dtypes=("float32", "float64"))
def block_gelu_tanh(self, f):
    """The MLP uses the tanh form of GELU."""
    return with_step(Gelu, "cdf", gelu_tanh_for_erf)(self.arrays, {}, self.dtype).value(f)  # wrong: erf


@mutant(Block, "activation", origin="quick-gelu", dtypes=("float32", "float64"))
def block_gelu_quick(self, f):
    """The MLP uses quick-gelu."""
    return with_step(Gelu, "cdf", gelu_quick)(self.arrays, {}, self.dtype).value(f)  # wrong: erf


@mutant(Block, "activation", origin="another activation")
def block_relu(self, f):
    """The MLP uses ReLU."""
    return self.xp.clip(f, 0.0, np.inf)  # wrong: GELU


@mutant(Block, "activation_slope", origin="the derivative of ReLU", gradient_only=True)
def block_gelu_slope_of_relu(self, f):
    """The backward uses the derivative of ReLU."""
    return self.xp.where(f > 0.0, self.xp.zeros_like(f) + 1.0, 0.0)  # wrong: of GELU


@mutant(Block, "residual_backward", origin="the residual in the backward", gradient_only=True)
def block_residual_gradient_lost(self, dout, dx):
    """The gradient does not pass along the residual stream."""
    return dx  # wrong: dout + dx


@mutant(Block, "delta", origin="a missing D term", gradient_only=True)
def block_delta_missing(self, dy, y):
    """The term of the softmax's normaliser is left out of dS."""
    return 0.0 * y[..., :1]  # wrong: sum(dy * y)


@mutant(Block, "sum_rows", origin="a mean for a sum", gradient_only=True)
def block_bias_gradient_averaged(self, x):
    """Gradients of biases and gains are means over the positions."""
    return self.xp.mean(x.reshape(-1, x.shape[-1]), 0)  # wrong: the sum


@mutant(Block, "unheads", origin="packed gradients in another order", gradient_only=True)
def block_gradients_packed_in_another_order(self, dq, dk, dv):
    """The gradients are packed as [k, q, v]."""
    return Block.unheads(self, dk, dq, dv)  # wrong: dq, dk, dv
