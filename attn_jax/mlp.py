"""What the block computes at each position alone: activations, and two linear maps with one between them.

Activations compute in float32 at least (float64 for float64) and round once, to their input's dtype.
Axes: T positions, C channels (n_embd), F hidden channels.
"""

import math
from collections.abc import Callable

import jax
from flax import nnx
from jax.nn import sigmoid
from jax.scipy.special import erfc

from . import dialects
from .arithmetic import accumulator, describe
from .layers import check_channels, drop, linear, linear_layer


def gelu(x):
    """The exact GELU, x Phi(x), Phi the distribution function of the standard normal. Any shape.

    2 Phi(x) = erfc(-x / sqrt(2)) keeps its relative accuracy where x < 0 and 1 + erf(x / sqrt(2)) cancels.
    Source: Hendrycks & Gimpel 2016, section 2.
    """
    z = x.astype(accumulator(x.dtype))
    return (0.5 * z * erfc(z * -math.sqrt(0.5))).astype(x.dtype)


def gelu_tanh(x):
    """x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3): up to 5e-4 away from gelu. Any shape.

    (1 + tanh(u)) / 2 = sigmoid(2 u), which does not cancel.
    Source: Hendrycks & Gimpel 2016, section 2.
    """
    z = x.astype(accumulator(x.dtype))
    return (z * sigmoid(math.sqrt(8 / math.pi) * (z + 0.044715 * z * z * z))).astype(x.dtype)


def gelu_sigmoid(x):
    """x sigmoid(1.702 x): up to 0.02 away from gelu, and CLIP's. Any shape.

    Source: Hendrycks & Gimpel 2016, section 2.
    """
    z = x.astype(accumulator(x.dtype))
    return (z * sigmoid(1.702 * z)).astype(x.dtype)


def relu(x):
    """max(x, 0), of slope 0 at 0. Any shape. Source: Nair & Hinton 2010."""
    return jax.nn.relu(x)


def silu(x):
    """x sigmoid(x). Any shape. Source: Hendrycks & Gimpel 2016, section 4."""
    z = x.astype(accumulator(x.dtype))
    return (z * sigmoid(z)).astype(x.dtype)


def swiglu(gate, x):
    """silu(gate) x. Any shape, the same for both. Source: Shazeer 2020, eq. 6."""
    return silu(gate) * x


def geglu(gate, x):
    """gelu(gate) x. Any shape, the same for both. Source: Shazeer 2020, eq. 6."""
    return gelu(gate) * x


def geglu_tanh(gate, x):
    """gelu_tanh(gate) x. Any shape, the same for both. Source: Shazeer 2020, eq. 6, and Gemma's code."""
    return gelu_tanh(gate) * x


ACTIVATIONS: dict[str, Callable] = {
    f.__name__: f for f in (gelu, gelu_tanh, gelu_sigmoid, relu, silu, swiglu, geglu, geglu_tanh)
}


def mlp(params, x, *, hidden=None, activation="gelu", bias=True, mlp_dropout=0.0, dropout_seed=None):
    """activation(x w_fc + b_fc) w_proj + b_proj, at each position alone.

    A gated activation takes x w_gate + b_gate too. Other keys are not read: a block's params will do.

    params: w_fc, w_gate (C, F), b_fc, b_gate (F,), w_proj (F, C), b_proj (C,); those that the keywords say.
    x: (..., T, C), in the parameters' dtype.
    hidden: F, 4C by default. activation: a name of ACTIVATIONS. bias: True, False, or some of "fc", "proj".
    mlp_dropout: probability with which an activation is dropped, in calls with a dropout_seed.
    Returns (..., T, C).
    Raises ValueError if x or a parameter has another shape, TypeError if another dtype.
    Source: Vaswani et al. 2017, section 3.3, with GELU for ReLU; Shazeer 2020 where it is gated.
    """
    n_embd = dialects.size(params, "w_fc", 0, describe)
    check_channels(x, n_embd)
    shapes = dialects.mlp_shapes(
        n_embd, hidden=hidden, activation=activation, bias=bias, mlp_dropout=mlp_dropout
    )
    dialects.agree(params, shapes, dialects.MLP_NAMES, describe)
    h = linear(x, params["w_fc"], params.get("b_fc"))  # (..., T, F)
    gate = [linear(x, params["w_gate"], params.get("b_gate"))] if "w_gate" in shapes else []
    h = drop(ACTIVATIONS[activation](*gate, h), mlp_dropout, dropout_seed)
    return linear(h, params["w_proj"], params.get("b_proj"))


class MLP(nnx.Module):
    """mlp as a module, with its keywords. x (..., T, C) -> (..., T, C).

    c_gate is there if the activation is gated.
    """

    def __init__(self, n_embd, *, hidden=None, activation="gelu", bias=True, mlp_dropout=0.0, rngs=None):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        shapes = dialects.mlp_shapes(
            n_embd, hidden=hidden, activation=activation, bias=bias, mlp_dropout=mlp_dropout
        )
        self.n_embd, self.activation, self.mlp_dropout = n_embd, activation, mlp_dropout
        self.c_fc, self.c_gate, self.c_proj = (
            linear_layer(shapes, name, rngs) for name in ("fc", "gate", "proj")
        )

    def __call__(self, x, *, dropout_seed=None):
        check_channels(x, self.n_embd)
        gate = [] if self.c_gate is None else [self.c_gate(x)]
        h = ACTIVATIONS[self.activation](*gate, self.c_fc(x))  # (..., T, F)
        return self.c_proj(drop(h, self.mlp_dropout, dropout_seed))
