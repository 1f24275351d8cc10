"""A model's folder: config.json and its tensors, read as keywords and a tree of parameters, or written."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from . import entries, keywords, pickled, stored
from .families import clip, family, nanogpt

OWN = "attn_parity"


def read(path, *, part=None, drop=(), **config):
    """(kind, keywords, tree) of the model in a folder with config.json and model.safetensors, sharded or not.

    Or in a checkpoint of nanoGPT's, a file of torch.save.

    kind: "transformer", whose keywords are those of Transformer, or "encoder_decoder", EncoderDecoder's.
    tree: parameters as params.to_tree gives them, but each a Leaf that is read when NumPy asks for it: of the
      file no more is in memory than is in use. bfloat16 is read as the same numbers in float32.
    part: "text" or "vision" of CLIP.
    drop: patterns, as in fnmatch, of tensors to leave out, such as the head of another task.
    config: entries that take the place of config.json's.
    Raises ValueError if the family is not known, if a tensor is left over or missing, or is not of the shape
    that config.json says; FileNotFoundError if there is no model in the folder.
    """
    path = Path(path)
    if path.is_file():
        c, found = nanogpt.checkpoint(pickled.load(path))
    elif (path / "config.json").exists():
        c, found = keywords.Config(stored.json_of(path / "config.json")), stored.of_folder(path)
    else:
        raise FileNotFoundError(f"{path}: wanted config.json in it")
    c.update(config)
    if c["model_type"] == "clip":
        c, others = clip.part(c, part)
        drop = (*others, *drop)
    elif part is not None:
        raise ValueError(f"part: got {part!r} of a {c['model_type']} model, wanted None")
    return own(c, found) if c["model_type"] == OWN else parse(family(c["model_type"]), c, found, drop)


def own(c, found: Mapping[str, stored.Stored]):
    """The same of what was written under names of this project's own: the tree's paths, with dots."""
    flat = {name.replace(".", "/"): entries.Leaf(x.shape, x.dtype, x.bits) for name, x in found.items()}
    return c["kind"], frozen(c["keywords"]), nested(flat)


def frozen(x):
    """Keywords of a JSON file, whose lists were tuples."""
    if isinstance(x, dict):
        return {name: frozen(value) for name, value in x.items()}
    return tuple(map(frozen, x)) if isinstance(x, list) else x


def dtype_of(tree) -> str:
    """The name of the dtype of a tree's parameters, or of one that holds them all."""
    names = {leaf.dtype for _, leaf in flattened(tree)}
    if len(names) == 1:
        return names.pop()
    return "float64" if "float64" in names else "float32"


def parse(of, c, found: Mapping[str, stored.Stored], drop=()):
    """(kind, keywords, tree) of a family's config.json and tensors by name."""
    for old, new in getattr(of, "FORMERLY", {}).items():
        found = {name.removesuffix(old) + new if name.endswith(old) else name: x for name, x in found.items()}
    prefix = of.PREFIX if any(name.startswith(of.PREFIX) for name in found) else ""
    k = of.keywords(c, found.keys())
    wanted = of.entries(k, prefix)
    names = {name for entry in wanted for name in entry.tensors if name is not None}
    patterns = (*getattr(of, "BUFFERS", ()), *drop)
    left = {n for n in found.keys() - names if not any(fnmatchcase(n, pattern) for pattern in patterns)}
    left = {n for n in left if not copied(of, n, found, prefix)}
    listed("tensors", c["model_type"], missing=names - found.keys(), left_over=left)
    flat = {path: leaf for entry in wanted for path, leaf in entries.leaves(entry, found)}
    return ("encoder_decoder" if "encoder" in k else "transformer"), k, nested(flat)


def copied(of, name, found, prefix):
    """Whether a tensor repeats another: a tied head that was saved all the same."""
    original = getattr(of, "COPIES", {}).get(name)
    original = original if original in found else f"{prefix}{original}"
    if original not in found or found[name].shape != found[original].shape:
        return False
    return found[name].bits().tobytes() == found[original].bits().tobytes()


