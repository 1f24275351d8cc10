"""GPT-2: learned positions, pre-norm, GELU by tanh, q | k | v in one map that is kept (in, out).

Source: Radford et al. 2019; transformers' modeling_gpt2.py.
"""

from ..entries import array, layers, linear, norm, within
from ..keywords import THEIRS, activation, given, only, taken

PREFIX = "transformer."
BUFFERS = ("*h.*.attn.bias", "*h.*.attn.masked_bias")
COPIES = {"lm_head.weight": "wte.weight"}
NAMES = {
    "n_vocab": "vocab_size",
    "n_embd": "n_embd",
    "n_head": "n_head",
    "n_layer": "n_layer",
    "n_ctx": "n_positions",
    "eps": "layer_norm_epsilon",
}


def keywords(c, names):
    only(c, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    only(c, tie_word_embeddings=True)
    return taken(c, NAMES) | {
        "hidden": c.get("n_inner") or 4 * c["n_embd"],
        "activation": activation(c["activation_function"]),
        "embedding_positions": "learned",
    }


def config(k):
    return given(k, NAMES) | {
        "n_inner": k["hidden"],
        "activation_function": THEIRS[k["activation"]],
        "tie_word_embeddings": True,
    }


def entries(k, prefix):
    block = [
        *norm("ln1", "ln_1"),
        *linear("attn/qkv", "attn.c_attn", pattern="i o -> i o"),
        *linear("attn/out", "attn.c_proj", pattern="i o -> i o"),
        *norm("ln2", "ln_2"),
        *linear("fc", "mlp.c_fc", pattern="i o -> i o"),
        *linear("proj", "mlp.c_proj", pattern="i o -> i o"),
    ]
    frame = [*array("wte", "wte.weight"), *array("wpe", "wpe.weight"), *norm("ln_f", "ln_f")]
    return within(prefix, frame + layers(k["n_layer"], "h.*.", block))
