"""Parameters as a tree of NumPy arrays, bit for bit: what one framework's module writes, the other's reads.

The tree is the one that the functional style takes: init_encoder_decoder's for an EncoderDecoder, and so on,
mlp's for an MLP. bfloat16, which NumPy has not, travels as float32.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .block import Block
from .dialects import NORM_NAMES
from .encoder_decoder import EncoderDecoder
from .mlp import MLP
from .multihead import MultiHeadAttention
from .transformer import Transformer


def parameters(module):
    """The module's own parameters as the functional style takes them; nothing is copied, and gradients pass.

    module: EncoderDecoder, Transformer, Block, MultiHeadAttention or MLP; TypeError for another.
    """
    return _mapped(lambda p: p[...], _tree(module))


def to_tree(module):
    """A copy of the module's parameters in NumPy: nested dicts, and a tuple for each norm.

    module: EncoderDecoder, Transformer, Block, MultiHeadAttention or MLP; TypeError for another.
    All dtypes are kept but bfloat16.
    """
    return _mapped(_to_numpy, parameters(module))


def from_tree(module, tree):
    """Load tree into module: all of it, or with an error nothing. Parameters keep their dtype and device.

    module: EncoderDecoder, Transformer, Block, MultiHeadAttention or MLP; TypeError for another.
    tree: as to_tree's; arrays of this framework will do too.
    Raises ValueError that lists by path what is missing, unexpected, misshapen, no float, or not exact.
    """
    given, new, wrong = dict(_leaves(tree)), [], []
    for path, p in _leaves(_tree(module)):
        leaf = given.pop(path, None)
        if leaf is None:
            wrong.append(f"{path}: missing")
            continue
        if tuple(leaf.shape) != p.shape:
            wrong.append(f"{path}: got shape {tuple(leaf.shape)}, wanted {p.shape}")
        elif not _stored(leaf, p.dtype) and _exactly(value := _to_numpy(leaf), p.dtype) is None:
            wrong.append(f"{path}: got {value.dtype}, wanted what {p.dtype} holds exactly")
        new.append((p, leaf))
    wrong += [f"{path}: unexpected" for path in given]
    if wrong:
        raise ValueError("tree: " + "; ".join(wrong))
    for p, leaf in new:  # one at a time: a tree may be read from a file as it is asked for
        stored = _stored(leaf, p.dtype)
        value = _of_bits(leaf, p.dtype) if stored else _exactly(_to_numpy(leaf), p.dtype)
        p.set_value(jax.device_put(value, p.get_value().sharding))  # an abstract parameter has a sharding too


def _tree(module):
    """The module's parameters as they are, under the keys of the functional style."""
    match module:
        case EncoderDecoder():
            tree = {"encoder": _tree(module.encoder), "decoder": _tree(module.decoder)}
            if module.share_embedding:
                del tree["decoder"]["wte"]
            return tree
        case Transformer():
            tree = {name: getattr(module, name) for name in module.arrays}
            tree |= _entries({}, {name: getattr(module, name) for name in module.norms})
            tree |= _entries({name: getattr(module, name) for name in module.maps})
            tree = {name: tree[name] for name in module.names}
            return tree | {"blocks": tuple(_tree(block) for block in module.blocks)}
        case Block():
            tree = {"attn": _tree(module.attn)}
            if module.cross:
                tree["cross_attn"] = _tree(module.cross_attn)
            norms = {name: getattr(module, name.replace("ln", "ln_")) for name in NORM_NAMES}
            return tree | _entries({}, norms) | _tree(module.mlp)
        case MultiHeadAttention():
            into = {"qkv": module.c_attn, "q": module.c_q, "kv": module.c_kv}
            norms = {"q_norm": module.q_norm, "k_norm": module.k_norm}
            return _entries(into, norms) | _entries({"out": module.c_proj})
        case MLP():
            return _entries({"fc": module.c_fc, "gate": module.c_gate, "proj": module.c_proj})
    wanted = "EncoderDecoder, Transformer, Block, MultiHeadAttention or MLP"
    raise TypeError(f"module: got {type(module).__name__}, wanted {wanted}")


def _entries(linears, norms=()):
    """w_... and b_... of linear maps, and a tuple for each norm; what is None is left out."""
    tree = {}
    for name, layer in linears.items():
        if layer is not None:
            tree |= {f"w_{name}": layer.kernel} | ({} if layer.bias is None else {f"b_{name}": layer.bias})
    for name, norm in dict(norms).items():
        if norm is not None:
            bias = getattr(norm, "bias", None)
            tree[name] = (norm.weight,) if bias is None else (norm.weight, bias)
    return tree


def _mapped(f, tree):
    if isinstance(tree, dict):
        return {name: _mapped(f, branch) for name, branch in tree.items()}
    return tuple(_mapped(f, branch) for branch in tree) if isinstance(tree, tuple) else f(tree)


def _leaves(tree, path=""):
    """(path, leaf) pairs; names and places are joined by a slash."""
    if isinstance(tree, dict | tuple | list):
        for name, branch in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(branch, f"{path}/{name}" if path else str(name))
    else:
        yield path, tree


def _to_numpy(x):
    """A copy."""
    x = np.asarray(x)
    return np.array(x, np.float32 if x.dtype == jnp.bfloat16 else x.dtype, order="C")


def _stored(leaf, dtype):
    """Whether leaf is an array in a file, of parity.weights, of this dtype."""
    return isinstance(leaf.dtype, str) and leaf.dtype == str(dtype)


def _of_bits(leaf, dtype):
    return np.array(leaf.bits(), order="C").view(dtype)


def _exactly(x, dtype):
    """x in dtype, or None if that would change a value or x has no floating point."""
    if x.dtype.kind != "f" and x.dtype.name != "bfloat16":
        return None
    with np.errstate(over="ignore"):
        value = x.astype(dtype)
    if value.dtype == x.dtype or bool(((value.astype(x.dtype) == x) | np.isnan(x)).all()):
        return value
    return None
