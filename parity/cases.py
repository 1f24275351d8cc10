"""The case catalogue: each input on which an attention implementation can go wrong, as data, with its reason.

B batch, H heads, Tq/Tk positions, D head size, Dv value size. The axes of a shape are all different, so that
an implementation which takes one for another cannot pass. Cases share a few shape families, because each
shape costs a compilation: the options vary inside a family. `parity.inputs.make` turns a case into arrays.
"""

from dataclasses import dataclass, fields
from functools import partial

BUDGETS = ("quick", "default", "full")
NOT_OPTIONS = ("name", "catches", "q", "kv", "v_dim", "budget", "origin", "fill", "layout", "poison")


@dataclass(frozen=True)
class Case:
    """One input: shapes, how its values are filled and laid out in memory, and the contract's keywords.

    q: (*batch, H, Tq, D), or (Tq, D) without a head axis. kv: (*batch, Hkv, Tk, D). v is kv with v_dim for D.
    budget: the smallest run that includes it. origin: the id of the public report it retells, if any.
    fill, layout: names in parity.inputs. poison: "keys" puts NaN into k and Inf into v where no query reads
    them, "queries" puts NaN into q and dout where nothing is visible; both words may be given.
    mask, bias, dropout_mask: (recipe, axes), a recipe of parity.inputs and the axes it fills: "b1qk" is
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
tall = partial(Case, q=(2, 4, 13, 20), kv=(2, 2, 6, 20), v_dim=20)  # Tq > Tk, grouped
grouped = partial(Case, q=(2, 6, 7, 16), kv=(2, 2, 11, 16), v_dim=24)  # three query heads a kv head, Dv != D
decode = partial(Case, q=(1, 4, 1, 12), kv=(1, 1, 1030, 12), v_dim=12)  # one query, one kv head, a long cache
plain = partial(Case, q=(6, 10), kv=(9, 10), v_dim=4)  # no head axis
deep = partial(Case, q=(2, 1, 3, 4, 5, 8), kv=(2, 1, 3, 2, 7, 8), v_dim=6)  # many leading axes

VALUES = (
    square("normal", "scale forgotten, D for its root; layouts swapped", origin="C8", budget="quick"),
    square("big", "an exponential without the maximum; a score rounded to bfloat16", fill="big",
           budget="quick"),
    square("huge", "overflow of exp; gradients of a saturated softmax", fill="huge"),
    square("tiny-logits", "underflow of q or of the scaled dS", fill="tiny logits", budget="full"),
    square("one-hot", "a lookup that is not exact; a shifted v", fill="one-hot"),
    square("flat", "equal scores: the mean of v, and gradients that cancel", fill="flat"),
    square("equal", "all entries equal: sums of equal terms, where rounding has one sign", fill="equal"),
    square("uniform", "weights of 1/T on positive v: an accumulator of few bits", fill="uniform"),
    square("cancelling", "values that cancel in pairs: P rounded before it multiplies v", fill="cancelling"),
    square("ascending", "online softmax: maximum not updated, accumulator or sum not rescaled",
           fill="ascending", budget="quick"),
    square("descending", "online softmax: the first tile holds the maximum, later ones underflow",
           fill="descending", budget="full"),
    square("clusters", "equal keys: ties of the maximum, gradient sent to one of them", fill="clusters",
           budget="full"),
    square("alternating", "scores and values alternate in sign", fill="alternating", budget="full"),
    square("low-rank", "rows almost equal: roundings that do not average out", fill="low rank"),
    square("mixed-scales", "entries over many magnitudes", fill="mixed scales", budget="full"),
    square("sparse", "few significant entries: exact products", fill="sparse", budget="full"),
    square("tiny-v", "values and cotangents of 1e-6: flushed subnormals", fill="tiny v"),
    square("offset-keys", "a common offset in k: the difference of large scores", fill="offset keys"),
    square("values-near-16", "bfloat16 outputs near 16: half a unit there is 0.06", fill="values near 16",
           origin="C39"),
    square("raw-overflow", "raw scores above 65504: float16 overflow before the scale", fill="raw overflow",
           scale=0.001, budget="quick"),
    square("negative-live", "live scores below -1e4: a mask of -1e4 no longer hides", fill="negative live",
           mask=("random", "b1qk"), budget="quick"),
    tall("big-tall", "large scores with grouped heads and more queries than keys", fill="big", budget="full"),
    tall("normal-tall", "Tq for Tk in a sum or a mean", origin="C38", budget="full"),
    short("ascending-short", "online softmax: the maximum is in the last, partial tile", fill="ascending"),
    short("big-short", "large scores with fewer queries than keys", fill="big", budget="full"),
    short("scale-one", "an explicit scale ignored", scale=1.0),
    short("scale-negative", "the sign of a scale lost (a square root, an absolute value)", scale=-0.7),
)  # fmt: skip

MASKS = (
    square("causal", "future keys visible, or the diagonal hidden", causal=True, budget="quick"),
    short("causal-top-left", "causal aligned to the last key although q_offset is 0", causal=True),
    short("causal-bottom-right", "causal aligned to the first key: bottom-right offset ignored", causal=True,
          q_offset="bottom_right", budget="quick"),
    tall("causal-top-left-tall", "a causal test that ends at Tq", causal=True, budget="full"),
    tall("causal-bottom-right-tall", "negative offset: the first queries see nothing and must give 0",
         causal=True, q_offset="bottom_right", budget="quick"),
    short("causal-offset", "an integer offset ignored or of the wrong sign", causal=True, q_offset=9),
    grouped("causal-offset-per-row", "one offset taken for all batch rows", causal=True, q_offset=(4, 1)),
    grouped("causal-offset-negative", "a negative offset clamped to 0", causal=True, q_offset=(-2, -3),
            budget="full"),
    square("window-left", "window (2, 0) with one key too few or too many", window=(2, 0), origin="C21",
           budget="quick"),
    square("window-int", "an int window read as left only", window=3),
    short("window-int-offset", "an int window read as left only, or around i", window=2, q_offset=6),
    square("window-right", "right edge off by one; None taken for 0", window=(None, 1)),
    short("window-offset", "window around i, not around i + q_offset; None taken for 0", window=(3, None),
          q_offset=8),
    short("window-bottom-right", "window at the first key although the queries are the last", window=(4, 0),
          causal=True, q_offset="bottom_right"),
    tall("window-empty", "queries past the last key: the window holds nothing", window=(1, 1), budget="full"),
    square("window-zero", "window (0, 0): each query reads itself", window=0, budget="full"),
    square("mask-random", "mask inverted, applied after the softmax, or added as 0 and 1",
           mask=("random", "bhqk"), budget="quick"),
    square("mask-block", "rows that see nothing: NaN, or the mean of v", mask=("block", "11qk"), origin="C2",
           budget="quick"),
    square("mask-dead-rows", "empty rows among live ones: 0, and gradients 0", mask=("dead rows", "b1qk")),
    square("mask-hidden-key", "a key no query reads, full of NaN and Inf", mask=("all but key 1", "k"),
           poison="keys", origin="C1", budget="quick"),
    square("mask-blind-queries", "NaN in q and dout of rows that see nothing", mask=("dead rows", "b1qk"),
           poison="queries"),
    square("mask-dead-head", "one head that sees nothing", mask=("all but head 1", "1h11"), origin="C29"),
    short("mask-key-axis", "a (Tk,) mask read along the queries", mask=("random", "k"), origin="C36"),
    short("mask-batch-axis", "a (B, 1, Tq, Tk) mask read along the heads", mask=("random", "b1qk"),
          origin="C36"),
    short("mask-head-axis", "a (1, H, 1, Tk) mask read along the batch", mask=("random", "1h1k"),
          origin="C36"),
    short("mask-query-axis", "a (B, H, Tq, 1) mask: whole rows", mask=("dead rows", "bhq1"), budget="full"),
    short("mask-first-batch", "a mask that hides in batch row 0 only, used for all rows",
          mask=("first batch row", "b11k"), origin="C36"),
    square("mask-causal", "causal dropped when a mask is given", mask=("random", "b1qk"), causal=True),
    square("mask-nothing", "everything hidden: 0 everywhere", mask=("nothing", "qk"), budget="full"),
    grouped("lengths", "keys past a row's length read; the padded width used", q_lengths=(7, 4),
            kv_lengths=(11, 6), origin="C36"),
    grouped("lengths-causal-bottom-right", "bottom-right taken from the padded width", q_lengths=(5, 3),
            kv_lengths=(11, 4), causal=True, q_offset="bottom_right"),
    grouped("lengths-poison", "0 * NaN: padding of a cache reaches output or gradients", q_lengths=(7, 4),
            kv_lengths=(9, 5), poison="keys queries", origin="C1", budget="quick"),
    grouped("lengths-zero", "an empty cache in one batch row", kv_lengths=(11, 0), budget="full"),
    short("length-int", "one length for all rows", kv_lengths=13, q_lengths=4, budget="full"),
    square("window-lengths", "a banded causal mask with trailing padding: rows with no key", window=(2, 0),
           causal=True, kv_lengths=(14, 8), origin="C28"),
    square("segments", "packed sequences leak into each other",
           q_segment_ids=("00000111112222", "01111111111122"),
           kv_segment_ids=("00000111112222", "01111111111122"), budget="quick"),
    square("segments-causal", "causal dropped with segments",
           q_segment_ids=("00000111112222", "01111111111122"),
           kv_segment_ids=("00000111112222", "01111111111122"), causal=True, budget="full"),
    short("segments-cross", "key ids read as query ids; an id without keys", q_segment_ids=("00112", "33444"),
          kv_segment_ids=("000111100011110000", "333333334444444444")),
    deep("lengths-deep", "lengths per batch entry when the batch has three axes",
         kv_lengths=(((7, 5, 3),), ((1, 6, 2),)), q_offset=(((0, 1, 2),), ((0, -1, 1),)), causal=True),
    plain("mask-plain", "no head axis: mask (Tq, Tk)", mask=("random", "qk"), causal=True,
          q_offset="bottom_right", budget="full"),
)  # fmt: skip

SCORES = (
    square("softcap", "cap omitted, or its derivative", fill="big", softcap=20.0),
    square("softcap-2-mask", "cap after the mask: hidden keys come back at -cap", fill="big", softcap=2.0,
           mask=("random", "b1qk"), budget="quick"),
    square("softcap-2-causal", "cap after the causal mask; cap missing in the backward", fill="big",
           softcap=2.0, causal=True),
    square("softcap-bias", "bias before the cap instead of after", fill="big", softcap=20.0,
           bias=("normal", "1hqk"), origin="C22"),
    square("bias", "bias omitted, scaled with the scores, or without gradient", bias=("normal", "bhqk"),
           origin="C7"),
    square("bias-big", "a bias that decides", bias=("big", "bhqk"), budget="full"),
    square("bias-alibi", "slopes in the wrong head order; distance of the wrong sign",
           bias=("alibi", "1hqk")),
    square("bias-alibi-causal", "ALiBi with a causal mask", bias=("alibi", "1hqk"), causal=True,
           budget="full"),
    square("bias-inf-row", "a row of -inf: 0, never NaN or the mean", bias=("row -inf", "b1qk"), origin="C3",
           budget="quick"),
    square("bias-inf-some", "-inf here and there, with an unread key", bias=("some -inf", "1hqk"),
           poison="keys"),
    square("bias-finite-row", "a row of -1e9 is a bias, not a mask", fill="flat", bias=("row -1e9", "11qk"),
           origin="C4"),
    square("bias-minus-1e4", "a row of -1e4 taken for hidden", bias=("row -1e4", "11qk"), origin="C4"),
    short("bias-minus-1e4-short", "dv of a row far below 0, from weights not normalised",
          bias=("row -1e4", "b1qk"), origin="C4"),
    short("bias-key-axis", "a (Tk,) bias read along the queries; its gradient summed over all else",
          bias=("normal", "k"), origin="C36"),
    short("bias-query-key", "a (Tq, Tk) bias: gradient summed over batch and heads", bias=("normal", "qk"),
          budget="full"),
    short("bias-batch-axis", "a (B, 1, 1, Tk) bias: gradient kept per row of the batch",
          bias=("normal", "b11k")),
    tall("bias-head-axis", "a (1, H, Tq, 1) bias changes no weight, only lse", bias=("normal", "1hq1"),
         budget="full"),
    grouped("bias-grouped", "bias per query head with grouped heads", bias=("normal", "1hqk"), causal=True,
            budget="full"),
    grouped("sinks", "sink left out, added to every score, or left out of lse",
            sinks=(0.5, 100.0, -3.0, 0.0, 2.0, 0.5), origin="C35", budget="quick"),
    grouped("sinks-empty-rows", "a row that sees nothing with a sink: 0, lse the sink",
            sinks=(0.5, 100.0, -3.0, 0.0, 2.0, 1.0), mask=("dead rows", "b1qk"), origin="C35",
            budget="quick"),
    grouped("sinks-causal", "the sink hidden by the causal mask", sinks=(1.0, 0.5, 2.0, -1.0, 0.0, 3.0),
            causal=True, q_offset="bottom_right"),
    square("sinks-softcap", "the sink capped or biased with the scores", fill="big", softcap=2.0,
           sinks=(5.0, -1.0, 8.0), bias=("normal", "1hqk")),
    square("scale-zero-causal", "0 times -inf: the mask multiplied by the scale", scale=0.0, causal=True,
           origin="C25", budget="quick"),
    square("scale-minus-zero-causal", "-0.0 times -inf", scale=-0.0, causal=True, origin="C25"),
    square("scale-negative-causal", "-0.5 times -inf is +inf", scale=-0.5, causal=True, origin="C25"),
    short("scale-negative-softcap", "the cap of a negative score", fill="big", scale=-0.5, softcap=2.0,
          budget="full"),
)  # fmt: skip

HEADS = (
    grouped("grouped", "heads tiled (0, 1, 0, 1) for repeated (0, 0, 1, 1); Dv taken for D", origin="C38",
            budget="quick"),
    grouped("grouped-causal", "the group axis taken for time in a causal mask", causal=True, q_offset=4,
            origin="C38", budget="full"),
    tall("grouped-causal-tall", "dk, dv of one query head only; a transposed dout", layout="dout bthd",
         causal=True, q_offset=-2),
    decode("decode", "one query against a long cache: tile tails, a missing last tile"),
    decode("decode-causal", "Tq = 1 with causal and offset 0: key 0 alone", causal=True, origin="C15"),
    decode("decode-bottom-right", "causal top-left in decode: reads key 0 only", causal=True,
           q_offset="bottom_right", origin="C26"),
    decode("decode-window", "window ignored in decode", window=(300, 0), causal=True, q_offset=(1029,),
           origin="C15"),
    decode("decode-length", "keys past the length of the cache, which hold NaN", kv_lengths=(517,),
           causal=True, window=(400, 0), q_offset="bottom_right", poison="keys"),
    decode("decode-uniform", "a long uniform row of positive v: accumulation in bfloat16", fill="uniform",
           budget="quick"),
    decode("decode-big", "long rows with large scores", fill="big", budget="full"),
    decode("decode-tiny", "the underflow of scaled dS in long rows", fill="tiny v", budget="full"),
    deep("deep", "leading axes folded in the wrong order", budget="quick"),
    deep("deep-mask", "batch axes of a mask not folded with the rest; transposed views", layout="bthd",
         mask=("random", "b1qk"), bias=("normal", "bh1k")),
    plain("plain", "(T, D) without a head axis", budget="quick"),
    plain("plain-causal", "(T, D) with causal and a positive offset; a slice", causal=True, q_offset=2,
          layout="offset"),
)  # fmt: skip

DROPOUT = (
    square("dropout", "kept weights not divided by 1 - p; dropout before the normalisation", dropout_p=0.25,
           dropout_seed=7, budget="quick"),
    square("dropout-causal", "the causal mask dropped on the dropout path", dropout_p=0.4, dropout_seed=11,
           causal=True, origin="C9"),
    grouped("dropout-grouped", "the stream of bits indexed by kv head; b and h confused", dropout_p=0.5,
            dropout_seed=4294967295),
    deep("dropout-deep", "flattened batch index of the stream of bits", dropout_p=0.3, dropout_seed=3,
         budget="full"),
    square("dropout-mask", "a keep-mask read as a drop-mask", dropout_p=0.3, dropout_mask=("random", "bhqk"),
           causal=True),
    short("dropout-mask-broadcast", "a keep-mask broadcast over heads", dropout_p=0.2,
          dropout_mask=("random", "b1qk"), budget="full"),
    grouped("dropout-sinks", "dropout with sinks and rows that see nothing", dropout_p=0.5, dropout_seed=99,
            sinks=(0.5, 1.0, -1.0, 0.0, 2.0, 0.0), mask=("dead rows", "11qk"), budget="full"),
)  # fmt: skip

LAYOUTS = (
    square("layout-bthd", "transposed views of (B, T, H, D) read as contiguous", layout="bthd", origin="C6",
           budget="quick"),
    square("layout-offset", "slices with a storage offset read from its start", layout="offset", causal=True,
           origin="C6"),
    square("layout-every-second", "every second row read as every row", layout="every second", causal=True,
           origin="C6"),
    grouped("layout-expanded", "k and v expanded over heads, stride 0", layout="expanded", origin="C6"),
    square("layout-column", "stride(-1) != 1: rows read across columns", layout="column", origin="C31"),
    square("layout-dout-expanded", "dout of stride 0, as from out.sum(), read as contiguous",
           layout="dout expanded", fill="constant dout", origin="C5"),
    square("layout-dout-transposed", "transposed dout read as contiguous", layout="dout bthd", causal=True,
           origin="C5"),
)  # fmt: skip

TOGETHER = (
    grouped("everything", "any two options that do not combine", causal=True, q_offset=(4, 2), window=(6, 3),
            q_lengths=(7, 5), kv_lengths=(10, 7), q_segment_ids=("0000111", "0001111"),
            kv_segment_ids=("00000011111", "00011111111"), mask=("random", "b1qk"), bias=("normal", "1hqk"),
            softcap=5.0, sinks=(0.5, 1.0, -1.0, 0.0, 2.0, 0.0), dropout_p=0.3, dropout_seed=5, scale=0.3,
            budget="quick"),
    square("everything-square", "any two options that do not combine", causal=True, window=(9, 2),
           kv_lengths=(13, 11), mask=("random", "1hqk"), bias=("some -inf", "bhqk"), softcap=3.0, fill="big",
           poison="keys queries"),
    short("everything-short", "any two options that do not combine", causal=True, q_offset="bottom_right",
          q_lengths=(5, 3), kv_lengths=(17, 12), window=(10, None), bias=("alibi", "1hqk"), dropout_p=0.5,
          dropout_mask=("random", "1hqk")),
)  # fmt: skip

full = partial(Case, budget="full")
FULL = (
    *(full(f"head-size-{D}", "head sizes that are no multiple of a tile", q=(2, 4, 9, D), kv=(2, 2, 13, D),
           v_dim=D, causal=True, q_offset="bottom_right") for D in (1, 40, 59, 96, 111, 160, 256)),
    full("value-size-1", "Dv = 1", q=(2, 3, 4, 6), kv=(2, 3, 5, 6), v_dim=1),
    full("value-size-larger", "Dv above D", q=(2, 3, 4, 6), kv=(2, 3, 5, 6), v_dim=72),
    full("one-position", "T = 1: a weight of exactly 1, no gradient to q and k", q=(2, 3, 1, 8),
         kv=(2, 3, 1, 8), v_dim=8, causal=True),
    full("one-key", "Tk = 1", q=(2, 3, 5, 8), kv=(2, 3, 1, 8), v_dim=6),
    full("one-query-many-keys", "Tq = 1 and Tk = 257: the underflow of scaled dS", q=(2, 3, 1, 16),
         kv=(2, 3, 257, 16), v_dim=16, fill="big"),
    full("worked-example", "q (1, 1), keys (1, 1) and (1, -1): weights 0.804 and 0.196", q=(1, 2), kv=(2, 2),
         v_dim=2, fill="worked example", origin="the worked example of d = 2"),
    full("hidden-key-small", "the smallest case of a hidden NaN", q=(1, 2, 4), kv=(1, 2, 4), v_dim=4,
         mask=("all but key 1", "k"), poison="keys", origin="C1"),
    full("block-small", "rows 4 to 7 of 8 see nothing", q=(1, 1, 8, 8), kv=(1, 1, 8, 8), v_dim=8,
         mask=("block", "qk"), origin="C2"),
    *(full(f"inf-row-batch-{B}", "a row of -inf: nothing depends on the batch size", q=(B, 3, 4, 8),
           kv=(B, 3, 4, 8), v_dim=8, bias=("row -inf", "11qk"), origin="C3") for B in (1, 2)),
    full("finite-row-small", "dv of a row of -1e9 is 1/8, not 1", q=(1, 1, 8, 4), kv=(1, 1, 8, 4), v_dim=4,
         fill="flat", bias=("row -1e9", "qk"), origin="C4"),
    full("layout-mixed-up", "a (B, H, T, D) array given as (B, T, H, D)", q=(1, 4, 32, 64), kv=(1, 4, 32, 64),
         v_dim=64, origin="C8"),
    *(full(f"window-{left}-{right}-six", "window edges at T = 6", q=(1, 1, 6, 4), kv=(1, 1, 6, 4), v_dim=4,
           window=(left, right), origin="C21") for left, right in ((2, 0), (0, 2), (1, 1), (0, 0))),
    *(full(f"scale-{name}-600", "a long causal row whose mask is multiplied by the scale", q=(1, 1, 600, 8),
           kv=(1, 1, 600, 8), v_dim=8, causal=True, scale=scale, origin="C25")
      for name, scale in (("zero", 0.0), ("minus-zero", -0.0), ("minus-half", -0.5))),
    full("four-heads-two", "Hq = 4, Hkv = 2", q=(1, 4, 5, 8), kv=(1, 2, 6, 8), v_dim=8, origin="C38"),
    full("mask-38-keys", "Tk = 38: a mask row that is not aligned", q=(2, 3, 38, 8), kv=(2, 3, 38, 8),
         v_dim=8, mask=("random", "b1qk"), origin="C36"),
    *(full(f"decode-step-{t}", "the causal flag forwarded although the query is one row", q=(2, 2, 1, 8),
           kv=(2, 2, 5, 8), v_dim=8, causal=True, q_offset=t, kv_lengths=t + 1, poison="keys", origin="C26")
      for t in range(5)),
    full("multi-query", "eight query heads, one kv head", q=(2, 8, 7, 16), kv=(2, 1, 9, 16), v_dim=16,
         causal=True, q_offset="bottom_right"),
    full("tiles-causal", "130 positions: tiles of 64 and 128 with a tail", q=(1, 2, 130, 16),
         kv=(1, 2, 130, 16), v_dim=16, causal=True),
    full("tiles-window", "a window that skips whole tiles", q=(1, 2, 130, 16), kv=(1, 2, 210, 16), v_dim=16,
         window=(40, 3), q_offset="bottom_right"),
    full("tiles-segments", "segments that end inside a tile", q=(1, 2, 130, 16), kv=(1, 2, 130, 16), v_dim=16,
         q_segment_ids=("0" * 65 + "1" * 65,), kv_segment_ids=("0" * 65 + "1" * 65,), causal=True),
    full("tiles-ascending", "maxima that rise over many tiles", q=(1, 2, 40, 16), kv=(1, 2, 300, 16),
         v_dim=16, fill="ascending"),
    full("tiles-dropout", "the bits of a tile taken from its own corner", q=(1, 2, 70, 16),
         kv=(1, 2, 140, 16), v_dim=16, dropout_p=0.5, dropout_seed=1),
    full("tiles-lengths", "a length that ends a tile early", q=(2, 2, 66, 16), kv=(2, 2, 140, 16), v_dim=16,
         kv_lengths=(128, 65), causal=True, q_offset="bottom_right", poison="keys"),
    full("long-uniform", "2,048 equal weights", q=(1, 2, 3, 8), kv=(1, 2, 2048, 8), v_dim=8, fill="uniform"),
    full("long-low-rank", "1,030 keys of one direction", q=(1, 2, 5, 8), kv=(1, 2, 1030, 8), v_dim=8,
         fill="low rank"),
    full("empty-batch", "B = 0", q=(0, 3, 5, 8), kv=(0, 3, 7, 8), v_dim=6),
    full("empty-queries", "Tq = 0", q=(2, 3, 0, 8), kv=(2, 3, 7, 8), v_dim=6),
    full("empty-keys", "Tk = 0: every row sees nothing", q=(2, 3, 5, 8), kv=(2, 3, 0, 8), v_dim=6),
    full("empty-keys-sinks", "Tk = 0 with sinks", q=(2, 3, 5, 8), kv=(2, 3, 0, 8), v_dim=6,
         sinks=(0.5, 100.0, -2.0)),
    full("empty-values", "Dv = 0", q=(2, 3, 5, 8), kv=(2, 3, 7, 8), v_dim=0),
    full("empty-head", "D = 0 with an explicit scale: the mean of v", q=(2, 3, 5, 0), kv=(2, 3, 7, 0),
         v_dim=6, scale=1.0),
    full("flat-heads", "three axes: heads without a batch", q=(3, 5, 8), kv=(3, 7, 8), v_dim=6, causal=True,
         kv_lengths=6),
)  # fmt: skip

CASES = (*VALUES, *MASKS, *SCORES, *HEADS, *DROPOUT, *LAYOUTS, *TOGETHER, *FULL)
CATALOGUE = {case.name: case for case in CASES}


def select(budget: str = "default") -> list[Case]:
    """The cases of a budget: "quick", "default" (quick ones included) or "full" (all). Raises ValueError."""
    if budget not in BUDGETS:
        raise ValueError(f"budget must be one of {BUDGETS}, got {budget!r}")
    return [case for case in CATALOGUE.values() if BUDGETS.index(case.budget) <= BUDGETS.index(budget)]
