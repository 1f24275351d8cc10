"""Whisper: an encoder of sound, two convolutions before its blocks, and a decoder; k has no bias.

The encoder's positions are sines, but they are kept in the file and read from it.
Source: Radford et al. 2022; transformers' modeling_whisper.py.
"""

from ..entries import array, layers, linear, norm, qkv, within
from ..keywords import THEIRS, activation, given, only, taken

PREFIX = "model."
COPIES = {"proj_out.weight": "decoder.embed_tokens.weight"}
BOTH = {"n_embd": "d_model"}
ENCODER = {
    "n_head": "encoder_attention_heads",
    "n_layer": "encoder_layers",
    "hidden": "encoder_ffn_dim",
    "n_ctx": "max_source_positions",
    "stem": "num_mel_bins",
}
DECODER = {
    "n_vocab": "vocab_size",
    "n_head": "decoder_attention_heads",
    "n_layer": "decoder_layers",
    "hidden": "decoder_ffn_dim",
    "n_ctx": "max_target_positions",
}


def keywords(c, names):
    only(c, tie_word_embeddings=True, scale_embedding=False)  # transformers takes no notice of a scale
    both = {"embedding_positions": "learned", "activation": activation(c["activation_function"])}
    both |= taken(c, BOTH)
    return {
        "encoder": both | taken(c, ENCODER) | {"n_vocab": None, "causal": False, "head": "none"},
        "decoder": both | taken(c, DECODER) | {"cross": True},
    }


def config(k):
    encoder, decoder = k["encoder"], k["decoder"]
    return (
        given(encoder, BOTH | ENCODER)
        | given(decoder, DECODER)
        | {
            "activation_function": THEIRS[decoder["activation"]],
            "scale_embedding": False,
            "tie_word_embeddings": True,
            "is_encoder_decoder": True,
        }
    )


def stack(k, side):
    """The entries of the encoder or the decoder."""
    cross = side == "decoder"
    other = [
        *linear("cross_attn/q", "encoder_attn.q_proj"),
        *qkv(k, "encoder_attn.k_proj", "encoder_attn.v_proj", bias=(False, True), path="cross_attn/kv"),
        *linear("cross_attn/out", "encoder_attn.out_proj"),
        *norm("ln3", "encoder_attn_layer_norm"),
    ]
    names = (f"self_attn.{x}_proj" for x in "qkv")
    block = [
        *qkv(k, *names, bias=(True, False, True)),
        *linear("attn/out", "self_attn.out_proj"),
        *norm("ln1", "self_attn_layer_norm"),
        *(other if cross else []),
        *linear("fc", "fc1"),
        *linear("proj", "fc2"),
        *norm("ln2", "final_layer_norm"),
    ]
    taps = {"pattern": "o i k -> (k i) o", "k": 3}
    stem = [
        *array("w_stem1", "conv1.weight", **taps, i=k.get("stem") or 0),
        *array("b_stem1", "conv1.bias", "c -> c"),
        *array("w_stem2", "conv2.weight", **taps, i=k["n_embd"]),
        *array("b_stem2", "conv2.bias", "c -> c"),
    ]
    frame = [
        *(array("wte", "embed_tokens.weight") if cross else stem),
        *array("wpe", "embed_positions.weight"),
        *norm("ln_f", "layer_norm"),
    ]
    return within(f"{side}.", frame + layers(k["n_layer"], "layers.*.", block), f"{side}/")


def entries(k, prefix):
    return within(prefix, stack(k["encoder"], "encoder") + stack(k["decoder"], "decoder"))
