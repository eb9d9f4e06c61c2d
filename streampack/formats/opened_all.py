"""Listings that open all files, for runs with a state from before listings opened a sample.

Files weighed the bytes of their rows then, and all documents had one dtype.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.file_info import FileInfo
from streampack.files.file_source import FileSource
from streampack.files.integer_arrays import INTEGER_DTYPES
from streampack.formats.arrow.source import Arrow
from streampack.formats.megatron import Header, MegatronIndexed
from streampack.formats.parquet.footer import Footer
from streampack.formats.parquet.source import Parquet

MOST_OPENED = 8192


class _OpensAll(FileSource):
    listing = ""

    @property
    def _kind(self) -> str:
        return type(self).__bases__[-1].__name__

    def _sampled(self, infos: Sequence[FileInfo]) -> Sequence[FileInfo]:
        return infos[:: -(-len(infos) // MOST_OPENED)]


class _OpensAllFooters(_OpensAll):
    def _weighed(
        self, infos: Sequence[FileInfo], seen: Sequence[FileInfo], footers: Sequence[Footer]
    ) -> tuple[NDArray[np.int64] | None, int]:
        """Weigh files by their rows' bytes; one with a broken footer weighs a byte.

        So the lane that reads it gets the error.
        """
        encoded = np.array([footer.num_bytes for footer in footers], dtype=np.int64)
        estimate = int(encoded.sum()) * len(infos) // len(seen)
        if len(seen) < len(infos):
            return None, estimate
        empty = [footer.rows == 0 for footer in footers]
        return np.where(empty, 0, np.maximum(encoded, 1)), estimate

    def _dtype_name(self, narrow: bool) -> str:
        return ("uint16" if narrow else "uint32") if self.fields.tokenized else "text"


class _Parquet(_OpensAllFooters, Parquet):
    pass


class _Arrow(_OpensAllFooters, Arrow):
    pass


class _Megatron(_OpensAll, MegatronIndexed):
    def _least(self, indexes: Sequence[FileInfo], headers: Sequence[Header]) -> NDArray[Any]:
        return np.array([min(header.sequences, 1) for header in headers], dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        headers: list[Header] = self.manifest.details["headers"]
        described = super().describe()
        del described["index_bytes"]
        kinds = sorted({INTEGER_DTYPES[header.kind].name for header in headers})
        documents = sum(header.documents for header in headers)
        return {**described, "dtypes": kinds, "documents": documents}


_CLASSES: dict[type, type[_OpensAll]] = {
    Parquet: _Parquet,
    Arrow: _Arrow,
    MegatronIndexed: _Megatron,
}


def opened_all(source: FileSource) -> FileSource:
    """Return a source with such a listing; a class that is not in the package stays as it is."""
    if type(source) not in _CLASSES:
        return source
    copied = copy.copy(source)
    copied.__class__ = _CLASSES[type(source)]
    copied._manifest, copied._lines = None, {}
    return copied
