"""What families say of keywords: entries of config.json by their names here, and back.

The keywords are those of attn_torch.Transformer and attn_jax.Transformer.
"""

from collections.abc import Mapping

PLAIN = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_sigmoid",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}
THEIRS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "gelu_sigmoid": "quick_gelu", "relu": "relu"}
THEIRS |= {"silu": "silu", "swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh"}

BLOCK = {  # a block's keyword -> its default; None may stand for what other keywords say
    "n_kv_head": None,
    "head_dim": None,
    "hidden": None,
    "norm": "layer",
    "norm_placement": "pre",
    "norm_offset": 0.0,
    "eps": None,
    "parallel": False,
    "causal": True,
    "cross": False,
    "activation": "gelu",
    "bias": True,
    "positions": "none",
    "rotary_theta": 10000.0,
    "rotary_dim": None,
    "rotary_interleaved": False,
    "rotary_scaling": None,
    "qk_norm": "none",
    "window": None,
    "softcap": None,
    "scale": None,
}
FRAME = {
    "n_ctx": None,
    "embedding_positions": "none",
    "position_start": 0,
    "n_type": 0,
    "embed_norm": False,
    "embed_scale": 1.0,
    "relative_bias": None,
    "final_norm": True,
    "head": "tied",
    "head_bias": False,
    "head_scale": 1.0,
    "logit_softcap": None,
    "head_transform": None,
    "pool": None,
    "pooler": False,
    "projection": None,
    "patch": None,
    "stem": None,
}
SIDES = {
    "encoder": {"causal": False, "head": "none"},
    "decoder": {"cross": True},
}  # EncoderDecoder's defaults
SIZES = ("n_vocab", "n_embd", "n_head", "n_layer")
COUNTS = (*SIZES, "head_dim", "hidden", "n_ctx", "stem", "size", "channels")
UNWRITTEN = ("attn_dropout", "mlp_dropout", "resid_dropout", "embed_dropout", "precision", "implementation")
BIASES = ("norm", "qkv", "out", "fc", "proj")


class Config(dict):
    """config.json, in which an entry that is asked for must be."""

    def __missing__(self, name):
        raise ValueError(f"config.json: {name}: missing")


def taken(c: Mapping, names: Mapping[str, str]) -> dict:
    """{ours: c[theirs]} for names {ours: theirs}. Raises ValueError if one that counts something does not."""
    for ours, theirs in names.items():
        x = c[theirs]
        if ours in COUNTS and (not isinstance(x, int) or isinstance(x, bool) or x < 1):
            raise ValueError(f"config.json: {theirs}: got {x!r}, wanted an integer above 0")
    return {ours: c[theirs] for ours, theirs in names.items()}


def given(k: Mapping, names: Mapping[str, str]) -> dict:
    """{theirs: k[ours]} for names {ours: theirs}."""
    return {theirs: k[ours] for ours, theirs in names.items()}


def only(c: Mapping, **wanted) -> None:
    """Raise unless each of these entries, where there is one, is as wanted: nothing else can be read."""
    for name, value in wanted.items():
        if c.get(name, value) != value:
            raise ValueError(f"config.json: {name}: got {c[name]!r}, wanted {value!r}")


def activation(name: str, gated=False) -> str:
    """Ours for a name of theirs."""
    ours = PLAIN.get(name) if isinstance(name, str) else None
    ours = GATED.get(ours or "") if gated else ours
    if ours is None:
        names = sorted(theirs for theirs, x in PLAIN.items() if not gated or x in GATED)
        raise ValueError(f"config.json: got activation {name!r}, wanted {', '.join(names)}")
    return ours


def head(c: Mapping, names, tensor="lm_head.weight", tied=False) -> dict:
    """{"head": ...}. tied: what is meant where config.json says nothing."""
    if c.get("tie_word_embeddings", tied):
        return {"head": "tied"}
    return {"head": "free" if tensor in names else "none"}


