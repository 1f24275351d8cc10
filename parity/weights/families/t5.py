"""T5: encoder and decoder, rms norms, no biases, scores without a scale, a table of relative positions each.

Version 1.1 has a gated MLP, and a head of its own whose input is not scaled.
Source: Raffel et al. 2020; transformers' modeling_t5.py.
"""

from ..entries import array, layers, linear, norm, qkv, within
from ..keywords import THEIRS, activation, given, taken

PREFIX = ""
BUFFERS = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
COPIES = dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight")
COPIES["lm_head.weight"] = "shared.weight"
NAMES = {
    "n_vocab": "vocab_size",
    "n_embd": "d_model",
    "n_head": "num_heads",
    "n_layer": "num_layers",
    "head_dim": "d_kv",
    "hidden": "d_ff",
    "eps": "layer_norm_epsilon",
}
BUCKETS = {"n_bucket": "relative_attention_num_buckets", "max_distance": "relative_attention_max_distance"}


def keywords(c, names):
    *gated, act = c.get("feed_forward_proj", "relu").split("-")
    both = taken(c, NAMES) | {
        "norm": "rms",
        "bias": False,
        "scale": 1.0,
        "activation": activation("gelu_new" if gated and act == "gelu" else act, gated=bool(gated)),
        "relative_bias": taken(type(c)({"relative_attention_max_distance": 128} | c), BUCKETS),
    }
    scaled = c.get("scale_decoder_outputs", c.get("tie_word_embeddings", True))
    decoder = both | {"n_layer": c.get("num_decoder_layers") or c["num_layers"], "cross": True}
    decoder |= {"head": "free" if "lm_head.weight" in names and not scaled else "tied"}
    decoder |= {"head_scale": c["d_model"] ** -0.5} if scaled else {}
    encoder = both | {"causal": False, "head": "none"}
    return {"encoder": encoder, "decoder": decoder, "share_embedding": True}


def config(k):
    encoder, decoder = k["encoder"], k["decoder"]
    gated = decoder["activation"] not in THEIRS.values()
    return (
        given(encoder, NAMES)
        | given(encoder["relative_bias"], BUCKETS)
        | {
            "num_decoder_layers": decoder["n_layer"],
            "feed_forward_proj": f"gated-{THEIRS[decoder['activation']]}" if gated else decoder["activation"],
            "tie_word_embeddings": decoder["head"] == "tied",
            "scale_decoder_outputs": decoder["head_scale"] != 1,
            "is_encoder_decoder": True,
        }
    )


def stack(k, side):
    """The entries of the encoder or the decoder, which has attention to the encoder's output between."""

    def attention(path, at, name):
        q, *kv = (f"layer.{at}.{name}.{x}" for x in "qkv")
        if path == "attn":
            maps = qkv(k, q, *kv, bias=False)
        else:
            maps = linear(f"{path}/q", q, bias=False) + qkv(k, *kv, bias=False, path=f"{path}/kv")
        return maps + linear(f"{path}/out", f"layer.{at}.{name}.o", bias=False)

    cross = side == "decoder"
    last = f"layer.{1 + cross}"
    gated = k["activation"].startswith(("geglu", "swiglu"))
    wide = {"gate": "wi_0", "fc": "wi_1"} if gated else {"fc": "wi"}
    block = [
        *attention("attn", 0, "SelfAttention"),
        *norm("ln1", "layer.0.layer_norm", bias=False),
        *(attention("cross_attn", 1, "EncDecAttention") if cross else []),
        *(norm("ln3", "layer.1.layer_norm", bias=False) if cross else []),
        *[
            e
            for path, name in wide.items()
            for e in linear(path, f"{last}.DenseReluDense.{name}", bias=False)
        ],
        *linear("proj", f"{last}.DenseReluDense.wo", bias=False),
        *norm("ln2", f"{last}.layer_norm", bias=False),
    ]
    frame = [
        *array("rel_bias", "block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        *norm("ln_f", "final_layer_norm", bias=False),
    ]
    return within(f"{side}.", frame + layers(k["n_layer"], "block.*.", block), f"{side}/")


def entries(k, prefix):
    free = linear("decoder/head", "lm_head", bias=False) if k["decoder"]["head"] == "free" else []
    sides = [entry for side in ("encoder", "decoder") for entry in stack(k[side], side)]
    return array("encoder/wte", "shared.weight") + sides + free
