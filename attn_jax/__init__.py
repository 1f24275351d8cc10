"""Attention and the transformer block in JAX, to one contract with its sibling package."""

from .attention import scaled_dot_product_attention

__all__ = ["scaled_dot_product_attention"]
