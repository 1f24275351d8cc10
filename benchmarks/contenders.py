"""Who is measured: the subjects of parity, whole blocks, and models. Nothing is imported before it runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

from benchmarks import blocks, models
from benchmarks.cells import KINDS, Cell
from parity import devices, subjects
from parity.subjects import Subject

# Kind of cell -> framework -> the library's own, against which every time is set. For models both have one.
BASELINES = {
    "attention": {"torch": "torch.sdpa", "jax": "jax.nn"},
    "block": {"torch": "torch.nn layer", "jax": "flax parts"},
    "model": {"torch": "transformers model"},
}
NOT_TIMED = {
    "torch.MultiheadAttention": "parity gives it identity projections, which would be timed with it",
    "torch.MultiheadAttention[weights]": "as torch.MultiheadAttention",
}


@dataclass(frozen=True)
class Contender:
    """load() gives f(q, k, v, **options), or a loader of blocks.py or models.py. claims: dtype -> claim."""

    name: str
    framework: str
    load: Callable
    claims: Mapping[str, str]
    subject: Subject | None = None  # of attention
    kind: str = "attention"

    def claim(self, dtype: str) -> str:
        """The claim it is held to, or the weaker one that it is declared to keep."""
        diverges = self.subject.diverges if self.subject else ()
        weaker = [d.claims[dtype] for d in diverges if d.claims and dtype in d.claims]
        return weaker[-1] if weaker else self.claims[dtype]


@cache
def everyone() -> dict[str, Contender]:
    """Name -> contender. Ours are called without return_lse: "auto" may then use kernels that have none."""
    made = {}
    for name, subject in subjects.built_in().items():
        package, _, implementation = name.partition("[")
        mine = package in ("attn_torch", "attn_jax")
        load = ours(package, implementation.rstrip("]")) if mine else subject.load
        made[name] = Contender(name, subject.framework, load, subject.claims, subject)
    for package in ("attn_torch", "attn_jax"):
        name = f"{package}[auto]"
        made.setdefault(name, replace(made[f"{package}[reference]"], name=name, load=ours(package, "auto")))
    whole: dict[str, Mapping] = {"block": blocks.BLOCKS, "model": models.MODELS}
    for kind, loaders in whole.items():
        for name, (framework, loader) in loaders.items():
            load, claims = lambda loader=loader: loader, {"float32": "float32"}
            made[name] = Contender(name, framework, load, claims, kind=kind)
    return made


def ours(package: str, implementation: str) -> Callable:
    """A loader of one implementation of attn_torch or attn_jax."""

    def load():
        attend = import_module(package).scaled_dot_product_attention
        return lambda q, k, v, **options: attend(q, k, v, implementation=implementation, **options)

    return load


def fits(cell: Cell, name: str) -> bool:
    """Whether this contender is of the cell's kind."""
    return everyone()[name].kind == cell.kind


def unable(cell: Cell, name: str, device: str) -> str | None:
    """Why this contender cannot do the cell, by its own account, or None."""
    contender = everyone()[name]
    if cell.dtype not in contender.claims:
        return f"claims nothing for {cell.dtype}"
    if devices.installed(models.NEEDS.get(name, "numpy")) == "absent":
        return f"{models.NEEDS[name]} is not installed"
    if contender.subject is None:
        return None
    if cell.backward and device in contender.subject.forward_only:
        return f"has no backward on {device}"
    return contender.subject.cannot(cell.case())


def baselines(cell: dict) -> dict[str, str]:
    """Framework -> the contender that times of this cell are set against."""
    return BASELINES[KINDS.get(cell["variant"], "attention")]
