"""Parameters of other libraries' attention and transformer layers, as our tree, and back: bit for bit.

  torch.nn    from_torch(module)                        module.load_state_dict(to_torch(tree), as tensors)
  flax nnx    from_flax(nnx.state(module, nnx.Param))   nnx.update(module, to_flax(tree, n_head))
  flax linen  from_flax(variables["params"])            module.apply({"params": to_flax(tree, n_head)}, ...)
  Keras       from_keras(layer.get_weights())           layer.set_weights(to_keras(tree, n_head))

Those on the left give (keywords, tree), those on the right take a tree.

The keywords are those of MultiHeadAttention or Block of attn_torch and attn_jax, whose params.from_tree loads
the tree: `module = MultiHeadAttention(**keywords); from_tree(module, tree)`. They say what parameters say;
what a library is told with each call (a causal mask, a window, positions) goes into ours by its own keyword.
What a layout cannot hold is refused with a list: grouped heads in torch, a bias on some of the maps only,
keys of another size than values. Arrays are any framework's; bfloat16, which NumPy has not, travels as
float32.
Axes: C channels, H heads, Hkv heads of k and v, D head size, F hidden.
"""

import numpy as np

ACTIVATIONS = {  # a torch function's name, or how its module prints -> activation
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "ReLU()": "relu",
    "GELU(approximate='none')": "gelu",
    "GELU(approximate='tanh')": "gelu_tanh",
    "SiLU()": "silu",
}
NORMS = {  # of a TransformerEncoderLayer and a TransformerDecoderLayer, which number them in their order
    False: {"ln1": "norm1", "ln2": "norm2"},
    True: {"ln1": "norm1", "ln3": "norm2", "ln2": "norm3"},
}
OUT = {"w_out": "out_proj.weight", "b_out": "out_proj.bias"}  # of torch, whose maps are (out, in)
MLP = {"w_fc": "linear1.weight", "b_fc": "linear1.bias", "w_proj": "linear2.weight", "b_proj": "linear2.bias"}
PARTS = ("query", "key", "value", "out")  # of flax, and in this order of Keras


# ---- torch


def from_torch(module, cross=False):
    """(keywords, tree) of a torch MultiheadAttention, TransformerEncoderLayer or TransformerDecoderLayer.

    cross: a MultiheadAttention reads a context. Layers say themselves; an encoder's is causal=False, a
    decoder's causal=True.
    Raises TypeError for another module, ValueError for kdim, vdim, add_bias_kv, add_zero_attn or an
    activation that ours have not.
    """
    if hasattr(module, "in_proj_bias"):
        return _from_torch_attention(module, cross)
    if not hasattr(module, "self_attn") or not hasattr(module, "linear1"):
        wanted = "MultiheadAttention, TransformerEncoderLayer or TransformerDecoderLayer"
        raise TypeError(f"module: got {type(module).__name__}, wanted {wanted}")
    cross = hasattr(module, "multihead_attn")
    activation = getattr(module.activation, "__name__", repr(module.activation))
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: got {activation}, wanted one of {', '.join(ACTIVATIONS)}")
    keywords, attn = _from_torch_attention(module.self_attn, False)
    state, tree = _copied(module.state_dict()), {"attn": attn}
    if cross:
        tree["cross_attn"] = _from_torch_attention(module.multihead_attn, True)[1]
    for ours, norm in NORMS[cross].items():
        tree[ours] = tuple(state[name] for name in (f"{norm}.weight", f"{norm}.bias") if name in state)
    tree |= {ours: state[theirs].T for ours, theirs in MLP.items() if theirs in state}
    return keywords | {
        "hidden": module.linear1.out_features,
        "activation": ACTIVATIONS[activation],
        "norm_placement": "pre" if module.norm_first else "post",
        "eps": module.norm1.eps,
        "causal": cross,
        "cross": cross,
        "mlp_dropout": module.dropout.p,
        "resid_dropout": module.dropout1.p,
    }, _copied(tree)


def to_torch(tree):
    """The state dict, of arrays, of the torch layer that has these parameters: see from_torch.

    tree: of attention, or of a block with plain activation and pre or post norms; the layer's nhead,
      norm_first, activation and layer_norm_eps must be the block's.
    """
    tree = _copied(tree)
    _check(tree, _torch_shapes(tree))
    if "attn" not in tree:
        return _to_torch_attention(tree)
    state = {}
    for part, name in (("self_attn", "attn"), ("multihead_attn", "cross_attn")):
        attn = _to_torch_attention(tree[name]) if name in tree else {}
        state |= {f"{part}.{theirs}": x for theirs, x in attn.items()}
    for ours, norm in NORMS["cross_attn" in tree].items():
        state |= dict(zip((f"{norm}.weight", f"{norm}.bias"), tree[ours], strict=False))
    state |= {theirs: tree[ours].T for ours, theirs in MLP.items() if ours in tree}
    return _copied(state)


