"""Run one client: ``python -m examples.clients NAME``."""

from __future__ import annotations

import argparse
import importlib
import tempfile
from pathlib import Path

from examples.clients.common import Corpus, quiet, table

NAMES = ("transformers", "trl", "fabric", "litgpt", "torchtitan", "nanochat")


def main() -> None:
    """Print the table of one client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("path", nargs="?", help="of nanochat's checkout")
    arguments = parser.parse_args()
    quiet()
    module = importlib.import_module(f"examples.clients.with_{arguments.name}")
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus(Path(folder))
        sides = module.sides(corpus, *([arguments.path] if arguments.path else []))
        print(table(arguments.name, sides))


if __name__ == "__main__":
    main()
