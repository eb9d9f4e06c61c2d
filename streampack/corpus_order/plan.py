"""What a job will take: time, memory and disk of each stage, from rates measured here and now.

Steps:
  1. A sample of the source is read, embedded and written; the searches, the cosines and the walk
     are timed on random vectors and a random graph. About half a minute.
  2. Each stage is what its documents, pairs or bytes take at these rates, divided among workers
     where it is done by parts.

Lost: a random graph of a billion documents fits no cache, so the walk is slower there than here;
disks and networks slower than this machine's; vectors that no longer fit into memory are read at
random places.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.conversion.payloads import no_documents, payloads_of
from streampack.conversion.shards import OVERHEAD, Payload, write_shard
from streampack.corpus_order.corpus import Part
from streampack.corpus_order.embed import embed_batch
from streampack.corpus_order.index import (
    SHARD_DOCUMENTS,
    empty_index,
    padded,
    padded_dimension,
    shape_of,
)
from streampack.corpus_order.search import BATCH
from streampack.corpus_order.settings import PART_TOKENS, CorpusOrder
from streampack.documents.blocks import make_origin
from streampack.documents.ragged import offsets_of
from streampack.errors import ConfigError
from streampack.ordering.approximate import MARGIN, compute_cosines, require_faiss
from streampack.ordering.neighbours import squared_norms
from streampack.ordering.traversal import walk_runs
from streampack.reading.skips import Skips

SAMPLE_DOCUMENTS = 2000
DUPLICATES = 0.1  # share of documents that are compared as wholes, at a guess
SCANNED_LISTS = 16
TRAIN_STEPS = 10  # of k-means of the lists; the quantizer takes little beside it


@dataclass(frozen=True)
class Rates:
    """What one core does in a second, and what documents are like.

    Attributes:
        dimension: of vectors; mean_units: tokens, or bytes of text, of a document.
        unit_bytes: of a token.
        read, embedded, walked, written: documents.
        multiplied: multiplications of an exact comparison.
        scanned: bytes of codes in the index.
        refined: cosines of single pairs.
    """

    dimension: int
    mean_units: float
    unit_bytes: int
    read: float
    embedded: float
    walked: float
    written: float
    multiplied: float
    scanned: float
    refined: float


@dataclass(frozen=True)
class Cost:
    """Of a stage.

    Attributes:
        seconds: of wall time.
        memory: bytes, of all processes.
        disk: bytes of what it leaves in the work folder; shards stay, the rest goes in the end.
    """

    seconds: float
    memory: float
    disk: float


@dataclass(frozen=True)
class Plan:
    """What is expected of each stage.

    Attributes:
        documents, mean_units, workers: what it was made for.
        exact: whether every pair is compared; else `lists` and `probes` are the index's.
        stages: by name.
    """

    documents: int
    mean_units: float
    workers: int
    exact: bool
    lists: int
    probes: int
    stages: dict[str, Cost]


def plan_corpus(job: CorpusOrder, documents: int | None, workers: int | None) -> Plan:
    """Measure, and say what the job takes.

    Args:
        job: nothing is written to its destination.
        documents: how many; None is about what the source has.
        workers: cores that work; None is all of this machine.

    Raises:
        ConfigError: the source holds no document, or the number is out of its range.
    """
    rates = measure_rates(job)
    if documents is None:
        tokens = job.source.estimate_tokens() or 0
        per_document = max(
            rates.mean_units / (1 if job.source.tokenized or job.tokenizer else 4), 1
        )
        documents = max(round(tokens / per_document), 1)
    if not 0 < documents < 1 << 31:
        raise ConfigError(
            f"{documents:,} documents are to be planned for.",
            "They are numbered with 31 bits.",
            "Use a number from 1 to 2,147,483,647; order larger corpora in pieces.",
        )
    return expect(job, rates, documents, workers or os.cpu_count() or 1)


def expect(job: CorpusOrder, rates: Rates, documents: int, workers: int) -> Plan:
    """What so many documents take at these rates."""
    n, d, k = documents, rates.dimension, job.k
    wide = MARGIN * k
    shape = shape_of(n, d)
    exact = job.exact(n)
    content = n * rates.mean_units * rates.unit_bytes
    vectors = 2.0 * n * d
    shards = max(-(-n // SHARD_DOCUMENTS), 1)
    index_bytes = n * (shape.code_bytes + 8.0) + 4.0 * shape.lists * shape.dimension * shards
    part = min(PART_TOKENS, n * rates.mean_units)
    batch = 4.0 * BATCH * max(d, 1)
    if exact:
        index = Cost(0, 0, 0)
        search_s = n * float(n) * d / rates.multiplied
        search_memory = batch * 10
    else:
        trained = TRAIN_STEPS * float(shape.sample) * shape.lists * d / rates.multiplied
        filled = float(n) * shape.lists * d / rates.multiplied / workers
        index = Cost(
            trained + filled, workers * index_bytes / shards + 4.0 * shape.sample * d, index_bytes
        )
        codes = n * float(n) * shape.probes / shape.lists * shape.code_bytes
        search_s = codes / rates.scanned + shards * float(n) * shape.lists * d / rates.multiplied
        search_memory = index_bytes / shards + batch * 10
    search_s += shards * float(n) * wide / rates.refined
    wholes = DUPLICATES * n
    return Plan(
        documents=n,
        mean_units=rates.mean_units,
        workers=workers,
        exact=exact,
        lists=shape.lists,
        probes=shape.probes,
        stages={
            "embed": Cost(
                n * (1 / rates.read + 1 / rates.embedded) / workers,
                workers * (part * 4 + batch * 4),
                content + vectors + 24.0 * n,
            ),
            "index": index,
            "search": Cost(search_s / workers, workers * search_memory, shards * 8.0 * n * wide),
            "duplicates": Cost(
                wholes * rates.mean_units / (512 * rates.embedded) / workers
                + wholes * 2 / rates.refined,
                workers * batch * 4 + 40.0 * wholes,
                wholes * (4.0 * 1024 + 12) + 4.0 * n,
            ),
            "path": Cost(n / rates.walked, n * (8.0 * k + 16.0 * k + 80), 4.0 * n),
            "write": Cost(
                n / rates.written / workers,
                workers * job.shard_bytes * 3 + 24.0 * n,
                content + n * OVERHEAD,
            ),
        },
    )


def measure_rates(job: CorpusOrder) -> Rates:
    """What this machine does; about half a minute on one core.

    Raises:
        ConfigError: the source holds no document.
    """
    faiss = require_faiss()
    faiss.omp_set_num_threads(1)
    part, payloads, origin, read_s = _sample(job)
    count = len(payloads)
    chosen = np.arange(count)
    embed_batch(job, part, chosen[:8], origin)  # compiled, or loaded, before the clock starts
    vectors, embedded_s = _timed(lambda: embed_batch(job, part, chosen, origin))
    dimension = vectors.shape[1]
    rng = np.random.default_rng(0)
    many = rng.normal(size=(1 << 15, dimension)).astype(np.float32)
    some = many[:512]
    _, exact_s = _timed(lambda: faiss.knn(some, many, 31, metric=faiss.METRIC_INNER_PRODUCT))
    scanned = _scan_rate(faiss, many)
    near = rng.integers(0, len(many), (len(some), 30))
    at = len(some) + np.arange(near.size).reshape(near.shape)
    cosines, norms = np.zeros(near.shape), squared_norms(many)
    compute_cosines(many, norms, near[:1], cosines)

    def refine() -> None:
        compute_cosines(np.concatenate([some, many[near.ravel()]]), norms, at, cosines)

    _, refined_s = _timed(refine)
    return Rates(
        dimension=dimension,
        mean_units=float(part.offsets[-1]) / count,
        unit_bytes=part.content.dtype.itemsize,
        read=count / read_s,
        embedded=count / embedded_s,
        walked=_walk_rate(job.k),
        written=count / _write_s(job, payloads),
        multiplied=len(some) * len(many) * dimension / exact_s,
        scanned=scanned,
        refined=near.size / refined_s,
    )


def _timed(action: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = action()
    return result, max(time.perf_counter() - began, 1e-6)


def _sample(job: CorpusOrder) -> tuple[Part, list[Payload], NDArray[np.void], float]:
    """The first documents of the source, and how long it took to read them."""
    job.source.prepare()
    reader = job.source.lanes(job.num_parts, seed=0, epoch=0, shuffle=False)[0]
    skips, payloads, dtype = Skips(job.on_error), list[Payload](), job.dtype or ""
    began = time.perf_counter()
    for block, _ in reader.read(None, skips):
        dtype, more, _ = payloads_of(block, job.source, job.tokenizer, dtype, skips)
        payloads += more
        if len(payloads) >= SAMPLE_DOCUMENTS:
            break
    read_s = max(time.perf_counter() - began, 1e-6)
    if not payloads:
        raise no_documents("There is nothing to measure.")
    data = [np.frombuffer(p.encode(), np.uint8) if isinstance(p, str) else p for p in payloads]
    offsets = offsets_of(np.array([len(p) for p in data], dtype=np.int64))
    part = Part(np.concatenate(data), offsets, dtype == "str")
    return part, payloads, make_origin(0, np.arange(len(payloads))), read_s


def _scan_rate(faiss: Any, vectors: NDArray[np.float32]) -> float:
    """Bytes of codes that one core compares in a second, in an index like the job's."""
    width = padded_dimension(vectors.shape[1])
    index = empty_index(faiss, SCANNED_LISTS, width)
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    index.cp.niter = index.pq.cp.niter = 2
    own = padded(vectors, width)
    index.train(own[:2048])
    index.add(own)
    index.nprobe = SCANNED_LISTS
    _, seconds = _timed(lambda: index.search(own[:512], MARGIN * 10 + 1))
    return float(512 * len(own) * (width / 4) / seconds)


def _walk_rate(k: int) -> float:
    """Documents that the walk visits in a second, in a random graph."""
    count = 1 << 17
    rng = np.random.default_rng(0)
    ids = rng.integers(0, count, (count, k)).astype(np.int32)
    similarity = rng.random((count, k)).astype(np.float32)
    walk_runs(ids[:64] % 64, similarity[:64])
    _, seconds = _timed(lambda: walk_runs(ids, similarity))
    return count / seconds


def _write_s(job: CorpusOrder, payloads: list[Payload]) -> float:
    """Seconds that a shard of the sample takes."""
    with TemporaryDirectory(prefix="streampack-plan-") as folder:
        _, seconds = _timed(lambda: write_shard(Path(folder), 0, payloads, job.compression))
        return seconds
