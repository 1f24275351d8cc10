"""The families: a file each, named as in config.json's model_type.

A family's file has
  keywords(c, names): the transformer's keywords of a config.json c and of the tensors' names;
  entries(k, prefix): the tensors as parameters, for keywords k;
  config(k): what config.json says of keywords k that are all there (keywords.full);
  PREFIX: what the names begin with in a model that has a head or is several; without one they do not;
  and possibly BUFFERS, patterns of tensors that are no parameters; COPIES, name -> the tensor it repeats;
  FORMERLY, the end of older names -> that of today's.
"""

from importlib import import_module

NAMES = (
    *("bert", "clip_text_model", "clip_vision_model", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox"),
    *("llama", "mistral", "nanogpt", "olmo2", "phi3", "qwen2", "qwen3", "roberta", "t5", "vit", "whisper"),
)


def family(name: str):
    """The family's module. Raises ValueError if there is none of this name."""
    if name not in NAMES:
        raise ValueError(f"config.json: got model_type {name!r}, wanted one of {', '.join(NAMES)}")
    return import_module(f"{__name__}.{name}")
