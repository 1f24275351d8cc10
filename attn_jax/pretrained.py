"""Models in folders, in the Hugging Face layout, config.json and safetensors, or of this project's family.

The families and their files are parity.weights, which knows no framework; here a tree becomes a module.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from .arithmetic import describe
from .checks import ARITHMETIC, one_of
from .encoder_decoder import EncoderDecoder
from .params import from_tree, to_tree
from .transformer import Transformer

KINDS = {"transformer": Transformer, "encoder_decoder": EncoderDecoder}


def load(path, *, dtype=None, part=None, drop=(), **config):
    """The model in a folder with config.json and model.safetensors, sharded or not.

    path: the folder, of a family of parity.weights or as save writes it; or a checkpoint of nanoGPT's.
    dtype: of the parameters, or its name, one that holds the file's numbers exactly; by default the file's.
    part: "text" or "vision" of CLIP.
    drop: patterns, as in fnmatch, of tensors to leave out, such as the head of another task.
    config: entries that take the place of config.json's.
    Returns a Transformer or an EncoderDecoder. Besides it, no more is in memory than one parameter at a time.
    Raises ValueError if the family is not known, if a tensor is left over, missing or of another shape, or if
    there is no such dtype or it does not hold a number; FileNotFoundError if there is no model in the folder.
    """
    from parity.weights import dtype_of, read

    kind, keywords, tree = read(path, part=part, drop=drop, **config)
    dtype = dtype_of(tree) if dtype is None else dtype
    one_of("dtype", _name(dtype), ARITHMETIC)
    dtype = jnp.dtype(dtype)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f"dtype: got {dtype} with jax_enable_x64 off, wanted it on, or a narrower dtype")

    def typed(p):
        return jax.ShapeDtypeStruct(p.shape, dtype, sharding=p.sharding)

    shape, state = nnx.split(nnx.eval_shape(lambda: KINDS[kind](**keywords)))
    model = nnx.merge(shape, jax.tree.map(typed, state))
    from_tree(model, tree)
    return model


def _name(dtype):
    try:
        return dtype if isinstance(dtype, str) else jnp.dtype(dtype).name
    except TypeError:
        return str(dtype)


def save(model, path, family="attn_parity", **config):
    """Write a model into a folder, as one of this family, and as load reads it.

    model: a Transformer or an EncoderDecoder. family: as in config.json's model_type, such as "llama"; the
    default takes every model. config: more entries of config.json, such as eos_token_id.
    Raises TypeError for another model; ValueError, and leaves the folder's files as they are, if the family
    has no such keywords or parameters.
    """
    from parity.weights import write

    kind = next((name for name, of in KINDS.items() if isinstance(model, of)), None)
    if kind is None:
        raise TypeError(f"model: got {type(model).__name__}, wanted Transformer or EncoderDecoder")
    dtypes = {describe(p).dtype for p in jax.tree.leaves(nnx.state(model))}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    write(path, family, kind, model.keywords, to_tree(model), dtype=dtype, **config)