def rope(c: Mapping, head_dim: int, theta=10000.0, part=1.0) -> dict:
    """The keywords of rotary positions. theta, part: what is meant where config.json says nothing.

    It has rope_parameters, or in older files rope_theta, rope_scaling and partial_rotary_factor.
    """
    found = c.get("rope_parameters") or c.get("rope_scaling") or {}
    found = {name: x for name, x in found.items() if x is not None}
    theta = found.pop("rope_theta", None) or c.get("rope_theta") or theta
    part = found.pop("partial_rotary_factor", None) or c.get("partial_rotary_factor") or part
    old = found.pop("type", "default")
    name = found.pop("rope_type", old)
    k = {"positions": "rotary", "rotary_theta": float(theta)}
    k |= {} if part == 1 else {"rotary_dim": int(head_dim * part)}
    if name == "default":
        return k
    if name not in ("linear", "llama3", "yarn"):
        raise ValueError(f"config.json: got rope_type {name!r}, wanted default, linear, llama3 or yarn")
    if name != "linear":
        found.setdefault("original_max_position_embeddings", c.get("max_position_embeddings"))
    return k | {"rotary_scaling": {"rope_type": name, **found}}


def rope_parameters(k: Mapping) -> dict:
    """rope_parameters for keywords in full."""
    share = k["rotary_dim"] / k["head_dim"]
    found = {"rope_theta": k["rotary_theta"], "rope_type": "default"} | (k["rotary_scaling"] or {})
    return found | ({} if share == 1 else {"partial_rotary_factor": share})


def windows(c: Mapping, kinds, width, **of_kind) -> dict:
    """The windows of layers of these kinds, "sliding_attention" or "full_attention".

    width: how many keys a query of a sliding layer reads, its own among them. of_kind: more keywords by kind.
    """
    for kind in set(kinds) - {"sliding_attention", "full_attention"}:
        raise ValueError(f"config.json: got a layer of {kind!r}, wanted sliding_attention or full_attention")
    if len(kinds) != c["num_hidden_layers"]:
        raise ValueError(f"config.json: got {len(kinds)} layer_types, wanted {c['num_hidden_layers']}")
    window = {"sliding_attention": None if width is None else (width - 1, 0)}
    every = [{"window": window.get(kind)} | of_kind.get(kind, {}) for kind in kinds]
    period = next(n for n in range(1, len(every) + 1) if every == (every[:n] * len(every))[: len(every)])
    return every[0] if period == 1 else {"layers": tuple(every[:period])}


def layer_types(k: Mapping) -> dict:
    """sliding_window and layer_types for keywords in full."""
    found = [layer["window"] for layer in layers(k)]
    widths = {window[0] + 1 for window in found if window is not None} or {None}
    kinds = ["full_attention" if window is None else "sliding_attention" for window in found]
    return {"sliding_window": max(widths, key=lambda w: w or 0), "layer_types": kinds}


# ---- two sets of keywords that mean the same


def full(k: Mapping) -> dict:
    """All keywords, those that were not given too."""
    unknown = k.keys() - BLOCK.keys() - FRAME.keys() - {*SIZES, *UNWRITTEN, "layers"}
    if unknown:
        raise ValueError(f"keywords: got {', '.join(sorted(unknown))}, which no family has")
    k = BLOCK | FRAME | {"layers": ()} | {name: x for name, x in k.items() if name not in UNWRITTEN}
    D = k["head_dim"] or k["n_embd"] // k["n_head"]
    meant = {"n_kv_head": k["n_head"], "head_dim": D, "rotary_dim": D, "hidden": 4 * k["n_embd"]}
    meant |= {"scale": D**-0.5, "eps": 1e-6 if k["norm"] == "rms" else 1e-5}
    if k["patch"] is not None:
        k["patch"] = {"bias": True} | dict(k["patch"])
    names = BIASES if k["bias"] is True else k["bias"] or ()
    k["bias"] = tuple(n for n in BIASES if n in names and (n != "norm" or k["norm"] == "layer"))
    window = (k["window"],) * 2 if isinstance(k["window"], int) else k["window"]
    k["window"] = window if window is None or not k["causal"] else (window[0], 0)
    k["rotary_scaling"] = k["rotary_scaling"] and dict(k["rotary_scaling"])
    return k | {name: x for name, x in meant.items() if k[name] is None}


def layers(k: Mapping) -> list[dict]:
    """The keywords in full that hold for each layer."""
    each = tuple(k.get("layers") or ({},))
    return [full({**k, "layers": (), **each[i % len(each)]}) for i in range(k["n_layer"])]


def differing(k: Mapping, other: Mapping) -> list[str]:
    """The keywords in which two sets differ in what they mean."""
    mine, theirs = layers(k), layers(other)
    if len(mine) != len(theirs):
        return ["n_layer"]
    names = {n for a, b in zip(mine, theirs, strict=True) for n in a if a[n] != b.get(n)}
    return sorted(names)
