"""Peak memory of one call in a process of its own: three measures of different things, never merged.

resident growth: how far the process's resident set rose above what it held before the call (inputs, code,
  compiled program); coarse, whole pages, every allocator.
compiler estimate: what XLA plans for the program, inputs included.
allocator peak: the most that the accelerator's allocator handed out, beyond what it held before the call.
"""

from benchmarks import check, resident
from benchmarks.cells import Cell
from benchmarks.worker import SPAWN, Bench

MIB = 2**20
SMALL = 64  # positions of the call before the measured one: libraries, threads and code pages come in with it


def measure(framework: str, device: str, threads: int, cell: Cell, name: str) -> dict:
    """{"resident_growth_mib", "compiler_estimate_mib", "allocator_peak_mib"}, None where there is none.

    Raises RuntimeError if the process ends without an answer.
    """
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=weigh, args=(theirs, framework, device, threads, cell, name), daemon=True)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError as error:
        raise RuntimeError(f"the process ended with exit code {process.exitcode}") from error
    finally:
        process.join()


def weigh(pipe, framework: str, device: str, threads: int, cell: Cell, name: str):
    """In the fresh process: prepare, then one call between two readings."""
    resident.return_freed_memory()
    bench = Bench(framework, device, threads)
    small = bench.build(cell.at(SMALL), name)
    bench.on.wait(small.call())
    program = bench.build(cell, name)
    check.forget()
    before, held = resident.settle(), bench.on.reset_peak()
    result = program.call()
    bench.on.wait(result)
    peak, allocated = resident.peak(), bench.on.peak()
    pipe.send(
        {
            "resident_growth_mib": (peak - before) / MIB,
            "compiler_estimate_mib": program.estimate_bytes and program.estimate_bytes / MIB,
            "allocator_peak_mib": allocated and (allocated - held) / MIB,
        }
    )
