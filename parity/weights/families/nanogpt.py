"""nanoGPT's GPT, a checkpoint of torch.save: GPT-2 by other maps (out, in), exact GELU, and possibly no bias.

Checkpoints of before June 2023 had GELU by tanh: load them with activation_function="gelu_new".
Source: github.com/karpathy/nanoGPT, model.py.
"""

from ..entries import array, layers, linear, norm, within
from ..keywords import THEIRS, Config, activation, given, taken

PREFIX = "transformer."
BUFFERS = ("*h.*.attn.bias",)
COPIES = {"lm_head.weight": "wte.weight"}
NAMES = {name: name for name in ("n_embd", "n_head", "n_layer", "bias")}
NAMES |= {"n_vocab": "vocab_size", "n_ctx": "block_size"}
WRAPPERS = ("_orig_mod.", "module.")  # torch.compile's, DistributedDataParallel's


def checkpoint(saved):
    """(what config.json would say, tensors by name) of a state that was saved, alone or in a dict."""
    state = saved.get("model", saved)
    found = {}
    for name, x in state.items():
        for wrapper in WRAPPERS:
            name = name.removeprefix(wrapper)
        found[name] = x
    tables = [f"{PREFIX}wte.weight", f"{PREFIX}wpe.weight"]
    if not found.keys() >= {*tables}:
        raise ValueError(f"a checkpoint: got {', '.join(found)}, wanted nanoGPT's, transformer.wte")
    (n_vocab, n_embd), (n_ctx, _) = (found[name].shape for name in tables)
    said = {"vocab_size": n_vocab, "n_embd": n_embd, "block_size": n_ctx}
    said["bias"] = f"{PREFIX}ln_f.bias" in found
    said["n_layer"] = len({name.split(".")[2] for name in found if name.startswith(f"{PREFIX}h.")})
    return Config(said | dict(saved.get("model_args", {})) | {"model_type": "nanogpt"}), found


def keywords(c, names):
    if "n_head" not in c:
        raise ValueError("n_head: got no model_args in the checkpoint, wanted n_head=")
    act = activation(c.get("activation_function", "gelu"))
    return taken(c, NAMES) | {"activation": act, "embedding_positions": "learned"}


def config(k):
    act = THEIRS[k["activation"]]
    return given(k, NAMES) | {"bias": k["bias"] != (), "activation_function": act}


def entries(k, prefix):
    bias = k["bias"]
    block = [
        *norm("ln1", "ln_1", bias),
        *linear("attn/qkv", "attn.c_attn", bias=bias),
        *linear("attn/out", "attn.c_proj", bias=bias),
        *norm("ln2", "ln_2", bias),
        *linear("fc", "mlp.c_fc", bias=bias),
        *linear("proj", "mlp.c_proj", bias=bias),
    ]
    frame = [*array("wte", "wte.weight"), *array("wpe", "wpe.weight"), *norm("ln_f", "ln_f", bias)]
    return within(prefix, frame + layers(k["n_layer"], "h.*.", block))
