"""What is published (the sdist, and the wheel from it), and an empty environment that has it. Not a test itself."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]


def clean() -> dict[str, str]:
    """This process's variables without any that leads into the checkout or into the environment of these tests."""
    own = (str(ROOT), sys.prefix)
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "PYTEST_", "SPARKWRIGHT_", "VIRTUAL_ENV"))
        and (key == "PATH" or not any(place in value for place in own))
    }
    kept["PATH"] = os.pathsep.join(p for p in kept["PATH"].split(os.pathsep) if not p.startswith(own))
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; an assertion with all it said if it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean(), capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@attrs.frozen
class Built:
    """The sdist, unpacked, and the wheel built from that."""

    source: Path
    wheel: Path


def build(folder: Path) -> Built:
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist")
    run(*command, "--sdist", ROOT, cwd=folder)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    source = folder / "source"
    source.mkdir()
    run("tar", "xzf", sdist, "-C", source, "--strip-components=1", cwd=folder)
    run(*command, "--wheel", source, cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return Built(source, wheel)


def install(built: Built, folder: Path, *more: str) -> Path:
    """A new environment with the wheel (and what it needs, fetched as a user's pip does); its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", f"sparkwright[cpu] @ file://{built.wheel}", *more, cwd=folder)
    return python
