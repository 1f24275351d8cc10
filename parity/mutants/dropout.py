"""Dropout: which weights are kept, and what happens to them."""

import math

import numpy as np

from parity.mutants.attention import Attention
from parity.mutants.registry import mutant


@mutant(Attention, "gain", origin="kept weights as they are")
def dropout_not_rescaled(self):
    """Kept weights are not divided by 1 - p."""
    return 1.0  # wrong: 1 / (1 - p)


@mutant(Attention, "gain", origin="p for 1 - p")
def dropout_divided_by_p(self):
    """Kept weights are divided by p."""
    return 1 / self.options["dropout_p"]  # wrong: 1 - p


@mutant(Attention, "keep", origin="True = drop")
def keep_mask_inverted(self):
    """The keep-mask is read as a drop-mask."""
    return ~Attention.keep(self)  # wrong: ~


@mutant(Attention, "hide", origin="C9: dropout before the softmax")
def dropout_before_softmax(self, s):
    """Dropped scores are hidden, and the rest of the row renormalises."""
    s = Attention.hide(self, s)
    return s if self.kept is None else self.xp.where(self.native(self.kept), s, -np.inf)  # wrong: the weights


@mutant(Attention, "drop", origin="a keyword that is dropped")
def dropout_ignored(self, p):
    """There is no dropout."""
    return p  # wrong: dropped


@mutant(Attention, "normalise", origin="dropout before the normalisation")
def dropped_weights_renormalised(self, e, mass):
    """The weights kept are normalised to one."""
    p = Attention.normalise(self, e, mass)
    if self.kept is None:
        return p
    kept = self.xp.sum(self.xp.where(self.native(self.kept), p, 0.0), -1, keepdims=True)
    return p / self.xp.where(kept > 0.0, kept, 1.0)  # wrong: the sum over all


@mutant(Attention, "word", origin="counter words swapped")
def dropout_counter_swapped(self, key, counter):
    """The counter is (j, i)."""
    return Attention.word(self, key, counter[::-1])  # wrong: (i, j)


@mutant(Attention, "word", origin="key words swapped")
def dropout_key_swapped(self, key, counter):
    """The key is (head, seed)."""
    return Attention.word(self, key[::-1], counter)  # wrong: (seed, head)


@mutant(Attention, "word", origin="one bit of difference")
def dropout_low_bits(self, key, counter):
    """The word is compared after its halves are swapped."""
    word = Attention.word(self, key, counter)
    return (word << np.uint32(16)) | (word >> np.uint32(16))  # wrong: the word


@mutant(Attention, "stream", origin="the stream of a kv head")
def dropout_stream_of_kv_head(self):
    """The query heads of a group share one stream."""
    heads = Attention.stream(self)
    return np.broadcast_to(heads[:, :, :1], heads.shape)  # wrong: [:, :, :1]


@mutant(Attention, "stream", origin="flax: one mask for the batch")
def dropout_stream_without_batch(self):
    """Every batch row uses the stream of row 0."""
    heads = Attention.stream(self)
    return np.broadcast_to(heads[:1], heads.shape)  # wrong: [:1]


@mutant(Attention, "stream", origin="b and h confused")
def dropout_stream_head_major(self):
    """The stream is h * B + b."""
    heads = Attention.stream(self)
    return heads % self.Hq * self.B + heads // self.Hq  # wrong: b * Hq + h


@mutant(Attention, "keep", origin="a fresh mask for each tile")
def dropout_counter_per_tile(self):
    """Each tile of four keys begins its counter at 0."""
    if "dropout_mask" in self.options:
        return Attention.keep(self)
    word = self.word((self.options["dropout_seed"], self.stream()), (self.i, self.j % 4))  # wrong: j
    return word >= np.uint32(math.floor(self.options["dropout_p"] * 2.0**32))


@mutant(Attention, "log_mass", origin="lse after dropout")
def lse_after_dropout(self, peak, mass):
    """lse includes the factor 1 / (1 - p)."""
    lse = Attention.log_mass(self, peak, mass)
    return lse if self.kept is None else lse + math.log(self.gain())  # wrong: before dropout
