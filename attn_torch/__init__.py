"""Attention and the transformer block in PyTorch, to one contract with its sibling package."""

from .attention import scaled_dot_product_attention
from .block import Block, LayerNorm, block, init_block
from .mlp import MLP, gelu, gelu_tanh, mlp, relu, silu
from .multihead import CausalSelfAttention, causal_self_attention, init_attention
from .norms import layer_norm, rms_norm
from .params import from_tree, parameters, to_tree

__all__ = [
    "MLP",
    "Block",
    "CausalSelfAttention",
    "LayerNorm",
    "block",
    "causal_self_attention",
    "from_tree",
    "gelu",
    "gelu_tanh",
    "init_attention",
    "init_block",
    "layer_norm",
    "mlp",
    "parameters",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "silu",
    "to_tree",
]
