"""Llama 1 to 3, and what those after it have of it: rms norms, rotary positions, a gated MLP, grouped heads.

Source: Touvron et al. 2023; Dubey et al. 2024; transformers' modeling_llama.py.
"""

from ..entries import array, layers, linear, norm, qkv, within
from ..keywords import THEIRS, activation, given, head, rope, rope_parameters, taken

PREFIX = "model."
BUFFERS = ("*.rotary_emb.inv_freq",)
COPIES = {"lm_head.weight": "embed_tokens.weight"}
NAMES = {
    "n_vocab": "vocab_size",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "hidden": "intermediate_size",
    "eps": "rms_norm_eps",
}


def decoder(c, names, *, tied=False, act="hidden_act", bias=()):
    """The keywords that Llama and those after it share. tied, bias: what is so in the family."""
    k = taken(c, NAMES) | {"n_kv_head": c.get("num_key_value_heads") or c["num_attention_heads"]}
    k["head_dim"] = c.get("head_dim") or k["n_embd"] // k["n_head"]
    k |= {"norm": "rms", "activation": activation(c[act], gated=True), "bias": bias}
    return k | head(c, names, tied=tied)


def keywords(c, names):
    bias = (("qkv", "out") if c.get("attention_bias") else ()) + (("fc", "proj") if c.get("mlp_bias") else ())
    k = decoder(c, names, bias=bias)
    return k | rope(c, k["head_dim"])


def decoder_config(k, act="hidden_act"):
    return given(k, NAMES) | {
        "num_key_value_heads": k["n_kv_head"],
        "head_dim": k["head_dim"],
        act: THEIRS[k["activation"]],
        "rope_parameters": rope_parameters(k),
        "tie_word_embeddings": k["head"] == "tied",
    }


def config(k):
    return decoder_config(k) | {"attention_bias": "qkv" in k["bias"], "mlp_bias": "fc" in k["bias"]}


def block(k, *, ln1="input_layernorm", ln2="post_attention_layernorm"):
    """The entries of one block. ln1, ln2: None where a norm stands elsewhere."""
    has = k["bias"]
    return [
        *qkv(k, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias="qkv" in has),
        *linear("attn/out", "self_attn.o_proj", bias="out" in has),
        *(norm("attn/q_norm", "self_attn.q_norm", bias=False) if k.get("qk_norm", "none") != "none" else []),
        *(norm("attn/k_norm", "self_attn.k_norm", bias=False) if k.get("qk_norm", "none") != "none" else []),
        *linear("gate", "mlp.gate_proj", bias="fc" in has),
        *linear("fc", "mlp.up_proj", bias="fc" in has),
        *linear("proj", "mlp.down_proj", bias="proj" in has),
        *norm("ln1", ln1, bias=False),
        *norm("ln2", ln2, bias=False),
    ]


def entries(k, prefix, of_block=None):
    of_block = block(k) if of_block is None else of_block
    frame = [*array("wte", "embed_tokens.weight"), *norm("ln_f", "norm", bias=False)]
    free = linear("head", "lm_head", bias=False) if k["head"] == "free" else []
    return within(prefix, frame + layers(k["n_layer"], "layers.*.", of_block)) + free
