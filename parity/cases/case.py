"""What a case is, and the shapes that cases share."""

from dataclasses import dataclass, fields
from functools import partial

NOT_OPTIONS = ("name", "catches", "q", "kv", "v_dim", "budget", "origin", "fill", "layout", "poison")


@dataclass(frozen=True)
class Case:
    """One input: shapes, how its values are filled and laid out in memory, and the contract's keywords.

    q: (*batch, H, Tq, D), or (Tq, D) without a head axis. kv: (*batch, Hkv, Tk, D). v is kv with v_dim for D.
    budget: the smallest run that includes it. origin: the report it retells, an id of REPORTS, if any.
    fill: a name in parity.fills; layout: one in parity.inputs. poison: "keys" puts NaN into k and Inf into v
    where no query reads them, "queries" NaN into q and dout where nothing is visible; or both words.
    mask, bias, dropout_mask: (recipe, axes), a recipe of parity.fills and the axes it fills: "b1qk" is
    (*batch, 1, Tq, Tk), "k" is (Tk,). Segment ids: a string of digits per batch row. Every other field is
    the contract's keyword of that name.
    """

    name: str
    catches: str
    q: tuple[int, ...]
    kv: tuple[int, ...]
    v_dim: int
    budget: str = "default"
    origin: str = ""
    fill: str = "normal"
    layout: str = "contiguous"
    poison: str = ""
    causal: bool = False
    mask: tuple[str, str] | None = None
    bias: tuple[str, str] | None = None
    scale: float | None = None
    softcap: float | None = None
    window: int | tuple[int | None, int | None] | None = None
    q_offset: int | str | tuple = 0
    q_lengths: int | tuple | None = None
    kv_lengths: int | tuple | None = None
    q_segment_ids: tuple[str, ...] | None = None
    kv_segment_ids: tuple[str, ...] | None = None
    sinks: tuple[float, ...] | None = None
    dropout_p: float = 0.0
    dropout_seed: int | None = None
    dropout_mask: tuple[str, str] | None = None

    @property
    def batch(self) -> tuple[int, ...]:
        return self.q[:-3]

    @property
    def n_head(self) -> int:
        return self.q[-3] if len(self.q) > 2 else 1

    @property
    def n_kv_head(self) -> int:
        return self.kv[-3] if len(self.kv) > 2 else 1

    @property
    def head_dim(self) -> int:
        return self.q[-1]

    @property
    def Tq(self) -> int:
        return self.q[-2]

    @property
    def Tk(self) -> int:
        return self.kv[-2]

    @property
    def v_shape(self) -> tuple[int, ...]:
        return (*self.kv[:-1], self.v_dim)

    @property
    def options(self) -> dict:
        """The contract's keywords this case sets, as written above (recipes, not arrays)."""
        keywords = [f for f in fields(self) if f.name not in NOT_OPTIONS]
        return {f.name: getattr(self, f.name) for f in keywords if getattr(self, f.name) != f.default}


square = partial(Case, q=(2, 3, 14, 8), kv=(2, 3, 14, 8), v_dim=8)  # self-attention, what every library takes
short = partial(Case, q=(2, 3, 5, 12), kv=(2, 3, 18, 12), v_dim=12)  # Tq < Tk
tall = partial(Case, q=(3, 4, 13, 20), kv=(3, 2, 6, 20), v_dim=20)  # Tq > Tk, grouped
grouped = partial(Case, q=(2, 6, 7, 16), kv=(2, 3, 11, 16), v_dim=24)  # two query heads a kv head, Dv != D
decode = partial(Case, q=(1, 4, 1, 12), kv=(1, 1, 1030, 12), v_dim=12)  # one query, one kv head, a long cache
plain = partial(Case, q=(6, 10), kv=(9, 10), v_dim=4)  # no head axis
deep = partial(Case, q=(2, 1, 3, 10, 4, 8), kv=(2, 1, 3, 5, 7, 8), v_dim=6)  # many leading axes
full = partial(Case, budget="full")  # a shape of its own
