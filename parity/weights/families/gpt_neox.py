"""GPT-NeoX and Pythia: attention and MLP in parallel, rotary positions in part of each head.

The rows of its one map for q, k and v are, head by head, that head's q, k and v.
Source: Black et al. 2022; transformers' modeling_gpt_neox.py.
"""

from ..entries import array, layers, linear, norm, within
from ..keywords import THEIRS, activation, given, head, rope, rope_parameters, taken

PREFIX = "gpt_neox."
BUFFERS = ("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq")
COPIES = {"embed_out.weight": "embed_in.weight"}
NAMES = {
    "n_vocab": "vocab_size",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "hidden": "intermediate_size",
    "parallel": "use_parallel_residual",
    "eps": "layer_norm_eps",
}


def keywords(c, names):
    k = taken(c, NAMES) | {"activation": activation(c["hidden_act"])}
    k["bias"] = ("norm", "fc", "proj", *(("qkv", "out") if c.get("attention_bias", True) else ()))
    turn = rope(c, k["n_embd"] // k["n_head"], c.get("rotary_emb_base", 10000.0), c.get("rotary_pct", 0.25))
    return k | turn | head(c, names, "embed_out.weight")


def config(k):
    return given(k, NAMES) | {
        "hidden_act": THEIRS[k["activation"]],
        "attention_bias": "qkv" in k["bias"],
        "rope_parameters": {"partial_rotary_factor": 1.0} | rope_parameters(k),
        "tie_word_embeddings": k["head"] == "tied",
    }


def entries(k, prefix):
    bias = "qkv" in k["bias"]
    rows = {"pattern": "(h t d) i -> i (t h d)", "h": k["n_head"], "t": 3}
    block = [
        *norm("ln1", "input_layernorm"),
        *norm("ln2", "post_attention_layernorm"),
        *linear("attn/qkv", "attention.query_key_value", bias=bias, **rows),
        *linear("attn/out", "attention.dense", bias=bias),
        *linear("fc", "mlp.dense_h_to_4h"),
        *linear("proj", "mlp.dense_4h_to_h"),
    ]
    frame = [*array("wte", "embed_in.weight"), *norm("ln_f", "final_layer_norm")]
    free = linear("head", "embed_out", bias=False) if k["head"] == "free" else []
    return within(prefix, frame + layers(k["n_layer"], "layers.*.", block)) + free
