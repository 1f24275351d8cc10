"""How fast, how large, how close to the machine: every attention and every block here, in one interleaved run.

`python -m benchmarks run` takes minutes, `run --full` sweeps every length, `compare A B` sets two runs side by
side. Read cells.py first (what is measured), then timing.py (in which order), then worker.py (by whom).

Libraries, and why: scipy for the bootstrap (a known implementation of a known method), psutil for memory, cores
and load on every system alike, typer and rich for the command, jinja2 and matplotlib for the report. The clock
is time.perf_counter and the processes are multiprocessing's: pyperf and pytest-benchmark cannot interleave
contenders that live in different processes, and torch.utils.benchmark keeps to its own framework.
"""
