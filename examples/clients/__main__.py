"""Run one client: ``python -m examples.clients NAME``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import tempfile
from pathlib import Path

from examples.clients.common import Corpus, quiet, table

NEEDS = {
    "transformers": ("transformers", "accelerate", "datasets"),
    "trl": ("trl", "transformers", "accelerate", "datasets"),
    "fabric": ("lightning", "transformers"),
    "litgpt": ("litgpt", "lightning", "jsonargparse", "transformers"),
    "torchtitan": ("torchtitan", "spmd_types", "tyro", "datasets", "transformers"),
    "nanochat": ("rustbpe", "tiktoken", "transformers"),
}


def missing_for(name: str, path: str | None) -> str:
    """Return a sentence about a client's missing packages, before it runs for minutes; or ""."""
    absent = [module for module in NEEDS[name] if importlib.util.find_spec(module) is None]
    if absent:
        return f"{name} needs {', '.join(absent)}: pip install --no-deps {' '.join(absent)}"
    if name == "nanochat" and not Path(path or "", "nanochat", "gpt.py").is_file():
        return "nanochat needs the path of its checkout: git clone github.com/karpathy/nanochat"
    return ""


def main() -> None:
    """Print the table of one client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=NEEDS)
    parser.add_argument("path", nargs="?", help="of nanochat's checkout")
    arguments = parser.parse_args()
    if missing := missing_for(arguments.name, arguments.path):
        parser.error(missing)
    quiet()
    module = importlib.import_module(f"examples.clients.with_{arguments.name}")
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus(Path(folder))
        sides = module.sides(corpus, *([arguments.path] if arguments.name == "nanochat" else []))
        print(table(arguments.name, sides))


if __name__ == "__main__":
    main()
