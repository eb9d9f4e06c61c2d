"""Runs without the leaves that they do not use, as if the files of these were deleted.

For each kind of run a process is forked from one that has imported torch and other libraries, but
nothing of streampack. There the modules of all other leaves cannot be imported, and their lines are
removed from the table of leaves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # of pytest, on Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent


def layers() -> dict[str, list[str]]:
    """The contract with the layers, and with the seams that it ignores."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (found,) = (contract for contract in contracts if contract["type"] == "layers")
    return found


def leaves() -> list[str]:
    """The folders and files of the leaves: the layers above the loader, each format by itself."""
    above = [name.strip() for layer in layers()["layers"] for name in layer.split("|")]
    names = above[: above.index("loader")]
    formats = (ROOT / "streampack" / "formats").glob("[a-z]*")
    return [
        *(f"streampack.{name}" for name in names if name != "formats"),
        *(f"streampack.formats.{path.stem}" for path in sorted(formats)),
    ]


def is_in(module: str, names: Sequence[str]) -> bool:
    """Return True if a module is one of the names, or inside such a package."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


class Deleted:
    """A finder of modules that refuses deleted ones."""

    def __init__(self, deleted: Sequence[str]) -> None:
        self.deleted = deleted

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if is_in(name, self.deleted):
            raise ModuleNotFoundError(f"the leaf {name} is deleted")


def delete(deleted: Sequence[str]) -> None:
    """Delete modules from this process, and their lines from the table of leaves."""
    sys.meta_path.insert(0, Deleted(deleted))
    for table in vars(import_module("streampack.leaves")).values():
        if not isinstance(table, dict):
            continue
        for name, function in list(table.items()):
            if isinstance(function, str) and is_in("streampack." + function.split(":")[0], deleted):
                del table[name]


@contextmanager
def process_of_runs() -> Iterator[Callable[[str, Sequence[str]], str]]:
    """Start the process; return a function from a kind and its leaves to the hash of its batches.

    The leaves are named without "streampack."; a run that fails gives the traceback of its error.
    """
    # Compilation is a leaf too, and no run lists it.
    warm = [sys.executable, "-m", "streampack", "warm"]
    subprocess.run(warm, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, answers = process.stdin, process.stdout

    def ask(kind: str, leaves: Sequence[str]) -> str:
        to.write(json.dumps([kind, leaves]) + "\n")
        to.flush()
        answer: str = json.loads(answers.readline())
        return answer

    with process:
        yield ask
        to.close()


def _hash(kind: str, used: Sequence[str], folder: str) -> str:
    names = [f"streampack.{name}" for name in used]
    everything = leaves()
    assert not {*names} - {*everything}, f"not among the leaves: {names}"
    delete([leaf for leaf in everything if leaf not in names])
    golden = import_module("tests.run.test_golden_batches")
    loader = import_module("streampack").PackedLoader
    hashed: str = golden.hashed(loader(golden.KINDS[kind](golden.Corpus(Path(folder)))))
    return hashed


def main() -> None:
    """Answer each line of the input, a kind and its leaves, with a line: the hash."""
    for name in ("numba", "numpy", "pyarrow.feather", "pyarrow.parquet", "tokenizers", "torch"):
        import_module(name)
    import_module("tests.support.mosaic")
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                try:
                    answer = _hash(*json.loads(line), folder)
                except BaseException:
                    answer = traceback.format_exc()
                os.write(writer, answer[-4000:].encode())
                os._exit(0)
            os.close(writer)
            with open(reader, "rb") as pipe:
                print(json.dumps(pipe.read().decode()), flush=True)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
