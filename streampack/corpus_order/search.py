"""Stages 3 and 4: the index of a large corpus, and the nearest documents of each document.

Stage 3, for large corpora; small ones are searched without an index:
  1. In one process: a sample of the vectors trains the lists of an inverted file and a product
     quantizer.
  2. Per shard of the index, which covers consecutive parts: their vectors are added to a copy.

Stage 4:
  1. Find candidates, three per neighbour, so that k remain after near-duplicates are removed: in a
     small corpus every pair is compared, in a large one faiss searches one shard of the index.
  2. Recompute their cosines from the stored vectors, equal for both documents of a pair, and sort
     the candidates by them, ties by index.
  3. Once near-duplicates are known, repeat the search among kept documents for every kept document
     that has lost all of its candidates.

The results are ids (n, 3 k) int32, padded with -1, and similarities float32. Results of several
shards of the index are merged by their reader (`candidates_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.cores import usable_cores
from streampack.corpus_order.corpus import Corpus
from streampack.corpus_order.settings import CorpusOrder
from streampack.corpus_order.work import Work
from streampack.ordering.approximate import MARGIN, compute_cosines, require_faiss
from streampack.ordering.neighbours import NONE, ONE, squared_norms
from streampack.packing.rng import permutation

PAPER_DOCUMENTS, PAPER_LISTS, PAPER_PROBES = 235_266_464, 32_768, 64
LEAST_PROBES = 16
SAMPLE_PER_LIST = 48
LEAST_SAMPLE = 1 << 14
SHARD_DOCUMENTS = 10_000_000
ADDED = 1 << 15  # number of documents added at a time
TRAINED = "index/trained.faiss"


class Shape(NamedTuple):
    """Parameters of an index.

    Attributes:
        lists: number of lists of the inverted file; probes: number of lists searched.
        sample: number of training vectors.
        dimension: dimension of a vector, zero-padded to a multiple that the quantizer requires.
        code_bytes: bytes per vector in the index.
    """

    lists: int
    probes: int
    sample: int
    dimension: int
    code_bytes: int


def shape_of(documents: int, dimension: int) -> Shape:
    """Choose the parameters of an index by the number of documents and their vectors' dimension.

    The rule gives the paper's parameters for its 235 million documents (appendix A.2: 32,768 lists,
    trained on 48 vectors for each, 64 lists searched): lists grow with the square root of the
    number of documents, and lists searched with the square root of lists, from 16 on; both are
    powers of two. Codes have half a byte for every two components, and the paper's a byte for
    three: faiss scans half-byte codes many times faster on a CPU, and `_search` recomputes the
    similarities of the candidates.
    """
    power = np.log2(PAPER_LISTS * np.sqrt(max(documents, 1) / PAPER_DOCUMENTS))
    lists = 1 << max(round(float(power)), 0)
    sample = min(max(SAMPLE_PER_LIST * lists, LEAST_SAMPLE), documents)
    width = padded_dimension(dimension)
    probes = 1 << int(np.log2(PAPER_PROBES * np.sqrt(lists / PAPER_LISTS)))
    lists = min(lists, documents)
    return Shape(lists, min(max(probes, LEAST_PROBES), lists), sample, width, width // 4)


def padded_dimension(dimension: int) -> int:
    """Return the next dimension that the quantizer divides."""
    return -(-dimension // 4) * 4


def empty_index(faiss: Any, lists: int, dimension: int) -> Any:
    """Return an untrained inverted file of product codes."""
    kind = f"IVF{lists},PQ{dimension // 2}x4fs"
    return faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)


def padded(vectors: NDArray[np.float32], dimension: int) -> NDArray[np.float32]:
    """Pad vectors with zeros to (M, dimension) float32."""
    missing = dimension - vectors.shape[1]
    return np.pad(vectors, ((0, 0), (0, missing))) if missing else vectors


def index_shards(corpus: Corpus) -> list[tuple[int, int]]:
    """Return the parts [a, b) of each shard of the index, with about ten million documents."""
    number = corpus.first[:-1] // SHARD_DOCUMENTS
    starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    return list(zip(starts, [*starts[1:], corpus.parts], strict=True))


def train_index(job: CorpusOrder) -> None:
    """Train the index and write it without vectors."""
    faiss = require_faiss()
    corpus = Corpus(job.files, job.num_parts)
    shape = shape_of(len(corpus), corpus.dimension)
    chosen = np.sort(permutation(len(corpus), 0)[: shape.sample])
    index = empty_index(faiss, shape.lists, shape.dimension)
    for clustering in (index.cp, index.pq.cp):
        clustering.min_points_per_centroid = 1  # faiss warns about small corpora
    index.cp.max_points_per_centroid = SAMPLE_PER_LIST
    index.cp.seed = index.pq.cp.seed = 1
    index.train(padded(corpus.vectors(chosen), shape.dimension))
    _save(job.files, TRAINED, index)


def fill_shard(job: CorpusOrder, shard: int) -> None:
    """Write the index of one shard."""
    faiss = require_faiss()
    corpus = Corpus(job.files, job.num_parts)
    index = faiss.read_index(str(job.files.path(TRAINED)))
    shards = index_shards(corpus)
    faiss.omp_set_num_threads(max(usable_cores() // len(shards), 1))
    low, high = corpus.first[list(shards[shard])].tolist()
    for start in range(low, high, ADDED):
        ids = np.arange(start, min(start + ADDED, high))
        index.add(padded(corpus.vectors(ids), index.d))
    _save(job.files, f"index/{shard:05}.faiss", index)


def _save(work: Work, name: str, index: Any) -> None:
    """Write an index through Python, since faiss does not notice a disk that is full at the end."""
    faiss = require_faiss()
    with work.writing(name) as path, path.open("wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))


#: Documents (M, 3 k) and their similarities.
Candidates = tuple[NDArray[np.int32], NDArray[np.float32]]

BATCH = 2048  # documents searched at a time
COMPARED = 1 << 14  # documents to compare with at a time
COUNT_BITS = 22  # bits left beside the 41 bits of a cosine
PAIRS = 1 << 12  # pairs with vectors in memory at a time
REFINED = 256  # documents with their candidates' vectors in memory at a time


def search_part(job: CorpusOrder, shard: int, part: int) -> None:
    """Write the candidates of a part's documents in a shard of the index."""
    corpus = Corpus(job.files, job.num_parts)
    documents = np.arange(*corpus.first[part : part + 2])
    ids, similarity = _search(job, corpus, shard, documents)
    job.files.save(f"search/{shard:05}.{part:05}.ids.npy", ids)
    job.files.save(f"search/{shard:05}.{part:05}.npy", similarity)


