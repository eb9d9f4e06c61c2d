"""Groups in a stream: documents that belong together become one document of the window.

What the window, packers and states see is a group's length; `split_groups` gives its documents back
when rows are gathered. A group of which a document is missing, since it was empty or a filter
refused it, is left out whole.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import GROUP, Documents, joined_groups
from streampack.errors import ConfigError
from streampack.reading.grouped import run_starts


def numbered(documents: Documents, field: str) -> Documents:
    """The documents with the numbers of their groups, which a reader gave, or the source itself."""
    if GROUP in documents.document_fields or not len(documents):
        return documents
    if field not in documents.document_fields:
        raise ConfigError(
            f'group is "{field}", and the documents have no field of that name.',
            "Nothing says which documents belong together.",
            "Name a document field of whole numbers that the records have.",
        )
    starts = run_starts(documents.document_fields[field])
    if not np.isin(run_starts(documents.origin), starts).all():  # the reader does not hold them
        raise ConfigError(
            f'Two records have the same "{field}", in which this source numbers the documents of a '
            "record.",
            "Where they would be parted is not known.",
            "Give the records a field of another name, and pass that as group=.",
        )
    number = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(documents)))
    return with_numbers(documents, number)


def with_numbers(documents: Documents, number: NDArray[np.int64]) -> Documents:
    """The documents (N,) with these numbers of their groups."""
    return replace(documents, document_fields={**documents.document_fields, GROUP: number})


def group_sizes(documents: Documents) -> NDArray[np.int64]:
    """(G,) int64: how many documents each group has, by its number."""
    return np.bincount(_numbers(documents))


def whole_groups(documents: Documents, sizes: NDArray[np.int64]) -> Documents:
    """The documents of the groups that have all of their `sizes` (G,) documents."""
    number = _numbers(documents)
    whole = np.bincount(number, minlength=len(sizes)) == sizes
    return documents if whole.all() else documents.take(np.flatnonzero(whole[number]))


def joined(documents: Documents, number: NDArray[np.int64] | None) -> Documents:
    """A block of groups, from documents (N,) with the numbers of theirs."""
    if not len(documents) or number is None:
        return documents
    offsets = np.append(run_starts(number), len(documents))
    return joined_groups(documents, offsets)


def _numbers(documents: Documents) -> NDArray[np.int64]:
    if GROUP not in documents.document_fields:
        return np.zeros(0, dtype=np.int64)  # of no documents
    return documents.document_fields[GROUP]
