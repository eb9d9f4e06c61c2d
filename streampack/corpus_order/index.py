"""Stage 2: the index in which large corpora are searched; small ones are searched without.

Steps:
  1. A sample of the vectors trains the lists of an inverted file and a product quantizer, here.
  2. By shard of the index, that of consecutive parts: their vectors are added to a copy.

The rule, which gives the paper's numbers for its 235 million documents (appendix A.2: 32,768
lists, trained on 48 vectors for each, 64 lists searched): lists grow with the square root of the
number of documents, and lists searched with the square root of lists, from 16 on; both are powers
of two. Codes have half a byte for every two numbers of a
vector where the paper has a byte for three: faiss scans those many times faster on a CPU, and
`search` computes the similarities of what it finds again.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.corpus_order.corpus import Corpus
from streampack.corpus_order.settings import CorpusOrder
from streampack.corpus_order.work import Work
from streampack.ordering.approximate import require_faiss
from streampack.packing.rng import permutation

PAPER_DOCUMENTS, PAPER_LISTS, PAPER_PROBES = 235_266_464, 32_768, 64
LEAST_PROBES = 16
SAMPLE_PER_LIST = 48
LEAST_SAMPLE = 1 << 14
SHARD_DOCUMENTS = 10_000_000
ADDED = 1 << 15  # documents at a time
TRAINED = "index/trained.faiss"


class Shape(NamedTuple):
    """What the rule says.

    Attributes:
        lists: of the inverted file; probes: of them searched.
        sample: vectors that train it.
        dimension: of a vector with zeros behind it, so that the quantizer divides it.
        code_bytes: of a vector in the index.
    """

    lists: int
    probes: int
    sample: int
    dimension: int
    code_bytes: int


def shape_of(documents: int, dimension: int) -> Shape:
    """The index of so many documents, with vectors of so many numbers."""
    power = np.log2(PAPER_LISTS * np.sqrt(max(documents, 1) / PAPER_DOCUMENTS))
    lists = 1 << max(round(float(power)), 0)
    sample = min(max(SAMPLE_PER_LIST * lists, LEAST_SAMPLE), documents)
    width = padded_dimension(dimension)
    probes = 1 << int(np.log2(PAPER_PROBES * np.sqrt(lists / PAPER_LISTS)))
    lists = min(lists, documents)
    return Shape(lists, min(max(probes, LEAST_PROBES), lists), sample, width, width // 4)


def padded_dimension(dimension: int) -> int:
    """The next number that the quantizer divides."""
    return -(-dimension // 4) * 4


def empty_index(faiss: Any, lists: int, dimension: int) -> Any:
    """An inverted file of product codes, not trained yet."""
    kind = f"IVF{lists},PQ{dimension // 2}x4fs"
    return faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)


def padded(vectors: NDArray[np.float32], dimension: int) -> NDArray[np.float32]:
    """(M, dimension) float32, zeros behind each vector."""
    missing = dimension - vectors.shape[1]
    return np.pad(vectors, ((0, 0), (0, missing))) if missing else vectors


def index_shards(corpus: Corpus) -> list[tuple[int, int]]:
    """The parts [a, b) of each shard of the index, of about ten million documents."""
    number = corpus.first[:-1] // SHARD_DOCUMENTS
    starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    return list(zip(starts, [*starts[1:], corpus.parts], strict=True))


def train_index(job: CorpusOrder) -> None:
    """Write the trained index, which holds no vector."""
    faiss = require_faiss()
    corpus = Corpus(job.files, job.num_parts)
    shape = shape_of(len(corpus), corpus.dimension)
    chosen = np.sort(permutation(len(corpus), job.seed)[: shape.sample])
    index = empty_index(faiss, shape.lists, shape.dimension)
    for clustering in (index.cp, index.pq.cp):
        clustering.min_points_per_centroid = 1  # small corpora are no reason to warn
    index.cp.max_points_per_centroid = SAMPLE_PER_LIST
    index.cp.seed = index.pq.cp.seed = 1 + job.seed % (1 << 30)
    index.train(padded(corpus.vectors(chosen), shape.dimension))
    _save(job.files, TRAINED, index)


def fill_shard(job: CorpusOrder, shard: int) -> None:
    """Write the index of one shard."""
    faiss = require_faiss()
    corpus = Corpus(job.files, job.num_parts)
    index = faiss.read_index(str(job.files.path(TRAINED)))
    shards = index_shards(corpus)
    faiss.omp_set_num_threads(max((os.cpu_count() or 1) // len(shards), 1))
    low, high = corpus.first[list(shards[shard])].tolist()
    for start in range(low, high, ADDED):
        ids = np.arange(start, min(start + ADDED, high))
        index.add(padded(corpus.vectors(ids), index.d))
    _save(job.files, f"index/{shard:05}.faiss", index)


def _save(work: Work, name: str, index: Any) -> None:
    """Through Python, since faiss does not notice a disk that is full at the end."""
    faiss = require_faiss()
    with work.writing(name) as path, path.open("wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
