"""The commands that judge the judge: are wrong implementations rejected, are right ones accepted."""

import json
import os
import platform
import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from parity import choose
from parity.choose import Dtype
from parity.screen import Progress, console


class Framework(StrEnum):
    numpy = "numpy"
    torch = "torch"
    jax = "jax"


def mutants(
    framework: Annotated[
        list[Framework] | None,
        typer.Option(help="Whose arithmetic: torch and jax by default. May be repeated."),
    ] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="May be repeated.")] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            help="Judge under these claims, and not under the dtypes' strict ones. May be repeated."
        ),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="What was found.")] = None,
) -> None:
    """Judge wrong implementations on purpose: each must be rejected where its correct twin passes."""
    from parity import devices
    from parity.claims import CLAIMS
    from parity.mutants import proof
    from parity.record import INTERRUPTED

    unknown = [name for name in claim or () if name not in CLAIMS]
    if unknown or (claim and dtype):
        problem = (
            f"no claim {unknown[0]!r}; see `parity list claims`" if unknown else "not together with --dtype"
        )
        raise typer.BadParameter(problem, param_hint="--claim")
    frameworks = [str(name) for name in framework or (Framework.torch, Framework.jax)]
    claims = list(claim or map(str, dtype or Dtype))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    start, out, found, complete = time.monotonic(), console(), proof.Proof(), False
    versions = {k: v for name in frameworks for k, v in devices.prepare(name)["versions"].items()}
    try:
        with Progress("killing", len(proof.wanted(frameworks, claims))) as step:
            for killed in found.run(frameworks, claims):
                step(killed is not None)
        complete = True
    except KeyboardInterrupt:
        out.print("interrupted: these are the arithmetics that were finished")
    seconds = round(time.monotonic() - start, 1)
    for line in proof.lines(found):
        out.print(line, soft_wrap=True)
    said: dict = {"generated": datetime.now(UTC).isoformat(timespec="seconds")}
    said |= {"python": platform.python_version()}
    said |= {"versions": versions, "frameworks": frameworks, "claims": claims}
    report = said | proof.record(found)
    wrong = bool(found.alive or found.failed)
    code = found.exit_code if complete or wrong else INTERRUPTED
    report["summary"] |= {"seconds": seconds, "complete": complete, "exit_code": code}
    counts = report["summary"]
    with_what = ", ".join(f"{name} {version}" for name, version in versions.items())
    out.print(f"\n{counts['mutants']} mutants, {with_what}, under {', '.join(claims)}:")
    deaths = f"{counts['killed']:,} of {counts['tried']:,} killed"
    twins = f"in {counts['trials']:,} trials the correct twin failed {counts['twins_failed']} times"
    out.print(f"{deaths}; {twins}; {seconds:.0f} s")
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
        out.print(f"written to {json_file}", style="dim")
    raise typer.Exit(code)


def calibrate(
    subject: Annotated[list[str] | None, typer.Option(help="Subjects: a name; * and ? match.")] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="May be repeated.")] = None,
    outputs: Annotated[
        int, typer.Option(min=1, help="Tensors to judge, for each claim and set of cases.")
    ] = 1000,
) -> None:
    """Measure how much of their bounds correct implementations use: is a bound ever exceeded, is it tight."""
    from parity import calibrate as calibration
    from parity.record import INTERRUPTED

    subjects = tuple(s for s in choose.subjects(subject) if not isinstance(s, str))
    dtypes = tuple(str(name) for name in dtype or Dtype)
    uses: calibration.Uses = {}
    code = 0
    try:
        with Progress("judging", None) as step:
            for _ in calibration.calibrate(uses, subjects, dtypes, outputs):
                step(1)
    except KeyboardInterrupt:
        console().print("interrupted: these are the figures so far")
        code = INTERRUPTED
    raise typer.Exit(calibration.show(uses, console()) or code)
