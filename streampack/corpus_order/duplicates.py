"""Stage 5: near-duplicates, by the similarity of embedded heads and of whole documents.

Steps:
  1. Per part: find pairs of documents with a cosine of their vectors above the threshold
     (`search`).
  2. Per part: embed the documents of these pairs whole (`ordering.neighbours`).
  3. In one process: a document is a near-duplicate of the first earlier kept one to which its
     cosine as a whole document also exceeds the threshold.
  4. A document similar to a near-duplicate is compared with the document that this one was dropped
     for, which the search may have missed among many copies. Step 3 is then repeated until it finds
     nothing new.

Cost: proportional to the pairs. Lost: pairs found neither by the search nor by step 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.corpus_order.corpus import Corpus, batches
from streampack.corpus_order.search import candidates_of, cosines_of_pairs
from streampack.corpus_order.settings import CorpusOrder
from streampack.ordering.hashing import HashedNgrams
from streampack.ordering.neighbours import Wholes, on_grid, whole_norms

PAIRS = 1 << 13  # number of pairs compared at a time


def find_pairs(job: CorpusOrder, shards: int, part: int) -> None:
    """Write the pairs (M, 2) int32 of a part: later document, earlier document."""
    first = int(Corpus(job.files, job.num_parts).first[part])
    ids, similarity = candidates_of(job, shards, part)
    threshold = on_grid(job.duplicate_threshold)
    over = (similarity > np.float32(threshold)) & (ids >= 0)
    if job.duplicate_threshold >= 1:
        over[:] = False
    row, column = np.nonzero(over)
    document, other = row + first, ids[row, column].astype(np.int64)
    pairs = np.stack([np.maximum(document, other), np.minimum(document, other)], axis=1)
    job.files.save(f"duplicates/{part:05}.pairs.npy", np.unique(pairs, axis=0).astype(np.int32))


def gather_wanted(job: CorpusOrder) -> None:
    """Write the documents (M,) that are in a pair, ascending."""
    names = [f"duplicates/{part:05}.pairs.npy" for part in range(job.num_parts)]
    documents = [np.unique(job.files.load(name)) for name in names]
    wanted = np.unique(np.concatenate([np.zeros(0, dtype=np.int32), *documents]))
    job.files.save("duplicates/wanted.npy", wanted)


def embed_whole(job: CorpusOrder, part: int) -> None:
    """Write the int32 vectors of the part's whole documents that are in a pair."""
    corpus = Corpus(job.files, job.num_parts)
    low, high = corpus.first[part : part + 2]
    wanted = job.files.load("duplicates/wanted.npy")
    in_pairs = wanted[np.searchsorted(wanted, low) : np.searchsorted(wanted, high)] - low
    embedder = _whole_embedder(job)
    content = corpus.part(part)
    vectors = [np.zeros((0, embedder.dimension), dtype=np.int32)]
    lengths = np.diff(content.offsets)[in_pairs]
    for chosen in batches(np.append(0, np.cumsum(lengths))):
        documents = content.documents(in_pairs[chosen])
        wholes = Wholes(documents, embedder)
        wholes.embed(np.ones(len(documents), dtype=np.bool_))
        vectors.append(wholes.made.vectors)
    job.files.save(f"duplicates/{part:05}.whole.npy", np.concatenate(vectors))


def _whole_embedder(job: CorpusOrder) -> HashedNgrams:
    embedder = job.similarity.embedding
    return embedder if isinstance(embedder, HashedNgrams) else HashedNgrams()


def choose_duplicates(job: CorpusOrder) -> None:
    """Write for each of N documents the kept one that it is dropped for, or -1."""
    corpus = Corpus(job.files, job.num_parts)
    names = [f"duplicates/{part:05}.pairs.npy" for part in range(job.num_parts)]
    candidates = [job.files.load(name) for name in names]
    pairs = np.unique(np.concatenate([np.zeros((0, 2), dtype=np.int32), *candidates]), axis=0)
    pairs = pairs[_alike_as_wholes(job, corpus, pairs)].astype(np.int64)
    threshold = on_grid(job.duplicate_threshold)
    compared = pairs
    while True:
        duplicate_of = np.full(len(corpus), -1, dtype=np.int32)
        _choose(pairs, duplicate_of)
        left = pairs[(duplicate_of[pairs[:, 0]] < 0) & (duplicate_of[pairs[:, 1]] >= 0)]
        new = np.stack([left[:, 0], duplicate_of[left[:, 1]]], axis=1).astype(np.int64)
        new = _without(np.unique(new, axis=0), compared, len(corpus))
        if not len(new):
            break
        compared = np.concatenate([compared, new])
        new = new[cosines_of_pairs(corpus, new[:, 0], new[:, 1]) > threshold]
        pairs = np.concatenate([pairs, new[_alike_as_wholes(job, corpus, new)]])
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    job.files.save("duplicates/duplicate_of.npy", duplicate_of)


def _without(pairs: NDArray[np.int64], known: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    keys = pairs[:, 0] * count + pairs[:, 1]
    return pairs[~np.isin(keys, known[:, 0] * count + known[:, 1])]


def _alike_as_wholes(job: CorpusOrder, corpus: Corpus, pairs: NDArray[Any]) -> NDArray[np.bool_]:
    """Return (M,) bool: pairs (M, 2) that exceed the threshold as whole documents."""
    wanted = job.files.load("duplicates/wanted.npy")
    threshold = on_grid(job.duplicate_threshold)
    first = np.searchsorted(wanted, corpus.first)
    files = [job.files.load(f"duplicates/{p:05}.whole.npy") for p in range(job.num_parts)]
    result = np.zeros(len(pairs), dtype=np.bool_)
    for start in range(0, len(pairs), PAIRS):
        some = pairs[start : start + PAIRS].astype(np.int64)
        documents = np.unique(some)
        vectors = np.empty((len(documents), _whole_embedder(job).dimension), dtype=np.int32)
        for part, where in corpus.by_part(documents):
            at = np.searchsorted(wanted, documents[where]) - first[part]
            vectors[where] = files[part][at]
        whole, norms = vectors.astype(np.int64), whole_norms(vectors)
        later, earlier = np.searchsorted(documents, some).T
        products = np.einsum("pd,pd->p", whole[later], whole[earlier])
        cosines = products / np.sqrt(norms[later] * norms[earlier])
        result[start : start + PAIRS] = cosines > threshold
    return result


@kernel
def _choose(pairs: NDArray[np.int64], duplicate_of: NDArray[np.int32]) -> None:
    """Run step 3 on pairs sorted by the later document, then by the earlier one."""
    for p in range(len(pairs)):
        later, earlier = pairs[p, 0], pairs[p, 1]
        if duplicate_of[later] < 0 and duplicate_of[earlier] < 0:
            duplicate_of[later] = earlier
