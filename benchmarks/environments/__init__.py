"""Virtual environments of peers with requirements that clash with ours, or are not ours.

    python -m benchmarks.environments [NAME ...]

makes one per requirement file of this folder (or those named) under `.venvs`, which git ignores.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["make", "names", "python_of"]

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """All environments that can be made."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def python_of(name: str | None) -> Path | None:
    """The interpreter of an environment, this one's for None; None if it is not made."""
    if name is None:
        return Path(sys.executable)
    python = FOLDER / ".venvs" / name / "bin" / "python"
    return python if python.exists() else None


def make(name: str) -> None:
    """Make an environment anew; one that cannot be installed leaves nothing behind."""
    folder = FOLDER / ".venvs" / name
    venv.create(folder, with_pip=True, clear=True)
    requirements = str(FOLDER / f"{name}.txt")
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", requirements]
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError:
        shutil.rmtree(folder)
        raise


def main() -> None:
    """Make those asked for."""
    parser = argparse.ArgumentParser(description="Make the environments of the peers.")
    parser.add_argument("names", nargs="*", choices=[*names(), []], metavar="NAME")
    for name in parser.parse_args().names or names():
        print(f"{name} ...", flush=True)
        make(name)
