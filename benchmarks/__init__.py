"""How fast, how large, how near the machine's limits: attention, blocks and models, in one interleaved run.

`python -m benchmarks run` takes minutes, `run --full` sweeps every length, `compare A B` sets two runs side
by side. Read cells.py first (what is measured), then timing.py (in which order), then worker.py (by whom).

Libraries, and why: scipy for the bootstrap and the fit (known implementations of known methods), psutil for
memory and load (the same on every system), typer and rich for the command, jinja2 and matplotlib for the
report. Clock and processes are the standard library's: pyperf and pytest-benchmark cannot interleave
contenders that live in different processes, and torch.utils.benchmark keeps to its own framework.
"""