def search_again(job: CorpusOrder, shards: int, part: int) -> None:
    """Write kept candidates for a part's kept documents that have lost all of theirs.

    The files hold these documents (L,), their candidates (L, 3 k) and similarities as in step 2.
    """
    corpus = Corpus(job.files, job.num_parts)
    stays = job.files.load("duplicates/duplicate_of.npy") < 0
    low, high = corpus.first[part : part + 2]
    ids, _ = candidates_of(job, shards, part)
    without = (ids >= 0).any(axis=1) & ~(stays[ids] & (ids >= 0)).any(axis=1)
    documents = low + np.flatnonzero(stays[low:high] & without)
    ids, similarity = _merged(
        job, [_search(job, corpus, s, documents, stays) for s in range(shards)]
    )
    job.files.save(f"path/{part:05}.again.ids.npy", ids)
    job.files.save(f"path/{part:05}.again.similarity.npy", similarity)
    job.files.save(f"path/{part:05}.again.npy", documents)


def _search(
    job: CorpusOrder,
    corpus: Corpus,
    shard: int,
    documents: NDArray[np.int64],
    stays: NDArray[np.bool_] | None = None,
) -> Candidates:
    """Find candidates of documents (M,) in a shard, optionally only where `stays` (N,) is True."""
    width = MARGIN * job.k
    ids = np.full((len(documents), width), -1, dtype=np.int32)
    similarity = np.full((len(documents), width), NONE, dtype=np.float32)
    for start in range(0, len(documents), BATCH):
        queries = documents[start : start + BATCH]
        vectors = corpus.vectors(queries)
        if job.exact(len(corpus)):
            candidates = _compare_all(corpus, vectors, width + 1, stays)
        else:
            candidates = _look_up(job, corpus, shard, vectors, width + 1, stays)
        candidates[~vectors.any(axis=1)] = -1  # a document without tokens has no candidates
        for low in range(0, len(queries), REFINED):
            refined, near = queries[low : low + REFINED], candidates[low : low + REFINED]
            cosines = cosines_of(corpus, refined, near)
            near, cosines = _first(np.where(cosines == NONE, -1, near), cosines, width)
            rows = slice(start + low, start + low + len(refined))
            ids[rows, : near.shape[1]] = near
            similarity[rows, : near.shape[1]] = cosines
    return ids, similarity


