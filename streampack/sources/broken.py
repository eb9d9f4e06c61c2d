"""Errors for documents that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import make_origin
from streampack.errors import ContentError
from streampack.sources.base import Source
from streampack.sources.error_policy import ErrorPolicy

TOO_LONG_REMEDY = (
    "Cut it, raise ReadOptions(max_document_bytes=), or leave such documents out with "
    'on_error="skip" (--on-error).'
)


def broken_document(source: Source, shard: int, index: int, reason: str) -> ContentError:
    """Return the error for a document that cannot be used.

    Args:
        source: source of the document.
        shard: shard index of its origin.
        index: document index of its origin.
        reason: ends the sentence that begins with the document's name: "is not UTF-8".
    """
    name = source.document_name(make_origin(shard, np.array([index], dtype=np.int64))[0])
    fact = f"{name[0].upper()}{name[1:]} {reason}."
    remedy = 'Repair it, or leave such documents out with on_error="skip" (--on-error).'
    setting = None
    if "max_document_bytes" in reason:
        remedy, setting = TOO_LONG_REMEDY, "max_document_bytes"
    return ContentError(fact, remedy, shard=shard, index=index, setting=setting, document=name)


def report_broken(
    source: Source,
    origin: NDArray[np.void],
    problems: Mapping[int, str],
    skips: ErrorPolicy,
) -> None:
    """Pass the broken documents of a block to `skips`, which raises or records them.

    Args:
        source: source of the documents.
        origin: (N,) origins of all documents of the block.
        problems: the reasons, as for `broken_document`, by index in the block; "" for a document
            that is left out on purpose.
        skips: the lane's handling of broken content.
    """
    for i in sorted(problems):
        if not problems[i]:  # left out by the user's function
            skips.counts.empty_documents += 1
            continue
        shard, index = int(origin["shard"][i]), int(origin["index"][i])
        skips.handle(broken_document(source, shard, index, problems[i]))
