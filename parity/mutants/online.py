"""Online softmax: tiles of keys, and what must happen when the maximum rises. Their twin is Tiled."""

import math

import numpy as np

from parity.mutants.attention import Attention, Tiled
from parity.mutants.registry import mutant


@mutant(Tiled, "add_values", origin="a missing rescale")
def accumulator_not_rescaled(self, acc, fade, e, v):
    """The accumulator keeps the old maximum."""
    return acc + e @ v  # wrong: acc * fade


@mutant(Tiled, "add_mass", origin="a missing rescale")
def sum_not_rescaled(self, mass, fade, e):
    """The running sum keeps the old maximum."""
    return mass + self.total(e)  # wrong: mass * fade


@mutant(Tiled, "fade", origin="an inverted factor")
def rescale_inverted(self, peak, new_peak):
    """The rescaling factor is inverted."""
    fade = Tiled.fade(self, peak, new_peak)
    return 1 / self.xp.where(fade > 0.0, fade, 1.0)  # wrong: 1 /


@mutant(Tiled, "fade", origin="exp2 in one place only")
def rescale_in_base_two(self, peak, new_peak):
    """The rescaling factor is a power of two, the weights are powers of e."""
    return Tiled.fade(self, peak * math.log(2), new_peak * math.log(2))  # wrong: the base


@mutant(Tiled, "new_peak", origin="a stale maximum")
def maximum_not_updated(self, peak, tile):
    """The maximum is that of the first tile: later ones overflow."""
    return self.xp.where(peak > -np.inf, peak, Tiled.new_peak(self, peak, tile))  # wrong: the larger


@mutant(Tiled, "new_peak", origin="initialised with 0")
def maximum_starts_at_zero(self, peak, tile):
    """The running maximum starts at 0: rows of very negative scores vanish."""
    zero = self.xp.zeros_like(peak)
    return self.xp.maximum(Tiled.new_peak(self, peak, tile), zero)  # wrong: starts at -inf


@mutant(Tiled, "new_peak", origin="no maximum at all")
def maximum_not_subtracted(self, peak, tile):
    """Scores are exponentiated as they are."""
    return self.xp.zeros_like(peak)  # wrong: the maximum


@mutant(Tiled, "tiles", origin="Tk // tile")
def last_tile_dropped(self):
    """Keys past the last full tile are not read."""
    tiles = Tiled.tiles(self)
    return [tile for tile in tiles if tile[1] - tile[0] == tiles[0][1]]  # wrong: the tail


@mutant(Tiled, "tiles", origin="an inclusive end")
def tiles_overlap(self):
    """Each tile begins with the last key of the one before."""
    return [(max(j0 - 1, 0), j1) for j0, j1 in Tiled.tiles(self)]  # wrong: - 1


@mutant(Attention, "softmax", origin="a tail padded with zeros")
def tail_padded_with_zeros(self, s):
    """Keys are padded to a multiple of 16 and take part with score 0."""
    pad = self.native(np.zeros((*s.shape[:-1], -self.Tk % 16)))
    p, lse = Attention.softmax(self, self.xp.concatenate([s, pad], -1))  # wrong: 0 for -inf
    return p[..., : self.Tk], lse


@mutant(Tiled, "causal", origin="a tile-local key index in the causal test")
def causal_test_in_tile_coordinates(self):
    """The causal test takes the key's index in its tile for its position."""
    if not self.options.get("causal"):
        return np.True_
    return self.j % Tiled.tiles(self)[0][1] <= self.i + self.offset()  # wrong: j


@mutant(Tiled, "tiles", origin="skipping hidden tiles")
def tiles_skipped_too_early(self):
    """A tile whose last key the last query does not see is skipped."""
    if not self.options.get("causal"):
        return Tiled.tiles(self)
    last = np.min(self.Tq - 1 + self.offset())
    return [(j0, j1) for j0, j1 in Tiled.tiles(self) if j1 - 1 <= last]  # wrong: j0 <= last


@mutant(Tiled, "finish", origin="normalised twice")
def normalised_per_tile(self, peak, mass, acc):
    """The output is divided by the sum a second time."""
    out, lse = Tiled.finish(self, peak, mass, acc)
    return self.normalise(out, mass), lse  # wrong: again


@mutant(Tiled, "finish", origin="lse of the last tile")
def lse_without_maximum(self, peak, mass, acc):
    """lse is the logarithm of the sum, without the maximum."""
    out, lse = Tiled.finish(self, peak, mass, acc)
    return out, lse - self.finite(peak)  # wrong: + peak


@mutant(Tiled, "finish", origin="lse in base 2")
def lse_in_base_two(self, peak, mass, acc):
    """lse is returned in base 2."""
    out, lse = Tiled.finish(self, peak, mass, acc)
    return out, lse / math.log(2)  # wrong: natural logarithm


@mutant(Tiled, "start", origin="C35: the sink in more than one tile")
def sink_counted_twice(self, s):
    """The sink enters the sum twice."""
    peak, mass, acc = Tiled.start(self, s)
    return peak, mass * 2, acc  # wrong: once


@mutant(Attention, "softmax", origin="softmax1, off by one")
def one_more_in_the_denominator(self, s):
    """The denominator has an extra 1, exp(0), although there is no sink."""
    zero = self.xp.zeros_like(s[..., :1])
    p, lse = Attention.softmax(self, self.xp.concatenate([s, zero], -1))  # wrong: a score of 0
    return p[..., :-1], lse


@mutant(Attention, "peak", origin="no maximum at all")
def softmax_without_maximum(self, columns):
    """The softmax does not subtract the maximum."""
    return self.xp.zeros_like(columns[..., :1])  # wrong: the maximum