def write(path, name, kind, k, tree, *, dtype=None, **config):
    """Write a model as one of a family, by its name in config.json's model_type, into a folder.

    name: "attn_parity" is this project's own, for every model. kind, k, tree: as read gives them; of the tree
      anything will do that NumPy can read.
    dtype: "float32", "bfloat16", ...; by default each parameter's own. config: more entries of config.json.
    Raises ValueError, and leaves the folder's files as they are, if the family has no such keywords or
    parameters, or if the dtype does not hold a parameter exactly.
    """
    path, flat = Path(path), dict(flattened(tree))
    if name == OWN:
        c = {"model_type": name, "kind": kind, "keywords": k, **config}
        wanted = [entries.Entry((p,), (p.replace("/", "."),), "") for p in flat]
    else:
        c, wanted = described(family(name), name, k, config)
    paths = {p for entry in wanted for p in entry.parameters}
    listed("parameters", name, missing=paths - flat.keys(), left_over=flat.keys() - paths)
    arrays = dict(item for entry in wanted for item in entries.tensors(entry, flat, dtype))
    path.mkdir(parents=True, exist_ok=True)
    stored.save(path / stored.SINGLE, arrays)
    (path / stored.INDEX).unlink(missing_ok=True)
    (path / "config.json").write_text(json.dumps(c, indent=2, sort_keys=True) + "\n")


def listed(what, name, **names):
    """Raise with the lists of names, if one has any."""
    texts = [f"{label.replace('_', ' ')}: {', '.join(sorted(of))}" for label, of in names.items() if of]
    if texts:
        raise ValueError(f"{what} of a {name} model: {'; '.join(texts)}")


def described(of, name, k, config):
    """(config.json, entries) for keywords, if they say the same of the model."""
    sides = {side: default | k[side] for side, default in keywords.SIDES.items() if side in k}
    parts = {side: keywords.full(said) for side, said in sides.items()} or keywords.full(k)
    c = of.config(parts) | {"model_type": name} | config
    bare = not sides and k.get("head", "tied") == "none" and not k.get("projection")
    wanted = of.entries(k, "" if bare else of.PREFIX)
    names = {n for entry in wanted for n in entry.tensors if n is not None}
    again = of.keywords(keywords.Config(json.loads(json.dumps(c))), names)
    if k.get("share_embedding", False) != again.get("share_embedding", False):
        raise ValueError(f"keywords of a {name} model: got share_embedding={k.get('share_embedding', False)}")
    for mine, theirs in [(said, again[side]) for side, said in sides.items()] or [(k, again)]:
        wrong = keywords.differing(mine, theirs)
        if wrong:
            said, means = keywords.full(mine), keywords.full(theirs)
            text = "; ".join(f"{n}: got {said[n]!r}, wanted {means[n]!r}" for n in wrong)
            raise ValueError(f"keywords of a {name} model: {text}")
    return c, wanted


def nested(flat: Mapping):
    """path -> leaf as the tree: a list of blocks, tuples for norms, dicts for the rest."""
    tree: dict = {}
    for path, leaf in flat.items():
        *above, last = path.split("/")
        at = tree
        for name in above:
            at = at.setdefault(name, {})
        at[last] = leaf

    def shaped(name, x):
        if not isinstance(x, dict):
            return x
        if all(key.isdigit() for key in x):
            ordered = [shaped("", x[key]) for key in sorted(x, key=int)]
            return ordered if name == "blocks" else tuple(ordered)
        return {key: shaped(key, branch) for key, branch in x.items()}

    return shaped("", tree)


def flattened(tree, path=""):
    """(path, leaf) pairs of a tree."""
    if isinstance(tree, dict | tuple | list):
        for name, branch in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from flattened(branch, f"{path}/{name}" if path else str(name))
    else:
        yield path, tree
