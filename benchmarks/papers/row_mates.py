"""Similarity of the documents of a row by n-grams and by BM25, without and with a limit.

    python -m benchmarks.papers.row_mates [--documents 8192] [--seed 0] [--alike oci]

The corpus and the pipeline come from `in_context`, with one ordering window that holds all
documents. The first table has a measure that no order uses, whether two documents of a row are of
one package, beside their cosines in both embeddings. The second one compares the nearest documents
by hashed BM25 with those by BM25 as in the textbook, one document as the query; near-duplicates by
n-grams are left out. The third one has `streampack order`. The fourth one compares n-grams and BM25
inside single packages, by the folder of a file. The last one has the pairs that stay above a limit
in the files of one package (`--alike`), which are much alike, by the neighbours that are searched.
Takes about three minutes.

Source: "Analysing the Impact of Sequence Composition on Language Model Pre-Training"; "Threshold
Filtering Packing for Supervised Fine-Tuning: Training Related Samples within Packs".
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.papers.in_context import (
    SEQ_LEN,
    cosines,
    package_of,
    packed,
    pairs_within,
    python_files,
    read_corpus,
    unit_vectors,
)
from benchmarks.papers.orders import RandomOrder
from benchmarks.report import print_table
from streampack.corpus_order import order_corpus
from streampack.documents.blocks import Documents
from streampack.ordering import BM25, DocumentOrder, HashedNgrams, SimilarityOrder
from streampack.ordering.above_limit import share_above
from streampack.ordering.embedding import heads
from streampack.ordering.traversal import Limit

PACKAGES = ["oci", "sympy", "torch", "transformers"]


def row_mates_table(
    ids: list[NDArray[np.uint32]], packages: list[str], vectors: NDArray[np.float32], seed: int
) -> None:
    """Print how related the documents of a row are by similarity of the order, and with a limit."""
    window: dict[str, Any] = {
        "order_window_documents": len(ids),
        "first_window_documents": len(ids),
    }
    limited = {**window, "row_tokens": SEQ_LEN}
    bm25 = BM25()
    by_bm25 = unit_vectors(bm25(heads(Documents.from_arrays(ids), 512)))
    package = np.unique(packages, return_inverse=True)[1]
    orders: dict[str, DocumentOrder] = {
        "random": RandomOrder(order_window_documents=len(ids)),
        "n-grams": SimilarityOrder(**window),
        "n-grams, at most 0.9": SimilarityOrder(max_similarity=0.9, **limited),
        "n-grams, at most 0.8": SimilarityOrder(max_similarity=0.8, **limited),
        "BM25": SimilarityOrder(embedder=bm25, **window),
        "BM25, at most 0.8": SimilarityOrder(embedder=bm25, max_similarity=0.8, **limited),
        "BM25, at most 0.6": SimilarityOrder(embedder=bm25, max_similarity=0.6, **limited),
    }
    rows = []
    for name, order in orders.items():
        began = time.perf_counter()
        order.order(Documents.from_arrays(ids))
        seconds = time.perf_counter() - began
        run = packed(ids, order, seed)
        pairs = pairs_within(run["rows"])
        of_grams, of_terms = cosines(vectors, pairs), cosines(by_bm25, pairs)
        rows.append(
            [
                name,
                f"{(package[pairs[:, 0]] == package[pairs[:, 1]]).mean():.1%}",
                f"{of_grams.mean():.3f}",
                f"{(of_grams > 0.8).mean():.2%}",
                f"{of_terms.mean():.3f}",
                f"{(of_terms > 0.6).mean():.2%}",
                f"{run['duplicates']:,}",
                f"{seconds:.1f}",
            ]
        )
    head = ["order", "one package", "n-grams", "above 0.8", "BM25", "above 0.6", "dropped", "s"]
    print_table("All pairs of documents in a row: one package, and mean cosines", head, rows)


def nearest_table(ids: list[NDArray[np.uint32]], packages: list[str]) -> None:
    """Print how many of the nearest documents are of the same package, by kind of similarity."""
    documents = heads(Documents.from_arrays(ids), 512)
    package = np.unique(packages, return_inverse=True)[1]
    hashed = unit_vectors(HashedNgrams()(documents))
    grams = hashed @ hashed.T
    alike = grams > 0.95
    scores: dict[str, Callable[[], NDArray[np.float32]]] = {"n-grams": lambda: grams}
    for dimension in (1024, 2048, 4096):
        unit = unit_vectors(BM25(dimension=dimension)(documents))
        scores[f"BM25, {dimension:,} components"] = lambda unit=unit: unit @ unit.T
    scores["BM25 of the textbook, asymmetric"] = lambda: textbook_scores(documents)
    rows = []
    for name, make in scores.items():
        score = np.where(alike, -1.0, make()).astype(np.float32)
        np.fill_diagonal(score, -1)
        nearest = np.argsort(-score, axis=1, kind="stable")[:, :10]
        same = package[nearest] == package[:, None]
        rows.append([name, f"{same[:, 0].mean():.1%}", f"{same.mean():.1%}"])
    print_table("Of the same package", ["similarity", "the nearest", "the 10 nearest"], rows)


def textbook_scores(documents: Documents) -> NDArray[np.float32]:
    """(N, N) BM25 scores of documents (columns) for the distinct terms of others (rows)."""
    terms, index = np.unique(documents.tokens, return_inverse=True)
    owner = np.repeat(np.arange(len(documents)), documents.lengths)
    keys, counts = np.unique(owner * len(terms) + index, return_counts=True)
    owner, term = np.divmod(keys, len(terms))
    have = np.bincount(term, minlength=len(terms))
    idf = np.log(1 + (len(documents) - have + 0.5) / (have + 0.5))
    length = documents.lengths[owner] / documents.lengths.mean()
    weight = idf[term] * counts * 2.2 / (counts + 1.2 * (0.25 + 0.75 * length))
    scores = np.zeros((len(documents), len(documents)), dtype=np.float32)
    by_term = np.argsort(term, kind="stable")
    for own in np.split(by_term, np.flatnonzero(np.diff(term[by_term])) + 1):
        scores[np.ix_(owner[own], owner[own])] += weight[own].astype(np.float32)
    return scores


def corpus_table(ids: list[NDArray[np.uint32]], packages: list[str]) -> None:
    """Print how related documents side by side are after `streampack order`."""
    settings: dict[str, dict[str, Any]] = {
        "n-grams": {},
        "BM25": {"embedder": "bm25"},
        "BM25, faiss": {"embedder": "bm25", "search": "faiss"},
        "BM25, at most 0.8": {"embedder": "bm25", "max_similarity": 0.8, "row_tokens": SEQ_LEN},
    }
    rows = []
    for name, options in settings.items():
        with TemporaryDirectory() as folder:
            began = time.perf_counter()
            done = order_corpus(ids, f"{folder}/out", workers=0, parts=4, **options)
            seconds = time.perf_counter() - began
            named = pq.read_table(f"{folder}/out/_order/documents.parquet")
        path = np.array(packages)[named["index"].to_numpy()]
        same = (path[1:] == path[:-1]).mean()
        rows.append(
            [name, f"{same:.1%}", f"{done.runs:,}", f"{done.duplicates:,}", f"{seconds:.0f}"]
        )
    head = ["streampack order", "side by side, one package", "runs", "dropped", "s"]
    print_table("A whole corpus", head, rows)


def packages_table(names: list[str], count: int, seed: int) -> None:
    """Print how many pairs in a row are of one folder, by package and embedder."""
    rows = []
    for name in names:
        files = [file for file in python_files() if package_of(file) == f"purelib/{name}"]
        ids, folders = read_corpus(count, seed, files, lambda file: str(file.parent))
        folder = np.unique(folders, return_inverse=True)[1]
        window = {"order_window_documents": len(ids), "first_window_documents": len(ids)}
        orders: dict[str, DocumentOrder] = {
            "random": RandomOrder(order_window_documents=len(ids)),
            "n-grams": SimilarityOrder(**window),
            "BM25": SimilarityOrder(embedder=BM25(), **window),
        }
        cells = []
        for order in orders.values():
            pairs = pairs_within(packed(ids, order, seed)["rows"])
            cells.append(f"{(folder[pairs[:, 0]] == folder[pairs[:, 1]]).mean():.1%}")
        rows.append([name, f"{len(ids):,}", *cells])
    print_table("Pairs in a row of one folder", ["package", "documents", *orders], rows)


def limits_table(ids: list[NDArray[np.uint32]]) -> None:
    """Print the share of pairs within a row that stay above a limit, by neighbours."""
    documents = Documents.from_arrays(ids)
    window: dict[str, Any] = {
        "order_window_documents": len(ids),
        "first_window_documents": len(ids),
        "row_tokens": SEQ_LEN,
    }
    vectors = HashedNgrams()(heads(documents, 512))
    rows = []
    for most in (0.9, 0.8, 0.6):
        cells = []
        for k in (None, 10, 20, 40, 80):
            limit = {} if k is None else {"max_similarity": most, "k": k}
            path = SimilarityOrder(**window, **limit).order(documents).order
            above = share_above(vectors[path], Limit(most, 0, documents.lengths[path], SEQ_LEN))
            cells.append(f"{above:.2%}")
        rows.append([f"{most}", *cells])
    head = ["limit", "none", *(f"{3 * k} neighbours" for k in (10, 20, 40, 80))]
    print_table("Pairs within a row above the limit, of much alike documents", head, rows)


def main() -> None:
    """Read the corpus and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alike", default="oci", help="a package with much alike files")
    options = parser.parse_args()
    ids, packages = read_corpus(options.documents, options.seed)
    vectors = unit_vectors(HashedNgrams()(heads(Documents.from_arrays(ids), 512)))
    row_mates_table(ids, packages, vectors, options.seed)
    print()
    nearest_table(ids, packages)
    print()
    corpus_table(ids, packages)
    print()
    packages_table(PACKAGES, options.documents // 2, options.seed)
    print()
    of_package = [file for file in python_files() if package_of(file) == f"purelib/{options.alike}"]
    limits_table(read_corpus(options.documents // 2, options.seed, of_package)[0])


if __name__ == "__main__":
    main()
