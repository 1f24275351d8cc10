"""CLIP as it is mostly kept: both encoders in one folder, of which one is read at a time.

Source: Radford et al. 2021; transformers' modeling_clip.py.
"""

OTHERS = {  # part -> what is not of it
    "text": ("vision_model.*", "visual_projection.weight", "logit_scale"),
    "vision": ("text_model.*", "text_projection.weight", "logit_scale"),
}


def part(c, name):
    """(config.json of one encoder, patterns of the tensors that are not its own)."""
    if name not in OTHERS:
        raise ValueError(f"part: got {name!r} of a clip model, wanted 'text' or 'vision'")
    said = {"model_type": f"clip_{name}_model", "projection_dim": c["projection_dim"]}
    return type(c)(c[f"{name}_config"] | said), OTHERS[name]
