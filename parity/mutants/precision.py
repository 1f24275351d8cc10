"""Precision: something rounded to fewer bits than the claim says."""

from functools import partial

import numpy as np

from parity.mutants.arrays import coarse
from parity.mutants.attention import Attention, Tiled
from parity.mutants.registry import mutant

BFLOAT16, TENSORFLOAT32, FLOAT16, FLOAT8 = 8, 11, 11, 4  # significant bits

WIDE = ("float32", "float64")
single = partial(mutant, Attention, dtypes=WIDE)


@single("product", origin="C10: TF32 operands")
def operands_tensorfloat32(self, q, k):
    """q and k are rounded to TF32 on their way into the product."""
    return coarse(q, TENSORFLOAT32) @ coarse(k, TENSORFLOAT32).mT  # wrong: rounded


@single("product", origin="C10: one bfloat16 pass on a TPU")
def operands_bfloat16(self, q, k):
    """q and k are rounded to bfloat16 on their way into the product."""
    return coarse(q, BFLOAT16) @ coarse(k, BFLOAT16).mT  # wrong: rounded


@single("mix", origin="C10: TF32 operands")
def weights_tensorfloat32(self, p, v):
    """The weights are rounded to TF32 before they multiply v."""
    return coarse(p, TENSORFLOAT32) @ v  # wrong: rounded


@single("mix", origin="flash-attention in half precision")
def weights_bfloat16(self, p, v):
    """The weights are rounded to bfloat16 before they multiply v."""
    return coarse(p, BFLOAT16) @ v  # wrong: rounded


@mutant(Attention, "mix", origin="a float8 kernel")
def weights_float8(self, p, v):
    """The weights are rounded to four bits before they multiply v."""
    return coarse(p, FLOAT8) @ v  # wrong: rounded


@mutant(Attention, "scaled", origin="float16 overflow of raw scores")
def raw_scores_float16(self, product):
    """Scores are held in float16 before they are scaled."""
    return self.arrays.rounded(product, "float16") * self.scale()  # wrong: rounded


@mutant(Attention, "scaled", origin="scores materialised in bfloat16")
def scores_bfloat16(self, product):
    """Scores are held in bfloat16."""
    return coarse(Attention.scaled(self, product), BFLOAT16)  # wrong: rounded


@mutant(Attention, "mix", origin="an accumulator of bfloat16", dtypes=("bfloat16", *WIDE))
def accumulator_bfloat16(self, p, v):
    """Each product is added to an accumulator of bfloat16."""
    acc = self.xp.zeros_like(p @ v)
    for j in range(self.Tk):
        acc = coarse(acc + p[..., j : j + 1] * v[..., j : j + 1, :], BFLOAT16)  # wrong: rounded
    return acc


@mutant(Attention, "mix", origin="an accumulator of bfloat16 between tiles", dtypes=("bfloat16", *WIDE))
def accumulator_bfloat16_between_tiles(self, p, v):
    """The accumulator is held in bfloat16 between tiles of 16 keys."""
    acc = p[..., :16] @ v[..., :16, :]
    for j in range(16, self.Tk, 16):
        acc = coarse(acc + p[..., j : j + 16] @ v[..., j : j + 16, :], BFLOAT16)  # wrong: rounded
    return coarse(acc, BFLOAT16)


@mutant(Attention, "total", origin="a sum of bfloat16")
def sum_bfloat16(self, e):
    """The sum of the softmax is held in bfloat16."""
    return coarse(Attention.total(self, e), BFLOAT16)  # wrong: rounded


@mutant(Attention, "store", origin="C27: float32 inside float64", dtypes=("float64",))
def output_float32(self, x):
    """Results pass through float32."""
    return self.arrays.rounded(x, "float32")  # wrong: float64


@mutant(Attention, "softmax", origin="C27: jax.nn's softmax", dtypes=("float64",))
def softmax_float32(self, s):
    """The softmax of float64 scores is done in float32."""
    return Attention.softmax(self, self.arrays.rounded(s, "float32"))  # wrong: float64


@mutant(Attention, "exp", origin="a fast exponential")
def exp_of_few_terms(self, x):
    """exp is (1 + x / 1024)**1024."""
    base = self.xp.clip(1.0 + x / 1024, 0.0, np.inf)
    return base**1024  # wrong: off by x**2 / 2048


@mutant(Attention, "exp", origin="a fast exponential", dtypes=WIDE)
def exp_to_four_digits(self, x):
    """exp has a relative error of 1e-4."""
    return self.xp.exp(x) * (1 + 1e-4 * self.xp.sin(37 * self.finite(x)))  # wrong: 1e-4


@single("store", origin="results in bfloat16")
def results_bfloat16(self, x):
    """Results pass through bfloat16."""
    return coarse(x, BFLOAT16)  # wrong: rounded


@mutant(Attention, "log_mass", origin="jax.nn casts lse to bfloat16")
def lse_bfloat16(self, peak, mass):
    """lse is held in bfloat16."""
    return coarse(Attention.log_mass(self, peak, mass), BFLOAT16)  # wrong: rounded


@mutant(Attention, "recompute", origin="lse stored in half precision", gradient_only=True)
def lse_bfloat16_in_backward(self, s, lse):
    """The lse kept for the backward is rounded to bfloat16."""
    return Attention.recompute(self, s, coarse(self.finite(lse), BFLOAT16))  # wrong: rounded


@mutant(Attention, "delta", "the D term in half", gradient_only=True, dtypes=("float16", *WIDE))
def delta_bfloat16(self, p, dp, dout, out):
    """The term of the normaliser is held in bfloat16."""
    return coarse(Attention.delta(self, p, dp, dout, out), BFLOAT16)  # wrong: rounded


@single("ds", origin="dS in half precision", gradient_only=True)
def ds_bfloat16(self, p, dp, delta, s):
    """The gradient of the scores is rounded to bfloat16."""
    return coarse(Attention.ds(self, p, dp, delta, s), BFLOAT16)  # wrong: rounded


@mutant(Attention, "dv", origin="dv in bfloat16 over the queries", gradient_only=True)
def dv_accumulated_in_bfloat16(self, p, dout):
    """dv is added up over the queries in bfloat16."""
    p = self.drop(p)
    acc = self.sum_group(p[:, :, :, :1].mT @ dout[:, :, :, :1])
    for i in range(1, self.Tq):
        of_query = self.sum_group(p[:, :, :, i : i + 1].mT @ dout[:, :, :, i : i + 1])
        acc = coarse(acc + of_query, BFLOAT16)  # wrong: rounded
    return acc


@mutant(Tiled, "add_values", origin="an accumulator of bfloat16, rescaled", dtypes=("bfloat16", *WIDE))
def tiled_accumulator_bfloat16(self, acc, fade, e, v):
    """The running accumulator is held in bfloat16."""
    return coarse(Tiled.add_values(self, acc, fade, e, v), BFLOAT16)  # wrong: rounded
