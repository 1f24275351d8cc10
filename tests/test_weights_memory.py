"""What load needs memory for: the model, and of the file no more than is being read."""

import json
import subprocess
import sys
from pathlib import Path

from frameworks import both_frameworks

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
import PACKAGE
from parity.weights import stored
from parity.weights.families import llama
from parity.weights.keywords import Config

def write(folder, V, C, F, n):
    said = {"model_type": "llama", "vocab_size": V, "hidden_size": C, "intermediate_size": F}
    said |= {"num_attention_heads": 8, "num_hidden_layers": n, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
    k = llama.keywords(Config(said), ["lm_head.weight"])
    shapes = {}
    for entry in llama.entries(k, "model."):
        wide = {"gate_proj": F, "up_proj": F, "embed_tokens": V, "lm_head": V}
        for name in entry.tensors:
            rows = [n for part, n in wide.items() if part in name] or [C]
            shapes[name] = (C,) if "norm" in name else (C, F) if "down_proj" in name else (rows[0], C)
    ones = {name: ("float32", s, lambda s=s: np.ones(s, "f4")) for name, s in shapes.items()}
    folder.mkdir()
    stored.save(folder / "model.safetensors", ones)
    (folder / "config.json").write_text(json.dumps(said))
    return sum(int(np.prod(s)) * 4 for s in shapes.values())

def status(name):
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name)]
    return int(line.split()[1]) * 1024

folder = Path(sys.argv[1])
write(folder / "small", 80, 64, 48, 1)
size = write(folder / "large", 6000, 512, 1536, 10)
PACKAGE.load(folder / "small")  # whatever is loaded or compiled once
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
model = PACKAGE.load(folder / "large")
print(json.dumps([size, status("VmHWM") - before]))
"""


@both_frameworks
def test_loading_takes_the_size_of_the_file_and_a_fifth_at_most(framework, tmp_path):
    command = [sys.executable, "-c", PROGRAM.replace("PACKAGE", f"attn_{framework}"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    size, peak = json.loads(done.stdout)
    assert size > 150e6
    assert size < peak < 1.2 * size
