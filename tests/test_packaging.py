"""The wheel: what is in it, and that it works from another directory in an environment of its own."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("attn_torch", "attn_jax", "parity")

# None of the three packages comes from the checkout, and all three load.
CHECK = """
import sys, attn_jax, attn_torch, parity
print(all(package.__file__.startswith(sys.prefix) for package in (attn_jax, attn_torch, parity)))
"""


def run(*command, cwd):
    """What a command prints; its failure is the test's."""
    env = {name: x for name, x in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        out,
        ROOT,
        cwd=out,
    )
    (built,) = out.glob("attn_parity-*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    info = f"{wheel.name.rpartition('-py3')[0]}.dist-info"
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, info}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert f"{info}/licenses/LICENSE" in names
    tracked = run("git", "ls-files", *PACKAGES, cwd=ROOT).split() if (ROOT / ".git").exists() else ()
    assert set(tracked) <= set(names)


@pytest.mark.slow
def test_the_wheel_works_from_another_directory(wheel, tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel, cwd=tmp_path)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    Path(site, "lent.pth").write_text(
        sysconfig.get_path("purelib")
    )  # torch, jax and numpy, without a download
    assert run(python, "-W", "error", "-c", CHECK, cwd=tmp_path) == "True\n"
    parity = tmp_path / "venv" / "bin" / "parity"
    run(parity, "run", "--case", "causal", "--subject", "attn_*", "--dtype", "float32", cwd=tmp_path)


def test_the_pins_lie_within_the_ranges():
    """What `make` installs is pinned at a version that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ranges = [
        *project["dependencies"],
        *(x for name in ("torch", "jax", "report", "bench", "test", "lint") for x in extras[name]),
    ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    for wanted in ranges:
        name, _, least = wanted.partition(">=")
        if not name.startswith("attn-parity"):
            assert [*map(int, pins[name].split("."))] >= [*map(int, least.split("."))], name
