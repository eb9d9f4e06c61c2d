"""Summary of a job: counts, and the similarity of adjacent documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.corpus_order.by_value import all_values
from streampack.corpus_order.corpus import Corpus
from streampack.corpus_order.search import cosines_of_pairs
from streampack.corpus_order.settings import CorpusOrder
from streampack.errors import StateError
from streampack.packing.rng import permutation

PAIRS = 20_000  # number of sampled pairs
ROWS = 400
ROW_TOKENS = 8192


@dataclass(frozen=True)
class Summary:
    """The result of a job.

    Attributes:
        documents: documents read; empty: documents without a token.
        skipped: broken documents or shards that were left out.
        written: documents in the shards; duplicates: documents dropped. Their sum is `documents`.
        without_neighbours: written documents without a neighbour, in arbitrary positions.
        units, duplicate_units: tokens read and tokens of duplicates; bytes for texts.
        shards, runs: their numbers; a shard begins with a run, unless the run is larger.
        neighbours: mean cosine of consecutive documents; within_rows: of all pairs in rows of 8,192
            tokens; random_pairs: of any two documents. All are sampled, by the embedder's vectors.
        quartiles: of the value by which the documents are in order; None for similarity, and the
            cosines are 0 otherwise.
        above_limit: share of the pairs in such rows with a cosine above `max_similarity`.
    """

    documents: int
    skipped: int
    empty: int
    written: int
    duplicates: int
    without_neighbours: int
    units: int
    duplicate_units: int
    shards: int
    runs: int
    neighbours: float
    within_rows: float
    above_limit: float
    random_pairs: float
    quartiles: tuple[float, float, float] | None = None

    def as_json(self) -> bytes:
        """Return the summary as JSON for a file."""
        return json.dumps(asdict(self), indent=1).encode()


def summarise(job: CorpusOrder, shards: int) -> Summary:
    """Compute the summary after all stages.

    Raises:
        StateError: documents are missing, because the work folder was changed by others.
    """
    corpus = Corpus(job.files, job.num_parts)
    order = np.asarray(job.files.load("path/order.npy"), dtype=np.int64)
    duplicate_of = job.files.load("duplicates/duplicate_of.npy")
    dropped = np.flatnonzero(duplicate_of >= 0)
    written = [int(job.files.read(f"write/{s:05}.json")["documents"]) for s in range(shards)]
    lost = not np.array_equal(np.sort(np.concatenate([order, dropped])), np.arange(len(corpus)))
    if lost or sum(written) != len(order):
        raise StateError(
            "Every document must be written or a near-duplicate; of "
            f"{len(corpus):,} documents {sum(written):,} were written, and {len(dropped):,} are "
            "near-duplicates.",
            f"Remove {job.files.folder} and the shards, and restart the job.",
        )
    lengths = corpus.lengths()
    note = job.files.read("path/note.json")
    along = random = np.zeros(0)
    within, above, quartiles = 0.0, 0.0, None
    if job.by is None:
        along, random = sampled_cosines(job)
        within, above = _within_rows(corpus, order, lengths, job.max_similarity)
    else:
        values = all_values(job.files, job.num_parts)
        quartiles = tuple(np.quantile(values, (0.25, 0.5, 0.75)).tolist())
    return Summary(
        documents=len(corpus),
        skipped=sum(int(part["skipped"]) for part in corpus.notes),
        empty=sum(int(part["empty"]) for part in corpus.notes),
        written=len(order),
        duplicates=len(dropped),
        without_neighbours=int(note["without_neighbours"]),
        units=int(lengths.sum()),
        duplicate_units=int(lengths[dropped].sum()),
        shards=shards,
        runs=int(note["runs"]),
        neighbours=float(along.mean()) if len(along) else 0.0,
        within_rows=within,
        above_limit=above,
        random_pairs=float(random.mean()) if len(random) else 0.0,
        quartiles=quartiles,
    )


def sampled_cosines(job: CorpusOrder) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the cosines (S,) of adjacent documents of the path, and of as many random pairs."""
    corpus = Corpus(job.files, job.num_parts)
    order = np.asarray(job.files.load("path/order.npy"), dtype=np.int64)
    sampled = np.linspace(0, max(len(order) - 2, 0), min(PAIRS, max(len(order) - 1, 0)))
    at = np.unique(sampled.astype(np.int64))
    mixed = order[permutation(len(order), 0)]
    return (
        cosines_of_pairs(corpus, order[at], order[at + 1]),
        cosines_of_pairs(corpus, mixed[at], mixed[at + 1]),
    )


def _within_rows(
    corpus: Corpus, order: NDArray[np.int64], lengths: NDArray[np.int64], most: float
) -> tuple[float, float]:
    """Return the mean cosine of pairs of documents in rows along the path, and the share above."""
    row_units = ROW_TOKENS * corpus.units_per_token
    row = np.cumsum(lengths[order]) // row_units  # row of each document's end
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    total, above, pairs = 0.0, 0, 0
    chosen = np.unique(np.linspace(0, max(len(starts) - 1, 0), min(ROWS, len(starts))).astype(int))
    for number in chosen.tolist():
        stop = starts[number + 1] if number + 1 < len(starts) else len(order)
        vectors = corpus.vectors(order[starts[number] : stop][:256]).astype(np.float64)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        cosines = vectors @ vectors.T
        np.fill_diagonal(cosines, 0)
        total += float(cosines.sum())
        above += int((cosines > most).sum()) if most < 1 else 0
        pairs += len(vectors) * (len(vectors) - 1)
    return total / max(pairs, 1), above / max(pairs, 1)


def duplicates_listed(job: CorpusOrder) -> Iterator[dict[str, Any]]:
    """Yield each dropped document: name, tokens or bytes, and the similar document kept."""
    corpus = Corpus(job.files, job.num_parts)
    duplicate_of = job.files.load("duplicates/duplicate_of.npy")
    unit = "bytes" if corpus.dtype == "str" else "tokens"
    name = job.source.document_name
    for part in range(corpus.parts):
        low, high = corpus.first[part : part + 2]
        dropped = np.flatnonzero(duplicate_of[low:high] >= 0)
        like = np.asarray(duplicate_of[low:high][dropped], dtype=np.int64)
        lengths = np.diff(corpus.part(part).offsets)[dropped]
        origins = zip(corpus.origins(low + dropped), corpus.origins(like), lengths, strict=True)
        for origin, other, length in origins:
            yield {"document": name(origin), unit: int(length), "like": name(other)}