def _from_torch_attention(module, cross):
    C = module.embed_dim
    for name, got, wanted in (
        ("kdim", module.kdim, C),
        ("vdim", module.vdim, C),
        ("add_bias_kv", module.bias_k is not None, False),
        ("add_zero_attn", module.add_zero_attn, False),
    ):
        if got != wanted:
            raise ValueError(f"{name}: got {got}, wanted {wanted}")
    state = _copied(module.state_dict())
    w, b = state["in_proj_weight"].T, state.get("in_proj_bias")
    tree = _joined(np.split(w, 3, -1), None if b is None else np.split(b, 3), cross)
    tree |= {ours: state[theirs].T for ours, theirs in OUT.items() if theirs in state}
    keywords = {"n_embd": C, "n_head": module.num_heads, "bias": b is not None, "cross": cross}
    return keywords | {"attn_dropout": module.dropout}, _copied(tree)


def _to_torch_attention(tree):
    w, b = _parted(tree, tree["w_out"].shape[0])
    state = {"in_proj_weight": np.concatenate(w, -1).T}
    if b is not None:
        state["in_proj_bias"] = np.concatenate(b)
    state |= {theirs: tree[ours].T for ours, theirs in OUT.items() if ours in tree}
    return _copied(state)


def _torch_shapes(tree):
    """{path: shape} of the tree that such a torch layer holds; all its maps have a bias, or none."""
    bias = any("b_" in path or path.endswith("/1") for path in _leaves(tree))

    def attention(tree, prefix=""):
        C = _entry(tree, "w_out").shape[-1]
        maps = (("q", C), ("kv", 2 * C)) if "w_q" in tree else (("qkv", 3 * C),)
        shapes: dict[str, tuple] = {f"{prefix}w_{name}": (C, n) for name, n in (*maps, ("out", C))}
        return shapes | ({f"{prefix}b_{name}": (n,) for name, n in (*maps, ("out", C))} if bias else {})

    if "attn" not in tree:
        return attention(tree)
    C, F = _entry(tree, "w_fc").shape
    shapes = attention(tree["attn"], "attn/") | {"w_fc": (C, F), "w_proj": (F, C)}
    if "cross_attn" in tree:
        shapes |= attention(tree["cross_attn"], "cross_attn/")
    for norm in NORMS["cross_attn" in tree]:
        shapes |= {f"{norm}/{i}": (C,) for i in range(1 + bias)}
    return shapes | ({"b_fc": (F,), "b_proj": (C,)} if bias else {})


# ---- flax and Keras, whose maps keep the heads as an axis


def from_flax(params, cross=False):
    """(keywords, tree) of the parameters of an nnx or linen multi-head attention, nested dicts.

    cross: it reads a context, which must have the width C of x.
    With normalize_qk the keywords have the norm's eps, 1e-6. Raises ValueError for other shapes.
    """
    given = _leaves(_copied(params))
    C, H, D = _axes(given, "query/kernel")
    Hkv = _axes(given, "key/kernel")[1]
    biased = any(path.endswith("/bias") for path in given)
    normed = "query_ln/scale" in given
    wanted: dict[str, tuple] = {"query/kernel": (C, H, D), "out/kernel": (H, D, C)}
    wanted |= {f"{name}/kernel": (C, Hkv, D) for name in ("key", "value")}
    if biased:
        wanted |= {f"{path[:-7]}/bias": shape[1:] for path, shape in wanted.items()} | {"out/bias": (C,)}
    if normed:
        wanted |= {"query_ln/scale": (D,), "key_ln/scale": (D,)}
    _compare("params", {path: x.shape for path, x in given.items()}, wanted)
    w = [given[f"{name}/kernel"].reshape(C, -1) for name in PARTS[:3]]
    b = [given[f"{name}/bias"].reshape(-1) for name in PARTS[:3]] if biased else None
    tree = _joined(w, b, cross)
    if normed:
        tree |= {"q_norm": (given["query_ln/scale"],), "k_norm": (given["key_ln/scale"],)}
    tree["w_out"] = given["out/kernel"].reshape(H * D, C)
    if biased:
        tree["b_out"] = given["out/bias"]
    keywords = {"n_embd": C, "n_head": H, "n_kv_head": Hkv, "head_dim": D, "cross": cross}
    keywords["bias"] = ("qkv", "out") if biased else ()
    return keywords | ({"qk_norm": "head", "eps": 1e-6} if normed else {}), _copied(tree)


