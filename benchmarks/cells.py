"""What is measured, as data. Imports no framework.

Axes: B batch, H query heads, H_kv key-value heads, T positions, D head size, C = H * D channels, L layers of
a model, V entries of its vocabulary.
A cell is one workload at one length in one dtype; a grid is the list of cells of a run.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from parity.cases import Case

HEADS, HEAD_DIM, LAYERS, VOCABULARY = 12, 64, 12, 50257  # GPT-2 small
WINDOW = 256
VARIANTS = {
    "causal": "every query reads its own position and all before it",
    "full": "every query reads every key",
    "window": f"causal, and at most {WINDOW} positions back",
    "padded": "not causal; the second half of the keys is padding (kv_lengths = T / 2)",
    "grouped": "causal; 12 query heads share 2 key-value heads",
    "decode": "one query reads a cache of T keys",
    "block": "a whole pre-norm GPT-2 block, causal, 768 wide",
    "step": "a GPT-2 small model reads the next token of each row, with T positions in its dense caches",
}
DECODING = ("decode", "step")  # they read much and compute little
KINDS = {"block": "block", "step": "model"}  # variant -> what is measured, where it is not attention
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
FORWARD, BOTH = "forward", "forward+backward"


@dataclass(frozen=True)
class Cell:
    """One workload. variant: a key of VARIANTS. passes: FORWARD or BOTH. weighed: measure memory too."""

    variant: str
    passes: str
    T: int
    dtype: str = "float32"
    B: int = 1
    H: int = HEADS
    D: int = HEAD_DIM
    weighed: bool = False
    L: int = LAYERS
    V: int = VOCABULARY

    @property
    def kind(self) -> str:
        """What the cell is of: attention, a block or a model."""
        return KINDS.get(self.variant, "attention")

    @property
    def H_kv(self) -> int:
        return 2 if self.variant == "grouped" else self.H

    @property
    def Tq(self) -> int:
        return 1 if self.variant in DECODING else self.T

    @property
    def Tk(self) -> int:
        return self.T + 1 if self.variant == "step" else self.T  # the token that is read is a key too

    @property
    def C(self) -> int:
        return self.H * self.D

    def at(self, T: int) -> "Cell":
        """The same workload at another length."""
        return replace(self, T=T)

    @property
    def workload(self) -> str:
        """What grows with T: everything of the cell but its length and batch, and of a step its batch too."""
        rows = f" of {self.B} row{'s' if self.B > 1 else ''}" if self.variant == "step" else ""
        return f"{self.variant}{rows}, {self.passes}, {self.dtype}"

    @property
    def backward(self) -> bool:
        return self.passes == BOTH

    def case(self) -> Case:
        """The cell as a case of the catalogue's kind: its shapes and the contract's keywords."""
        kv_lengths = (self.T // 2,) * self.B if self.variant == "padded" else None
        return Case(
            f"bench-{self.variant}-{self.T}",
            VARIANTS[self.variant],
            q=(self.B, self.H, self.Tq, self.D),
            kv=(self.B, self.H_kv, self.Tk, self.D),
            v_dim=self.D,
            causal=self.variant in ("causal", "window", "grouped", "block"),
            window=(WINDOW, 0) if self.variant == "window" else None,
            kv_lengths=kv_lengths,
        )

    def pairs(self) -> int:
        """Visible (query, key) pairs of one head of one sequence, counted exactly."""
        from attn_torch.schedule import visible_pairs  # not above: a process for jax never imports torch

        case = self.case()
        kv_length = self.T // 2 if self.variant == "padded" else None
        return visible_pairs(self.Tq, self.Tk, case.causal, case.window, kv_length=kv_length)

    def flops(self, pairs: int | None = None) -> int:
        """Useful floating-point operations: those of the matrix products, none counted twice.

        Forward 2 products over the pairs (q k^T, w v), backward 4 more (dw, dv, dq, dk). Scores that a
        backward pass recomputes are not counted: papers on flash attention count them, 3.5 times the forward
        pass where this says 3. A block adds its four projections: 12 C^2 multiply-adds a position. A model
        is L blocks and a head of V C.
        pairs: another count in place of the visible ones.
        """
        pairs = self.pairs() if pairs is None else pairs
        forward = 4 * self.B * self.H * pairs * self.D
        if self.variant == "block":
            forward += 24 * self.B * self.T * self.C**2
        if self.variant == "step":
            forward = self.L * (forward + 24 * self.B * self.C**2) + 2 * self.B * self.V * self.C
        return 3 * forward if self.backward else forward

    def dense_flops(self) -> int:
        """The same, as if every query read every key."""
        return self.flops(self.Tq * self.Tk)

    def cache_bytes(self) -> int:
        """Bytes of k and v, those of all layers of a model."""
        layers = self.L if self.variant == "step" else 1
        return layers * 2 * self.B * self.H_kv * self.T * self.D * ITEMSIZE[self.dtype]

    def read_bytes(self) -> int:
        """Bytes that a step of decoding cannot avoid reading: the cache, and of a model the parameters.

        Of these the blocks, the last norm, the embedding of every token, which is the head, and that of one
        position.
        """
        if self.variant != "step":
            return self.cache_bytes()
        parameters = self.L * (12 * self.C**2 + 13 * self.C) + 2 * self.C + self.V * self.C + self.C
        return self.cache_bytes() + parameters * ITEMSIZE[self.dtype]

    def result_bytes(self) -> int:
        """Bytes of the output and of all gradients: memory that no implementation can spare."""
        out = self.B * (self.V if self.variant == "step" else self.H * self.Tq * self.D)
        others = (
            12 * self.C**2 + 13 * self.C
            if self.variant == "block"
            else 2 * self.B * self.H_kv * self.T * self.D
        )
        return (2 * out + others if self.backward else out) * ITEMSIZE[self.dtype]


def quick() -> Iterator[Cell]:
    """Minutes on two cores: causal attention in float32, and a model that decodes."""
    for T, passes in itertools.product((256, 512, 1024, 2048), (FORWARD, BOTH)):
        yield Cell("causal", passes, T, B=1, weighed=passes == BOTH and T in (256, 1024))
    yield from steps()


def steps() -> Iterator[Cell]:
    """A model that decodes, one row and several."""
    for B in (1, 8):
        yield Cell("step", FORWARD, 512, B=B)


def full() -> Iterator[Cell]:
    """Every workload over the lengths where it says something; two sequences a batch up to 2048.

    Memory is that of both passes: forward alone needs less.
    """
    lengths = [2**n for n in range(7, 16)]  # 128 .. 32768
    some = [1024, 2048, 4096]
    longer = {"causal": lengths, "window": [*some, 8192]}

    def cell(variant, passes, T, dtype="float32", weighed=False):
        return Cell(variant, passes, T, dtype, B=2 if T <= 2048 else 1, weighed=weighed)

    for variant in ("causal", "full", "window", "padded", "grouped"):
        for passes, T in itertools.product((FORWARD, BOTH), longer.get(variant, some)):
            yield cell(variant, passes, T, weighed=passes == BOTH and variant in longer)
    for passes, T in itertools.product((FORWARD, BOTH), (512, *some)):
        yield cell("causal", passes, T, "bfloat16")
        yield cell("block", passes, T, weighed=passes == BOTH)
    for dtype, T in itertools.product(("float32", "bfloat16"), lengths[3:]):
        yield cell("decode", FORWARD, T, dtype)
    yield from steps()
