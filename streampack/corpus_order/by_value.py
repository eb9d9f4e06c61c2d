"""Order by a value: stages 2 and 6 for a job with `by`, in place of embedding and searching.

Steps:
  1. While a part is copied, the value of each document is read from its record, or computed from
     its text by a function of `ordering.signals`.
  2. One process sorts the values of the whole corpus at the pace of `ByField`. Memory: about 40
     bytes per document.

Passes and quantiles are the runs of the path, so a shard ends at the last one that fits it whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.corpus_order.corpus import Corpus
from streampack.corpus_order.settings import CorpusOrder
from streampack.corpus_order.work import Work
from streampack.documents.blocks import Texts
from streampack.errors import ConfigError
from streampack.fields.casting import cast_values, misfit
from streampack.ordering import signals
from streampack.ordering.by_field import ByField
from streampack.sources.broken import broken_document
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization.short_texts import short_texts

VALUE = np.dtype(np.float64)


def with_values(
    job: CorpusOrder, by: ByField, block: Any, skips: ErrorPolicy
) -> tuple[Any, NDArray[np.float64]]:
    """Return the documents of a block that have a value, and the values (N,).

    Raises:
        ContentError: the value of a document is missing or not a number, with on_error="raise".
    """
    if job.by_signal and isinstance(block, Texts):
        texts = short_texts(job.source, block, skips)
        rate = getattr(signals, by.name)
        return texts, np.array([rate(text) for text in texts.texts], dtype=VALUE)
    given = None if job.by_signal else block.document_fields.get(by.name)
    if given is None:
        if not len(block) or job.by_signal:  # conversations, which shards do not hold
            return block, np.zeros(0, dtype=VALUE)
        raise ConfigError(
            f'The records must have the field "{by.name}", by which they are ordered; it is '
            "missing.",
            f"Name a field of numbers, or one of {', '.join(signals.__all__)}, which are computed "
            "from texts.",
            setting="by",
        )
    values, wrong = cast_values(given, VALUE)
    for i in wrong.tolist():
        shard, index = (int(block.origin[i][name]) for name in ("shard", "index"))
        reason = misfit(given[i], by.name, VALUE)
        skips.handle(broken_document(job.source, shard, index, reason))
    good = np.setdiff1d(np.arange(len(block)), wrong)
    return (block.take(good), values[good]) if len(wrong) else (block, values)


def of_kept(
    values: NDArray[np.float64], origin: NDArray[np.void], kept: NDArray[np.void]
) -> NDArray[np.float64]:
    """Return the values of the documents with the origins `kept`, a part of `origin`, in order."""
    return values if len(kept) == len(origin) else values[np.isin(origin, kept)]


def note_part(job: CorpusOrder, part: int) -> None:
    """Write the note of a part that is not embedded."""
    name = f"embed/{part:05}"
    lengths = np.diff(job.files.load(f"{name}.offsets.npy"))
    counts = {
        "documents": len(lengths),
        "units": int(lengths.sum()),
        "empty": int((lengths == 0).sum()),
        "dimension": 0,
    }
    job.files.note(f"{name}.json", {**job.files.read(f"{name}.copied.json"), **counts})


def all_values(work: Work, parts: int) -> NDArray[np.float64]:
    """Return the values (N,) of the whole corpus."""
    values = [work.load(f"embed/{part:05}.values.npy") for part in range(parts)]
    return np.concatenate([np.zeros(0, dtype=VALUE), *values])


def sort_path(job: CorpusOrder) -> None:
    """Write the documents (N,) int32 in order, and the offsets (R,) of passes or quantiles."""
    assert job.by is not None
    values = all_values(job.files, job.num_parts)
    assert len(values) == len(Corpus(job.files, job.num_parts))
    parts = job.by.order_values(values, seed=0)
    sizes = [len(part) for part in parts if len(part)]
    order = np.concatenate(parts).astype(np.int32)
    job.files.save("duplicates/duplicate_of.npy", np.full(len(values), -1, dtype=np.int32))
    job.files.save("path/order.npy", order)
    job.files.save("path/runs.npy", np.cumsum([0, *sizes[:-1]]))
    job.files.note("path/note.json", {"runs": len(sizes), "without_neighbours": 0})