def to_flax(tree, n_head):
    """The parameters, nested dicts of arrays, of the nnx or linen attention that has this tree of attention.

    Raises ValueError for a tree that no such attention has.
    """
    tree = _copied(tree)
    width, C = _entry(tree, "w_out").shape
    if width % n_head:
        raise ValueError(f"n_head: got {n_head}, wanted a divisor of w_out's first axis, {width}")
    H, D = n_head, width // n_head
    kv = _entry(tree, "w_kv").shape[-1] if "w_q" in tree else _entry(tree, "w_qkv").shape[-1] - width
    kv = max(1, kv // (2 * D)) * 2 * D
    maps = (("q", width), ("kv", kv)) if "w_q" in tree else (("qkv", width + kv),)
    wanted: dict[str, tuple] = {f"w_{name}": (C, n) for name, n in maps} | {"w_out": (width, C)}
    if any("b_" in path for path in _leaves(tree)):
        wanted |= {f"b_{name}": (n,) for name, n in (*maps, ("out", C))}
    if "q_norm" in tree:
        wanted |= {"q_norm/0": (D,), "k_norm/0": (D,)}
    _check(tree, wanted)
    w, b = _parted(tree, width)
    params = {name: {"kernel": x.reshape(C, -1, D)} for name, x in zip(PARTS, w, strict=False)}
    params["out"] = {"kernel": tree["w_out"].reshape(H, D, C)}
    if b is not None:
        for name, x in zip(PARTS, (*(x.reshape(-1, D) for x in b), tree["b_out"]), strict=True):
            params[name]["bias"] = x
    if "q_norm" in tree:
        params |= {"query_ln": {"scale": tree["q_norm"][0]}, "key_ln": {"scale": tree["k_norm"][0]}}
    return _copied(params)


def from_keras(weights, cross=False):
    """(keywords, tree) of layer.get_weights() of Keras' MultiHeadAttention or GroupQueryAttention.

    cross: it reads a context, which must have the width C of x.
    Raises ValueError for another number of arrays (use_gate) and other shapes (value_dim, output_shape).
    """
    if len(weights) not in (4, 8):
        raise ValueError(f"weights: got {len(weights)} arrays, wanted 4, or 8 with biases")
    names = ("kernel", "bias")[: len(weights) // 4]
    paths = [(part, name) for part in PARTS for name in names]
    params: dict = {part: {} for part in PARTS}
    for (part, name), x in zip(paths, weights, strict=True):
        params[part][name] = x
    return from_flax(params, cross)


def to_keras(tree, n_head):
    """What layer.set_weights takes, of the Keras attention that has this tree of attention.

    Raises ValueError for a tree that no such attention has.
    """
    _compare("tree", {name: () for name in ("q_norm", "k_norm") if name in tree}, {})
    params = to_flax(tree, n_head)
    return [x for part in PARTS for x in params[part].values()]


# ---- trees


def _joined(w, b, cross):
    """w_qkv, or for cross-attention w_q and w_kv: three maps side by side; so their biases, if not None."""
    groups = {"q": slice(0, 1), "kv": slice(1, 3)} if cross else {"qkv": slice(0, 3)}
    tree = {}
    for name, group in groups.items():
        tree[f"w_{name}"] = np.concatenate(w[group], -1)
        if b is not None:
            tree[f"b_{name}"] = np.concatenate(b[group])
    return tree


def _parted(tree, width):
    """The three maps of q, k and v, and their biases or None. width: of q."""
    names = ("q", "kv") if "w_q" in tree else ("qkv",)

    def three(kind):
        x = np.concatenate([tree[f"{kind}_{name}"] for name in names], -1)
        return np.split(x, [width, (width + x.shape[-1]) // 2], -1)

    return three("w"), three("b") if f"b_{names[0]}" in tree else None


def _copied(tree):
    """Nested mappings and tuples with every array a copy in NumPy."""
    if hasattr(tree, "items"):
        return {name: _copied(branch) for name, branch in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(_copied, tree))
    if hasattr(tree, "detach"):
        tree = (tree.float() if str(tree.dtype) == "torch.bfloat16" else tree).numpy(force=True)
    x = np.array(tree, order="C")
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


def _leaves(tree, path=""):
    """{path: leaf} of nested dicts and tuples; names and places are joined by a slash."""
    if not isinstance(tree, dict | tuple):
        return {path: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    below = (_leaves(branch, f"{path}/{name}" if path else str(name)) for name, branch in items)
    return {path: leaf for leaves in below for path, leaf in leaves.items()}


def _entry(tree, name):
    if name not in tree:
        raise ValueError(f"tree: {name}: missing")
    if tree[name].ndim != 2:
        raise ValueError(f"tree: {name}: got shape {tree[name].shape}, wanted two axes")
    return tree[name]


def _axes(given, path):
    if path not in given or given[path].ndim != 3:
        got = f"shape {given[path].shape}" if path in given else "nothing"
        raise ValueError(f"params: {path}: got {got}, wanted (C, H, D)")
    return given[path].shape


def _check(tree, wanted):
    _compare("tree", {path: tuple(x.shape) for path, x in _leaves(tree).items()}, wanted)


def _compare(argument, got, wanted):
    """Raise ValueError with a list unless both map the same paths to the same shapes."""
    wrong = [f"{path}: missing" for path in wanted if path not in got]
    wrong += [f"{path}: unexpected" for path in got if path not in wanted]
    wrong += [
        f"{path}: got shape {got[path]}, wanted {wanted[path]}"
        for path in wanted
        if got.get(path, wanted[path]) != wanted[path]
    ]
    if wrong:
        raise ValueError(f"{argument}: " + "; ".join(wrong))
