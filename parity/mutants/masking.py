"""Masks: what a query sees, where the mask is applied, and rows that see nothing."""

import numpy as np

from parity.mutants.attention import Attention
from parity.mutants.registry import mutant

# ---- where and how hidden scores are hidden


@mutant(Attention, "attend", origin="a classic: masking after the softmax")
def mask_after_softmax(self, q, k, v):
    """Weights are zeroed after the softmax and do not sum to one."""
    p, lse = self.softmax(self.add_bias(self.cap(self.scaled(self.product(q, k)))))  # wrong: not hidden
    p = self.xp.where(self.native(self.seen), p, 0.0)
    return self.mix(self.drop(p), v), lse


@mutant(Attention, "mask", origin="nn.MultiheadAttention: True hides")
def mask_inverted(self):
    """True hides."""
    return ~Attention.mask(self) if "mask" in self.options else np.True_  # wrong: ~


@mutant(Attention, "hide", origin="C24, C33: a float mask of 0 and 1")
def mask_added_as_zero_one(self, s):
    """The mask is added to the scores as 0 and 1."""
    return s + self.native(self.seen * 1.0)  # wrong: added


@mutant(Attention, "hide", origin="a classic: a finite mask value")
def mask_of_minus_1e4(self, s):
    """Hidden scores become -1e4, not -inf."""
    return self.xp.where(self.native(self.seen), s, -1e4)  # wrong: finite


@mutant(Attention, "hide", origin="a classic: a finite mask value")
def mask_adds_minus_1e4(self, s):
    """-1e4 is added to hidden scores."""
    return s + self.native(np.where(self.seen, 0.0, -1e4))  # wrong: finite


@mutant(Attention, "hide", origin="C2: the mean of v for an empty row")
def mask_of_float_minimum(self, s):
    """Hidden scores become the least float32: an empty row gives the mean of v."""
    return self.xp.where(self.native(self.seen), s, -3.0e38)  # wrong: finite


@mutant(Attention, "finite", origin="C2, C3: NaN for an empty row")
def empty_row_nan(self, x):
    """An empty row is not guarded: -inf minus -inf is NaN."""
    return x  # wrong: 0 where -inf


@mutant(Attention, "log_mass", origin="the contract: lse of an empty row is -inf")
def empty_row_lse_zero(self, peak, mass):
    """The lse of an empty row is 0."""
    return peak + self.xp.log(self.xp.where(mass > 0.0, mass, 1.0))  # wrong: log(1)


@mutant(Attention, "drop_unread", origin="C1")
def unread_key_leaks(self, x):
    """NaN of a key that nobody reads reaches the output: 0 times NaN."""
    return x  # wrong: zeroed where unread


@mutant(Attention, "drop_blind", origin="C1")
def blind_query_leaks(self, x):
    """NaN of a query that sees nothing reaches the gradients."""
    return x  # wrong: zeroed where blind


# ---- causal


@mutant(Attention, "causal", origin="a strict triangle")
def causal_without_diagonal(self):
    """A query does not see its own position."""
    return self.j < self.i + self.offset() if self.options.get("causal") else np.True_  # wrong: <=


@mutant(Attention, "causal", origin="an off-by-one triangle")
def causal_one_ahead(self):
    """A query sees one position ahead."""
    return self.j <= self.i + self.offset() + 1 if self.options.get("causal") else np.True_  # wrong: + 1


@mutant(Attention, "causal", origin="a keyword that is dropped")
def causal_ignored(self):
    """Causal is ignored."""
    return np.True_  # wrong: j <= i + offset


@mutant(Attention, "causal", origin="C9, a mask given")
def causal_dropped_with_mask(self):
    """Causal is dropped when a mask is given."""
    return np.True_ if "mask" in self.options else Attention.causal(self)  # wrong: both hold


@mutant(Attention, "causal", origin="C9")
def causal_dropped_with_dropout(self):
    """Causal is dropped on the dropout path."""
    return np.True_ if "dropout_p" in self.options else Attention.causal(self)  # wrong: both hold


@mutant(Attention, "causal", origin="a window given")
def causal_dropped_with_window(self):
    """Causal is dropped when a window is given."""
    return np.True_ if "window" in self.options else Attention.causal(self)  # wrong: both hold


@mutant(Attention, "offset", origin="torch and jax are top-left")
def offset_ignored(self):
    """The first query is always aligned to the first key."""
    return self.per_batch("none", 0)  # wrong: q_offset


@mutant(Attention, "offset", origin="flash-attention is bottom-right")
def offset_always_bottom_right(self):
    """The last query is always aligned to the last key."""
    return self.bottom_right()  # wrong: q_offset


@mutant(Attention, "offset", origin="a sign")
def offset_negated(self):
    """The offset has the wrong sign."""
    return -Attention.offset(self)  # wrong: -


@mutant(Attention, "offset", origin="C16: positions per row")
def offset_of_first_row(self):
    """The offset of batch row 0 is used for all rows."""
    return Attention.offset(self)[:1]  # wrong: [:1]


@mutant(Attention, "offset", origin="max(Tk - Tq, 0)")
def offset_clamped(self):
    """A negative offset becomes 0."""
    return np.maximum(Attention.offset(self), 0)  # wrong: clamped


@mutant(Attention, "offset", origin="C15, C26")
def offset_ignored_for_one_query(self):
    """With one query the offset is ignored: decoding reads key 0 alone."""
    return self.per_batch("none", 0) if self.Tq == 1 else Attention.offset(self)  # wrong: Tq == 1


