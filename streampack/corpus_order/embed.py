"""Stages 1 and 2, per part: copy documents to disk, then embed them.

A part is a lane of the source. Its documents are read once and stored in the form in which they
will be written, since the last stage needs them in random order. Vectors are of unit length and
float16; a document without tokens has the vector 0.

BM25 weights terms by their rarity in the whole corpus. Terms are counted while documents are
copied, in up to 256 parts spread evenly over it (in all parts up to about 270 million tokens).
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from streampack.conversion.shards import encoded
from streampack.corpus_order.by_value import VALUE, of_kept, with_values
from streampack.corpus_order.corpus import PartContent, batches
from streampack.corpus_order.settings import CorpusOrder
from streampack.documents.blocks import ORIGIN, offsets_of
from streampack.errors import ConfigError
from streampack.ordering.bm25 import BM25, TermCounts
from streampack.ordering.embedding import Embedder, TextEmbedder, checked, heads
from streampack.ordering.hashing import hash_words
from streampack.sources.error_policy import ErrorPolicy

COUNTED_PARTS = 256
TERMS = "embed/terms.npy"


def copy_part(job: CorpusOrder, part: int) -> None:
    """Write a part's documents, their origins, the counts of BM25, and finally a note.

    Raises:
        ContentError: a broken document, with on_error="raise".
        StorageError: reading or writing failed.
    """
    name = f"embed/{part:05}"
    dtype, lengths, origin, skipped = _copy(job, part)
    job.files.save(f"{name}.offsets.npy", offsets_of(lengths))
    job.files.save(f"{name}.origin.npy", origin)
    if isinstance(job.similarity.embedding, BM25) and part in counted_parts(job):
        content = PartContent.opened(job.files, part, dtype)
        counts = TermCounts.none()
        for chosen in batches(content.offsets):
            counts += TermCounts.of(heads(content.documents(chosen), job.first_tokens))
        job.files.save(f"{name}.terms.npy", counts.as_array())
    job.files.note(f"{name}.copied.json", {"dtype": dtype, "skipped": skipped})


def counted_parts(job: CorpusOrder) -> list[int]:
    """Return the parts in which terms are counted, ascending."""
    parts = np.linspace(0, job.num_parts - 1, min(job.num_parts, COUNTED_PARTS))
    return np.unique(parts.astype(np.int64)).tolist()  # type: ignore[no-any-return]


def add_counts(job: CorpusOrder) -> None:
    """Add up the counts of all parts and write them."""
    names = [f"embed/{part:05}.terms.npy" for part in counted_parts(job)]
    counts = [TermCounts.from_array(job.files.load(name)) for name in names]
    job.files.save(TERMS, sum(counts, TermCounts.none()).as_array())


def embed_part(job: CorpusOrder, part: int) -> None:
    """Write the vectors of a part's documents, and finally a note.

    Raises:
        ConfigError: the embedder did not return one finite vector per document.
        StorageError: reading or writing failed.
    """
    name = f"embed/{part:05}"
    copied = job.files.read(f"{name}.copied.json")
    content = PartContent.opened(job.files, part, copied["dtype"])
    dimension = _embed(job, name, content, job.files.load(f"{name}.origin.npy"))
    lengths = np.diff(content.offsets)
    job.files.note(
        f"{name}.json",
        {
            **copied,
            "documents": len(lengths),
            "units": int(content.offsets[-1]),
            "empty": int((lengths == 0).sum()),
            "dimension": dimension,
        },
    )


def _copy(job: CorpusOrder, part: int) -> tuple[str, NDArray[np.int64], NDArray[np.void], int]:
    """Write a part's content; return dtype, lengths (n,), origins (n,) and the skipped count."""
    reader = job.source.lanes(job.num_parts, seed=0, epoch=0, shuffle=False)[part]
    skips = ErrorPolicy(job.on_error)
    dtype = job.dtype or ""
    lengths: list[int] = []
    origins = [np.zeros(0, dtype=ORIGIN)]
    values = [np.zeros(0, dtype=VALUE)]
    with job.files.writing(f"embed/{part:05}.bin") as path, path.open("wb") as file:
        for block, _ in reader.read(None, skips):
            if job.by is not None:
                block, of_block = with_values(job, job.by, block, skips)
            before = block.origin
            dtype, payloads, origin, _ = encoded(block, job.source, job.tokenizer, dtype, skips)
            if job.by is not None:
                values.append(of_kept(of_block, before, origin))
            data = [p.encode() if isinstance(p, str) else p for p in payloads]
            lengths += map(len, data)
            origins.append(origin)
            file.writelines(d if isinstance(d, bytes) else d.tobytes() for d in data)
    if job.by is not None:
        job.files.save(f"embed/{part:05}.values.npy", np.concatenate(values))
    dtype = dtype or ("uint32" if job.source.tokenized or job.tokenizer else "str")
    return dtype, np.array(lengths, dtype=np.int64), np.concatenate(origins), skips.counts.skipped


