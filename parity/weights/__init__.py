"""A model's folder in the Hugging Face layout, as keywords and a parameter tree, and back. NumPy only.

A family is a file of families/: which entries of config.json are which keywords of the transformer, and
which tensors are which parameters. A model of which a tensor is left over or missing is refused.
"""

from .folder import dtype_of, read, write

__all__ = ["dtype_of", "read", "write"]