@mutant(Attention, "bottom_right", origin="C16: the padded width")
def bottom_right_of_padded_width(self):
    """Bottom-right is Tk - Tq, whatever the lengths."""
    return np.reshape(self.Tk - self.Tq, (1, 1, 1, 1, 1))  # wrong: the lengths


# ---- windows


@mutant(Attention, "window_sides", origin="C21: W + 1 keys")
def window_one_too_wide(self):
    """The window reaches one key too far to the left."""
    left, right = Attention.window_sides(self)
    return None if left is None else left + 1, right  # wrong: + 1


@mutant(Attention, "window_sides", origin="C21: W keys")
def window_one_too_narrow(self):
    """The window includes one key too few on the left."""
    left, right = Attention.window_sides(self)
    return None if left is None else left - 1, right  # wrong: - 1


@mutant(Attention, "window_sides", origin="C21")
def window_right_off_by_one(self):
    """The window reaches one key too far to the right."""
    left, right = Attention.window_sides(self)
    return left, None if right is None else right + 1  # wrong: + 1


@mutant(Attention, "window_sides", origin="an int window")
def window_int_left_only(self):
    """An int window w is (w, 0)."""
    window = self.options.get("window")
    return (window, 0) if isinstance(window, int) else Attention.window_sides(self)  # wrong: (w, w)


@mutant(Attention, "window_sides", origin="None for unbounded")
def window_none_is_zero(self):
    """None on one side of a window is taken for 0."""
    left, right = Attention.window_sides(self)
    return (left, right) if left is right is None else (left or 0, right or 0)  # wrong: None is unbounded


@mutant(Attention, "window", origin="C15")
def window_ignored_for_one_query(self):
    """The window is ignored in decoding."""
    return np.True_ if self.Tq == 1 else Attention.window(self)  # wrong: Tq == 1


@mutant(Attention, "window", origin="top-left positions in an unfused path")
def window_without_offset(self):
    """The window lies around i, not around i + q_offset."""
    left, right = self.window_sides()
    seen = np.True_ if left is None else self.j >= self.i - left  # wrong: i + offset
    return seen if right is None else seen & (self.j <= self.i + right)  # wrong: i + offset


# ---- lengths, segments, masks that broadcast


@mutant(Attention, "kv_lengths", origin="C36: keys past the length")
def kv_lengths_ignored(self):
    """Keys past the length are read."""
    return self.per_batch("none", self.Tk)  # wrong: kv_lengths


@mutant(Attention, "kv_lengths", origin="C16")
def kv_lengths_of_first_row(self):
    """The length of batch row 0 is used for all rows."""
    return Attention.kv_lengths(self)[:1]  # wrong: [:1]


@mutant(Attention, "lengths", origin="an off-by-one length")
def kv_length_inclusive(self):
    """The key at the length is read too."""
    return (self.i < self.q_lengths()) & (self.j <= self.kv_lengths())  # wrong: <=


@mutant(Attention, "lengths", origin="padding queries")
def q_lengths_ignored(self):
    """Queries past their length see keys."""
    return self.j < self.kv_lengths()  # wrong: i < q_lengths


@mutant(Attention, "segments", origin="packed sequences")
def segments_ignored(self):
    """Packed sequences see each other."""
    return np.True_  # wrong: equal ids


@mutant(Attention, "segments", origin="packed sequences")
def segments_not_below(self):
    """A query sees all earlier segments too."""
    if "q_segment_ids" not in self.options:
        return np.True_
    q_ids = self.options["q_segment_ids"].reshape(-1, 1, 1, self.Tq, 1)
    return q_ids >= self.options["kv_segment_ids"].reshape(-1, 1, 1, 1, self.Tk)  # wrong: ==


@mutant(Attention, "mask", origin="C36")
def mask_of_first_batch_row(self):
    """The mask of batch row 0 is used for all rows."""
    return Attention.mask(self)[:1] if "mask" in self.options else np.True_  # wrong: [:1]


@mutant(Attention, "mask", origin="C36, mask[0, 0]")
def mask_of_first_head(self):
    """The mask of head 0 is used for all heads."""
    return Attention.mask(self)[:, :1, :1] if "mask" in self.options else np.True_  # wrong: [:, :1, :1]


@mutant(Attention, "mask", origin="a mask from a row-major index in the wrong order")
def mask_transposed(self):
    """The mask is read as (Tk, Tq)."""
    if "mask" not in self.options:
        return np.True_
    seen = Attention.mask(self)
    return seen.swapaxes(-1, -2).reshape(seen.shape)  # wrong: transposed memory


@mutant(Attention, "visible", origin="an exclusive end")
def last_key_dropped(self):
    """The last key is never read."""
    return Attention.visible(self) & (self.j < self.Tk - 1)  # wrong: Tk


@mutant(Attention, "visible", origin="an exclusive start")
def first_key_dropped(self):
    """The first key is never read."""
    return Attention.visible(self) & (self.j > 0)  # wrong: j >= 0


@mutant(Attention, "hide", origin="C3: -inf in a bias")
def minus_inf_bias_is_finite(self, s):
    """A bias of -inf is added as a large finite number: its rows give the mean of v."""
    s = Attention.hide(self, s)
    if "bias" not in self.options:
        return s
    return self.xp.where(self.native(self.bias_hides()), -3.0e38, s)  # wrong: -inf