def _embed(job: CorpusOrder, name: str, part: PartContent, origin: NDArray[np.void]) -> int:
    """Write the vectors of a part; return their dimension, or 0 without documents."""
    dimension = 0
    embedder = job.similarity.embedding
    if isinstance(embedder, BM25):
        embedder = partial(embedder, counts=TermCounts.from_array(job.files.load(TERMS)))
    with job.files.writing(f"{name}.vectors.npy") as path, path.open("wb") as file:
        for chosen in batches(part.offsets):
            vectors = embed_batch(job, embedder, part, chosen, origin)
            if not dimension:
                dimension = vectors.shape[1]
                header = {"descr": "<f2", "fortran_order": False}
                shape = (len(part.offsets) - 1, dimension)
                np.lib.format.write_array_header_2_0(  # type: ignore[no-untyped-call]
                    file, {**header, "shape": shape}
                )
            if vectors.shape[1] != dimension:
                raise ConfigError(
                    f"The embedder returned vectors of {vectors.shape[1]} numbers for "
                    f"{job.source.document_name(origin[chosen[0]])} and those after it, and of "
                    f"{dimension} for {job.source.document_name(origin[0])}.",
                    "Return vectors of one dimension, remove the destination and restart the job.",
                    setting="embedder",
                )
            file.write(vectors.tobytes())
        if not dimension:
            np.save(file, np.zeros((0, 0), dtype=np.float16))
    return dimension


def embed_batch(
    job: CorpusOrder,
    embedder: Embedder,
    part: PartContent,
    chosen: NDArray[np.int64],
    origin: NDArray[np.void],
) -> NDArray[np.float16]:
    """Return the float16 vectors (M, D), of length 1 or 0, of a part's documents `chosen` (M,)."""
    first = job.first_tokens
    if part.is_text:
        content, offsets = part.gathered(chosen)
        words, ends = hash_words(content, offsets)
        if isinstance(embedder, TextEmbedder):
            last = np.minimum(words.offsets[1:], words.offsets[:-1] + first) - 1
            stops = np.where(words.lengths > 0, np.append(ends, 0)[last], offsets[:-1])
            pairs = zip(offsets[:-1], stops, strict=True)
            texts = [content[a:b].tobytes().decode(errors="ignore") for a, b in pairs]
            embedded = embedder.function(texts)
        else:
            embedded = embedder(heads(words, first))
        empty = words.lengths == 0
    else:
        documents = part.documents(chosen)
        embedded = embedder(heads(documents, first))
        empty = documents.lengths == 0
    vectors = checked(
        job.similarity.embedding,
        embedded,
        len(chosen),
        lambda i: job.source.document_name(origin[chosen[i]]),
    )
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit = np.where((norms == 0) | empty[:, None], 0, vectors / np.where(norms == 0, 1, norms))
    return unit.astype(np.float16)
