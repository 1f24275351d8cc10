"""Every family of parity.weights against transformers' own code, on a small random model of each.

`make models` prints the table: the largest difference of any hidden state, logit or pooled vector from
transformers' in float64, in parts of the largest value there. The bound of float32 is what the numbers move
by when every parameter is off by n roundings, n the longest sum in the model: rounding within sums does that.
Source: Higham 2002, section 3.5 (a product computed is the exact one of a matrix as far away as that).
"""

import argparse
import importlib
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np

B, T, SEED, END = 2, 7, 0, 36
NEAR = 1e-10  # of the largest value of each array, in float64: what the numbers of a family owe theirs
SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 20}
TEXT = SIZES | {"vocab_size": 37, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
GROUPED = TEXT | {"num_key_value_heads": 2}
WIDE = GROUPED | {"head_dim": 8}
TABLE = TEXT | {"max_position_embeddings": 19}
IMAGES = SIZES | {"image_size": 12, "patch_size": 4, "num_channels": 3}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PATTERN = ["sliding_attention", "full_attention", "sliding_attention"]
TURNS = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
LENGTHS = {"max_source_positions": 6, "max_target_positions": 79, "decoder_start_token_id": 1}
SOUND = {"d_model": 24, "num_mel_bins": 5, "encoder_layers": 3, "decoder_layers": 2}
SOUND |= {"encoder_attention_heads": 4, "decoder_attention_heads": 6, "encoder_ffn_dim": 20}
SOUND |= {"decoder_ffn_dim": 28, "vocab_size": 37, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
BOTH = {"vocab_size": 37, "d_model": 24, "d_kv": 8, "d_ff": 20, "num_layers": 3, "num_decoder_layers": 2}
BOTH |= {"num_heads": 4, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}

# Family -> (the class in transformers, its configuration). All axes differ, as far as a family lets them.
MODELS: dict[str, tuple[str, dict]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 37, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_inner": 20, "n_positions": 79},
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        TABLE
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.34}},
    ),
    "bert": ("BertForPreTraining", TABLE),
    "roberta": ("RobertaForMaskedLM", TABLE | {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "vit": ("ViTModel", IMAGES),
    "clip_text_model": ("CLIPTextModelWithProjection", TABLE | {"projection_dim": 9, "eos_token_id": END}),
    "clip_vision_model": ("CLIPVisionModelWithProjection", IMAGES | {"projection_dim": 9}),
    "llama": ("LlamaForCausalLM", GROUPED | {"rope_parameters": LLAMA3}),
    "mistral": ("MistralForCausalLM", WIDE | {"sliding_window": 3}),
    "qwen2": (
        "Qwen2ForCausalLM",
        GROUPED | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", WIDE),
    "gemma": ("GemmaForCausalLM", WIDE),
    "gemma2": (
        "Gemma2ForCausalLM",
        WIDE | {"sliding_window": 3, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        WIDE | {"sliding_window": 3, "layer_types": PATTERN, "rope_parameters": TURNS},
    ),
    "phi3": (
        "Phi3ForCausalLM",
        GROUPED
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.67}},
    ),
    "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "t5": ("T5ForConditionalGeneration", BOTH),
    "whisper": ("WhisperForConditionalGeneration", SOUND | LENGTHS),
}
ENCODERS = ("bert", "roberta")
DECODERS = [name for name, (of, _) in MODELS.items() if of.endswith(("LM", "LMHeadModel", "Generation"))]
DECODERS.remove("roberta")
PICTURES = ("vit", "clip_vision_model")
THEIRS = {
    "tokens": "input_ids",
    "inputs": "input_ids",
    "mask": "attention_mask",
    "decoder_mask": "decoder_attention_mask",
    "type_ids": "token_type_ids",
}
DROP = {"bert": ("cls.seq_relationship.*",)}  # tells whether a sentence follows another


@contextmanager
def wide():
    """float32 means float64: transformers computes norms and angles in float32, whatever a model's dtype."""
    import torch

    narrow = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = narrow


def made(name, state=None, **config):
    """transformers' model of a family. Its parameters are drawn, none of them 0 or 1, or those of a state."""
    import torch

    transformers = importlib.import_module("transformers")
    of, said = MODELS[name]
    of = getattr(transformers, of)
    model = of(of.config_class(**said | config)).eval()
    model.set_attn_implementation("eager")
    if state is None:
        generator = torch.Generator().manual_seed(SEED)
        for p in model.parameters():
            p.data = torch.randn(p.shape, generator=generator) * (0.3 if p.ndim > 1 else 0.5) + (p.ndim == 1)
    else:
        model.load_state_dict(state)
    return model


def saved(name, folder, **config):
    """The family's model, as transformers saves it in a folder, and in float64."""
    import torch

    model, default = made(name, **config), torch.get_default_dtype()
    model.save_pretrained(folder)
    torch.set_default_dtype(torch.float64)
    try:
        with wide():
            exact = made(name, model.state_dict(), **config)
    finally:
        torch.set_default_dtype(default)
    return model, exact


def given(name):
    """What a model is called with: arrays by the names of ours. Decoders are padded left, encoders right."""
    rng = np.random.default_rng(SEED)
    if name in PICTURES:
        return {"tokens": rng.standard_normal((B, 12, 12, 3)).astype(np.float32)}
    if name == "whisper":
        return {"inputs": rng.standard_normal((B, 12, 5)).astype(np.float32)} | padded(
            rng, "tokens", "decoder_mask"
        )
    if name == "t5":
        return padded(rng, "inputs", "mask") | padded(rng, "tokens", "decoder_mask", T - 2)
    tokens = rng.integers(3, END, (B, T))
    left = name not in (*ENCODERS, "clip_text_model")
    lengths = np.array([T, T - 3])[:, None]
    mask = np.arange(T) >= T - lengths if left else np.arange(T) < lengths
    tokens = np.where(mask, tokens, 1)
    if name == "clip_text_model":  # the text's end, from which theirs takes the vector
        tokens = np.where(np.arange(T) == lengths - 1, END, tokens)
    call = {"tokens": tokens, "mask": mask, "position_ids": np.clip(np.cumsum(mask, -1) - 1, 0, None)}
    return call | ({"type_ids": rng.integers(0, 2, (B, T))} if name == "bert" else {})


def padded(rng, name, of_mask, length=T):
    """Tokens on the left of as many places, and which they are."""
    mask = np.arange(length) < np.array([length, length - 3])[:, None]
    return {name: np.where(mask, rng.integers(3, END, (B, length)), 1), of_mask: mask}


def asked(name, dtype):
    """given as transformers names it. dtype: of images and sounds."""
    import torch

    call = {n: torch.from_numpy(x) for n, x in given(name).items()}
    if name in PICTURES:
        return {"pixel_values": call["tokens"].permute(0, 3, 1, 2).to(dtype)}
    if name == "whisper":
        call["input_features"] = call.pop("inputs").permute(0, 2, 1).to(dtype)
    if name == "roberta":
        del call["position_ids"]  # it counts them itself
    names = THEIRS | ({"tokens": "decoder_input_ids"} if "decoder_mask" in call else {})
    return {names.get(n, n): x.long() if x.dtype == torch.bool else x for n, x in call.items()}


def theirs(model, name):
    """transformers' hidden states, logits and pooled vectors by name, in float64."""
    out = model(**asked(name, next(model.parameters()).dtype), output_hidden_states=True)
    hidden = out.decoder_hidden_states if "decoder_hidden_states" in out else out.hidden_states
    found = {f"hidden {i}": x for i, x in enumerate(hidden)}
    last = f"hidden {len(hidden) - 1}"
    if "last_hidden_state" in out:
        found[last] = out.last_hidden_state  # after the last norm
    if name == "clip_vision_model":
        del found[last]  # theirs has no norm for all positions
    found |= {f"encoder {i}": x for i, x in enumerate(out.get("encoder_hidden_states") or ())}
    for key in ("logits", "prediction_logits"):
        found |= {"logits": out[key]} if key in out else {}
    for key in ("pooler_output", "text_embeds", "image_embeds"):
        found |= {"pooled": out[key]} if key in out else {}
    return {n: x.detach().double().numpy() for n, x in found.items()}


def ours(framework, folder, name, dtype):
    """The same of attn_torch or attn_jax, loaded from the folder."""
    package = importlib.import_module(f"attn_{framework}")
    library = importlib.import_module({"torch": "torch", "jax": "jax.numpy"}[framework])
    model = package.load(folder, dtype=dtype, drop=DROP.get(name, ()))
    call = {n: library.asarray(x.astype(dtype) if x.dtype.kind == "f" else x) for n, x in given(name).items()}
    results = list(run(framework, model, call))
    encoder = results.pop() if "decoder_mask" in call else ()
    found = {f"encoder {i}": x for i, x in enumerate(encoder)}
    found |= {f"hidden {i}": x for i, x in enumerate(results.pop())}
    found |= {} if model.keywords.get("head") == "none" else {"logits": results[0]}
    found |= {"pooled": results[1]} if len(results) > 1 else {}
    return {n: np.asarray(x.detach() if framework == "torch" else x, np.float64) for n, x in found.items()}


def run(framework, model, call):
    if framework == "torch":
        return model(**call, return_hidden=True)
    import jax
    from flax import nnx

    graph, state = nnx.split(model)
    return jax.jit(lambda state, call: nnx.merge(graph, state)(**call, return_hidden=True))(state, call)


def difference(name, got, want):
    """The largest difference of any array at real positions, in parts of that array's largest value."""
    call, worst = given(name), 0.0
    for key, truth in want.items():
        part, mask = got[key] - truth, call.get("mask" if key.startswith("encoder") else of_tokens(call))
        if mask is not None and key != "pooled":
            part, truth = part[mask], truth[mask]
        worst = max(worst, float(np.abs(part).max() / np.abs(truth).max()))
    return worst


def of_tokens(call):
    """The name of the tokens' mask."""
    return "decoder_mask" if "decoder_mask" in call else "mask"


def bound(model, name, want, draws=4):
    """The largest difference when every parameter is off by up to n roundings of float32, of some draws."""
    return moved(model, lambda: difference(name, theirs(model, name), want), draws)


def moved(model, measure, draws=4):
    """The largest measure() when every parameter of transformers' model is off by n roundings of float32.

    n: the longest sum in one of its maps, of maps of (out, ...) or, as GPT-2's, of (in, out).
    """
    import torch

    kinds = {"Linear": (1,), "Conv1d": (1, 2), "Conv2d": (1, 2, 3), "Conv1D": (0,)}
    maps = [(m.weight.shape, kinds[type(m).__name__]) for m in model.modules() if type(m).__name__ in kinds]
    reach = max(int(np.prod([shape[axis] for axis in axes])) for shape, axes in maps) * 2.0**-24
    state = {n: x.clone() for n, x in model.state_dict().items()}
    generator, worst = torch.Generator().manual_seed(SEED), 0.0
    for _ in range(draws):
        for n, x in model.state_dict().items():
            sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
            x.copy_(state[n] * (1 + reach * sign) if x.is_floating_point() else x)
        with wide():
            worst = max(worst, measure())
    model.load_state_dict(state)
    return worst


def greedy(model, name, n):
    """The n tokens that transformers' model takes to be likeliest, one after the other."""
    import torch

    generation = importlib.import_module("transformers.generation").GenerationMixin
    said = asked(name, next(model.parameters()).dtype)
    said.pop("position_ids", None)  # it counts them itself
    if "decoder_input_ids" in said:  # prompts of one length
        del said["decoder_attention_mask"]
        said["decoder_input_ids"] = torch.from_numpy(begun(given(name)["tokens"]))
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    with torch.no_grad():
        out = generation.generate(model, **said, max_new_tokens=n, min_new_tokens=n, do_sample=False)
    return out[:, -n:].numpy()


def begun(tokens):
    """A prompt of two for a decoder with an encoder: the token that every text begins with, and another."""
    return np.concatenate((np.ones_like(tokens[:, :1]), tokens[:, :1]), 1)


def greedy_ours(framework, folder, name, n):
    """The same of attn_torch or attn_jax."""
    package = importlib.import_module(f"attn_{framework}")
    library = importlib.import_module({"torch": "torch", "jax": "jax.numpy"}[framework])
    model = package.load(folder, drop=DROP.get(name, ()))
    call = given(name)
    if "decoder_mask" in call:
        call["inputs_mask"] = call.pop("mask", None)
        call["tokens"] = begun(call["tokens"])
        del call["decoder_mask"]
    call.pop("position_ids", None)
    call = {k: library.asarray(x) for k, x in call.items() if x is not None}
    return np.asarray(package.generate(model, n_new=n, **call))


def measured(name, frameworks=("torch", "jax"), dtypes=("float64", "float32")):
    """{(framework, dtype): difference}, {"transformers": its own in float32, "bound": of float32}."""
    with tempfile.TemporaryDirectory() as folder:
        narrow, exact = saved(name, folder)
        with wide():
            want = theirs(exact, name)
        found: dict = {
            "transformers": difference(name, theirs(narrow, name), want),
            "bound": bound(exact, name, want),
        }
        for framework in frameworks:
            for dtype in dtypes:
                got = ours(framework, Path(folder), name, dtype)
                found[framework, dtype] = difference(name, got, want)
    return found


def main():
    parser = argparse.ArgumentParser(prog="python -m tools.models", description=__doc__.split("\n")[0])
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"of {', '.join(MODELS)}; by default all"
    )
    families = parser.parse_args().families or list(MODELS)
    warnings.simplefilter("ignore")
    import jax

    jax.config.update("jax_enable_x64", True)
    importlib.import_module("transformers").logging.disable_progress_bar()
    columns = [(framework, dtype) for dtype in ("float64", "float32") for framework in ("torch", "jax")]
    print(
        "| family | " + " | ".join(f"attn_{f} {d}" for f, d in columns) + " | transformers float32 | bound |"
    )
    print("|---" * (len(columns) + 3) + "|")
    for name in families:
        found = measured(name)
        cells = [found[column] for column in (*columns, "transformers", "bound")]
        print(f"| {name} | " + " | ".join(f"{x:.1e}" for x in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