def _compare_all(
    corpus: Corpus,
    queries: NDArray[np.float32],
    width: int,
    stays: NDArray[np.bool_] | None,
) -> NDArray[np.int64]:
    """Return the nearest documents (M, width) to M vectors, padded with -1.

    The products of float16 unit vectors have no rounding error in float64, and ties are broken by
    index: every machine finds the same documents, with any number of threads.
    """
    ids = np.full((len(queries), width), -1, dtype=np.int64)
    key = np.full((len(queries), width), -np.iinfo(np.int64).max)
    queries = queries.astype(np.float64)
    among = np.arange(len(corpus)) if stays is None else np.flatnonzero(stays)
    for start in range(0, len(among), COMPARED):
        block = among[start : start + COMPARED]
        grid = np.rint(queries @ corpus.vectors(block).astype(np.float64).T * ONE).astype(np.int64)
        keys = (grid << COUNT_BITS) - np.arange(start, start + len(block))
        near = np.argpartition(-keys, min(width, len(block)) - 1, axis=1)[:, :width]
        key = np.concatenate([key, np.take_along_axis(keys, near, axis=1)], axis=1)
        ids = np.concatenate([ids, block[near]], axis=1)
        order = np.argsort(-key, axis=1, kind="stable")[:, :width]
        key = np.take_along_axis(key, order, axis=1)
        ids = np.take_along_axis(ids, order, axis=1)
    return ids


def _look_up(
    job: CorpusOrder,
    corpus: Corpus,
    shard: int,
    queries: NDArray[np.float32],
    width: int,
    stays: NDArray[np.bool_] | None,
) -> NDArray[np.int64]:
    """Like `_compare_all`, but approximately, in a shard of the index."""
    faiss = require_faiss()
    faiss.omp_set_num_threads(1)  # Ray has one worker per core
    low, high = corpus.first[list(index_shards(corpus)[shard])].tolist()
    file = job.files.path(f"index/{shard:05}.faiss")
    index = _opened(str(file), file.stat().st_mtime_ns)
    chosen = {}
    if stays is not None:
        marks = np.packbits(stays[low:high], bitorder="little")
        chosen["sel"] = faiss.IDSelectorBitmap(marks)
    probes = shape_of(len(corpus), corpus.dimension).probes
    parameters = faiss.SearchParametersIVF(nprobe=probes, **chosen)
    width = min(width, high - low)
    _, near = index.search(padded(queries, index.d), width, params=parameters)
    return np.where(near < 0, -1, near + low)


@lru_cache(maxsize=1)
def _opened(file: str, written_ns: int) -> Any:
    return require_faiss().read_index(file)  # cached by a worker between tasks


def cosines_of(
    corpus: Corpus, documents: NDArray[np.int64], others: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the cosines (M, C) of M documents with C others each, multiples of 2**-40.

    Entries are NONE where `others` is -1 or the document itself.
    """
    wanted = np.unique(others[others >= 0])
    vectors = corpus.vectors(np.concatenate([documents, wanted]))
    mapped = len(documents) + np.searchsorted(wanted, others)
    mapped[(others < 0) | (others == documents[:, None])] = -1
    cosines = np.full(others.shape, NONE, dtype=np.float64)
    compute_cosines(vectors, squared_norms(vectors), mapped, cosines)
    return cosines


def cosines_of_pairs(
    corpus: Corpus, left: NDArray[np.int64], right: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the cosines (M,) of the documents `left` (M,) and `right` (M,)."""
    cosines = np.zeros(len(left))
    for start in range(0, len(left), PAIRS):
        here = slice(start, start + PAIRS)
        cosines[here] = cosines_of(corpus, left[here], right[here, None])[:, 0]
    return cosines


def _first(
    ids: NDArray[Any], similarity: NDArray[Any], width: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the `width` most similar entries of each row (M, C), ties by index."""
    order = np.lexsort((ids, -similarity), axis=1)[:, :width]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(similarity, order, axis=1)


def candidates_of(job: CorpusOrder, shards: int, part: int) -> Candidates:
    """Return the nearest documents (n, 3 k) of a part over all shards, with similarities."""
    names = [f"search/{shard:05}.{part:05}" for shard in range(shards)]
    load = job.files.load
    return _merged(job, [(load(f"{name}.ids.npy"), load(f"{name}.npy")) for name in names])


def _merged(job: CorpusOrder, candidates: Sequence[Candidates]) -> Candidates:
    """Merge the results of the index's shards to the nearest 3 k."""
    ids = np.concatenate([ids for ids, _ in candidates], axis=1)
    similarity = np.concatenate([similarity for _, similarity in candidates], axis=1)
    return _first(ids, similarity, MARGIN * job.k) if len(candidates) > 1 else (ids, similarity)
