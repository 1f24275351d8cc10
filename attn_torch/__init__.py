"""Attention and the transformer block in PyTorch, to one contract with its sibling package."""

from .attention import explain, scaled_dot_product_attention
from .backend import register
from .block import Block, block, block_context_cache, init_block
from .cache import (
    ContextCache,
    DenseCache,
    PagedCache,
    SlidingCache,
    append,
    dense_cache,
    paged_cache,
    sliding_cache,
)
from .encoder_decoder import EncoderDecoder, encoder_decoder, init_encoder_decoder
from .generate import generate
from .layers import LayerNorm, RMSNorm
from .mlp import MLP, geglu, geglu_tanh, gelu, gelu_sigmoid, gelu_tanh, mlp, relu, silu, swiglu
from .multihead import (
    CausalSelfAttention,
    MultiHeadAttention,
    causal_self_attention,
    context_cache,
    init_attention,
    multi_head_attention,
)
from .norms import layer_norm, rms_norm
from .params import from_tree, parameters, to_tree
from .positions import alibi, relative_bias, rotary, sinusoidal
from .pretrained import load, save
from .sampling import next_token
from .transformer import Transformer, init_transformer, transformer

__all__ = [
    "MLP",
    "Block",
    "CausalSelfAttention",
    "ContextCache",
    "DenseCache",
    "EncoderDecoder",
    "LayerNorm",
    "MultiHeadAttention",
    "PagedCache",
    "RMSNorm",
    "SlidingCache",
    "Transformer",
    "alibi",
    "append",
    "block",
    "block_context_cache",
    "causal_self_attention",
    "context_cache",
    "dense_cache",
    "encoder_decoder",
    "explain",
    "from_tree",
    "geglu",
    "geglu_tanh",
    "gelu",
    "gelu_sigmoid",
    "gelu_tanh",
    "generate",
    "init_attention",
    "init_block",
    "init_encoder_decoder",
    "init_transformer",
    "layer_norm",
    "load",
    "mlp",
    "multi_head_attention",
    "next_token",
    "paged_cache",
    "parameters",
    "register",
    "relative_bias",
    "relu",
    "rms_norm",
    "rotary",
    "save",
    "scaled_dot_product_attention",
    "silu",
    "sinusoidal",
    "sliding_cache",
    "swiglu",
    "to_tree",
    "transformer",
]
