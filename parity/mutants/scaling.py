"""Scores: the scale, the soft cap, the bias, and their order."""

import math

from parity.inputs import round_to
from parity.mutants.attention import NEG_INF, Attention
from parity.mutants.registry import mutant


@mutant(Attention, "scale", origin="a classic: the scale forgotten")
def scale_forgotten(self):
    """Scores are not scaled."""
    return 1.0 if self.options.get("scale") is None else self.options["scale"]  # wrong: 1 for 1 / sqrt(D)


@mutant(Attention, "scale", origin="a classic: D for its root")
def scale_by_d(self):
    """Scores are divided by D, not by its root."""
    scale = self.options.get("scale")
    return 1 / self.D if scale is None else scale  # wrong: 1 / sqrt(D)


@mutant(Attention, "scale", origin="D taken for Dv")
def scale_by_value_size(self):
    """Scores are divided by the root of Dv."""
    scale = self.options.get("scale")
    return 1 / math.sqrt(max(self.Dv, 1)) if scale is None else scale  # wrong: Dv for D


@mutant(Attention, "scale", origin="one part in a thousand")
def scale_off_by_a_thousandth(self):
    """The scale is 1.001 times too large."""
    return 1.001 * Attention.scale(self)  # wrong: 1.001


@mutant(Attention, "scale", origin="a scale held in bfloat16")
def scale_in_bfloat16(self):
    """The scale is rounded to bfloat16."""
    return float(round_to(Attention.scale(self), "bfloat16"))  # wrong: rounded


@mutant(Attention, "scale", origin="an explicit scale")
def scale_argument_ignored(self):
    """An explicit scale is ignored."""
    return 1 / math.sqrt(max(self.D, 1))  # wrong: whatever was asked for


@mutant(Attention, "scale", origin="`scale or default`")
def scale_zero_is_none(self):
    """A scale of 0 is taken for none given."""
    return self.options.get("scale") or 1 / math.sqrt(max(self.D, 1))  # wrong: 0.0 is false


@mutant(Attention, "scale", origin="a root of the scale on q and on k")
def scale_sign_lost(self):
    """The sign of the scale is lost."""
    return abs(Attention.scale(self))  # wrong: abs


@mutant(Attention, "hide", origin="C25")
def scale_after_mask(self, s):
    """-inf is written before the scale: 0 times -inf is NaN, -0.5 times -inf is +inf."""
    return self.xp.where(self.native(self.seen), s, NEG_INF * self.scale())  # wrong: times the scale


@mutant(Attention, "score", origin="C22")
def softcap_after_bias(self, q, k):
    """The bias is added before the soft cap."""
    return self.hide(self.cap(self.add_bias(self.scaled(self.product(q, k)))))  # wrong: cap of the bias


@mutant(Attention, "score", origin="a classic: masks come last")
def softcap_after_mask(self, q, k):
    """The soft cap is applied after the mask, so that hidden keys come back at -cap."""
    return self.cap(self.hide(self.add_bias(self.scaled(self.product(q, k)))))  # wrong: tanh(-inf) = -1


@mutant(Attention, "score", origin="the order of the contract")
def softcap_before_scale(self, q, k):
    """The soft cap is applied to the raw scores."""
    return self.hide(self.add_bias(self.scaled(self.cap(self.product(q, k)))))  # wrong: scale after the cap


@mutant(Attention, "cap", origin="a keyword that is dropped")
def softcap_omitted(self, s):
    """The soft cap is left out."""
    return s  # wrong: c tanh(s / c)


@mutant(Attention, "cap", origin="a docstring of a library")
def softcap_rational(self, s):
    """The soft cap is s / (1 + |s| / c)."""
    c = self.options.get("softcap")
    return s if c is None else s / (1 + self.xp.abs(s) / c)  # wrong: not tanh


@mutant(Attention, "cap", origin="a clip for a cap")
def softcap_clipped(self, s):
    """Scores are clipped at the cap."""
    c = self.options.get("softcap")
    return s if c is None else self.xp.clip(s, -c, c)  # wrong: not tanh


@mutant(Attention, "add_bias", origin="a keyword that is dropped")
def bias_omitted(self, s):
    """The bias is left out."""
    return s  # wrong: + bias


@mutant(Attention, "add_bias", origin="pre_scale_bias")
def bias_scaled(self, s):
    """The bias is scaled with the scores."""
    return s + self.bias() * self.scale() if "bias" in self.options else s  # wrong: * scale


@mutant(Attention, "bias", origin="ALiBi slopes from the last head")
def bias_heads_reversed(self):
    """The bias of the last head goes to the first."""
    return self.xp.flip(Attention.bias(self), (1,))  # wrong: flipped


@mutant(Attention, "bias", origin="ALiBi of the wrong sign")
def bias_negated(self):
    """The bias is subtracted."""
    return -Attention.bias(self)  # wrong: the sign


@mutant(Attention, "exp", origin="exp2 without log2(e)")
def exp_in_base_two(self, x):
    """2**x for exp(x): the factor log2(e) is missing."""
    return self.xp.exp(x * math.log(2))  # wrong: x * log2(e) belongs into exp2


@mutant(Attention, "hide", origin="C4")
def finite_bias_hides(self, s):
    """A bias of about -1e4 or less is taken for a mask."""
    s = Attention.hide(self, s)
    if "bias" not in self.options:
        return s
    return self.xp.where(self.native(self.pairs(self.options["bias"]) <= -9e3), NEG_INF, s)  # wrong: finite
