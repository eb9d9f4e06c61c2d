"""What row groups unfold to, from the headers of their pages, before one is decoded.

A page says how many bytes it has when it is decompressed, and how many values. Arrow allocates what
it says, so hostile pages must be refused before Arrow sees them. Where pages lie is in the footer;
pyarrow's accessors of columns cannot be asked (see `footer`), so footer and headers are followed
here. Both are structs of Thrift, of which nearly everything is skipped.

Cost: about 0.1 microseconds per column of a row group and per page.

Source: parquet.thrift of apache/parquet-format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.reading.records import DamagedFileError
from streampack.sources.parquet.thrift import (
    I32,
    I64,
    LIST,
    STRUCT,
    Index,
    after,
    integer,
    list_of,
    next_field,
)
from streampack.storage.decompression import map_file

_ID_BYTES = 4
_MOST_UNFOLDED = 16  # times what is stored: two bits per id, and more than text is compressed
_BATCHES = 2  # that are in memory: one, and the one before
_MANY = 1 << 40  # rows
_PLAIN_DICTIONARY, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 2, 7, 8


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file whose row groups are checked before they are decoded.

    Attributes:
        file: as pyarrow has it.
        data: (B,) uint8, its bytes.
        columns: those that are read.
        leaves: (L,) numbers of the leaf columns in them,
        repeated: (L,) True for those in lists,
        texts: (L,) True for those of texts.
        chunks: (G, C, 2) int64, where each leaf column of each row group begins and its bytes.
    """

    file: pq.ParquetFile
    data: NDArray[np.uint8]
    columns: list[str]
    leaves: NDArray[np.int64]
    repeated: NDArray[np.bool_]
    texts: NDArray[np.bool_]
    chunks: NDArray[np.int64]

    @classmethod
    def of(cls, file: pq.ParquetFile, path: Path, columns: list[str]) -> CheckedFile:
        """The file at a path, of which these columns are read.

        Raises:
            DamagedFileError: the footer cannot be followed.
        """
        data = map_file(path)
        every = [file.schema.column(i) for i in range(len(file.schema.names))]
        names = tuple(f"{name}." for name in columns)
        leaves = [i for i, leaf in enumerate(every) if f"{leaf.path}.".startswith(names)]
        chunks = np.zeros((file.metadata.num_row_groups, len(every), 2), dtype=np.int64)
        size = int(data[-8:-4].view(np.uint32)[0])
        if size > len(data) - 12 or not _find_chunks(data, len(data) - 8 - size, chunks):
            raise DamagedFileError("its footer is broken")
        return cls(
            file,
            data,
            columns,
            np.array(leaves, dtype=np.int64),
            np.array([every[i].max_repetition_level > 0 for i in leaves], dtype=np.bool_),
            np.array([every[i].physical_type == "BYTE_ARRAY" for i in leaves], dtype=np.bool_),
            chunks,
        )

    def batches(self, group: int, rows: int, limit_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows of a row group, so many at a time, or fewer where they may be long.

        Args:
            group: its number.
            rows: how many to decode at once, at most.
            limit_bytes: what a page and a row may unfold to, and a batch with all its copies.

        Raises:
            DamagedFileError: a page or a row unfolds to more, and to a multiple of what is stored
                that no documents have.
        """
        most = self._most_rows(group, limit_bytes)
        yield from self.file.iter_batches(min(rows, most), [group], self.columns, use_threads=False)

    def _most_rows(self, group: int, limit_bytes: int) -> int:
        """How many rows can be decoded at once."""
        rows = max(int(self.file.metadata.row_group(group).num_rows), 1)
        most = rows
        unfolded = stored = 0
        for leaf, repeated, text in zip(self.leaves, self.repeated, self.texts, strict=True):
            start, size = self.chunks[group, leaf]
            page, num_bytes, values, fits = _scan_pages(
                self.data, start, size, limit_bytes, limit_bytes // _BATCHES
            )
            if page:
                raise _too_large(f"a page of row group {group}", page, limit_bytes)
            if text:
                most = min(most, max(1, fits // max(1, values // rows)))
            if repeated:
                if values * _ID_BYTES > rows * limit_bytes:
                    size = values * _ID_BYTES // rows
                    raise _too_large(f"a row of row group {group}", size, limit_bytes)
                unfolded, stored = unfolded + values * _ID_BYTES, stored + num_bytes
        if unfolded > max(limit_bytes, _MOST_UNFOLDED * stored):
            raise _too_large(f"the lists of row group {group}", unfolded, limit_bytes)
        return most


def _too_large(what: str, num_bytes: int, limit_bytes: int) -> DamagedFileError:
    limit = f"max_document_bytes={limit_bytes} of Reading"
    return DamagedFileError(f"{what} would unfold to {num_bytes} bytes, more than {limit}")


@kernel
def _find_chunks(data: NDArray[np.uint8], at: Index, chunks: NDArray[np.int64]) -> bool:
    """Fill `chunks` from the footer at a byte; False if it does not hold as many."""
    end = len(data) - 8
    group = 0
    number = np.int64(0)
    while True:
        kind, number, at = next_field(data, at, end, number)
        if kind <= 0:
            return kind == 0 and group == len(chunks)
        if number != 4 or kind != LIST:
            at = after(data, at, end, kind)
            continue
        groups, kind, at = list_of(data, at, end)
        if kind != STRUCT or groups != len(chunks):
            return False
        for group in range(groups):
            at = _group_chunks(data, at, end, chunks[group])
            if at < 0:
                return False
        group = groups


@kernel
def _group_chunks(
    data: NDArray[np.uint8], at: Index, end: Index, chunks: NDArray[np.int64]
) -> Index:
    """Fill the (C, 2) chunks of a row group; the place after it, or -1."""
    number = np.int64(0)
    while True:
        kind, number, at = next_field(data, at, end, number)
        if kind <= 0:
            return at if kind == 0 else np.int64(-1)
        if number != 1 or kind != LIST:
            at = after(data, at, end, kind)
            continue
        columns, kind, at = list_of(data, at, end)
        if kind != STRUCT or columns != len(chunks):
            return np.int64(-1)
        for column in range(columns):
            inner = np.int64(0)
            while True:
                kind, inner, at = next_field(data, at, end, inner)
                if kind <= 0:
                    break
                if inner == 3 and kind == STRUCT:
                    at = _chunk(data, at, end, chunks[column])
                else:
                    at = after(data, at, end, kind)


@kernel
def _chunk(data: NDArray[np.uint8], at: Index, end: Index, chunk: NDArray[np.int64]) -> Index:
    """Fill in where a column chunk begins and its bytes; the place after its description, or -1."""
    number = np.int64(0)
    first_page = np.int64(0)
    dictionary = np.int64(0)
    while True:
        kind, number, at = next_field(data, at, end, number)
        if kind <= 0:
            chunk[0] = dictionary if 0 < dictionary < first_page else first_page
            return at if kind == 0 else np.int64(-1)
        if kind == I64 and (number == 7 or number == 9 or number == 11):
            value, at = integer(data, at, end, kind)
            if number == 7:
                chunk[1] = value
            elif number == 9:
                first_page = value
            else:
                dictionary = value
        else:
            at = after(data, at, end, kind)


@kernel
def _scan_pages(
    data: NDArray[np.uint8], at: Index, size: Index, limit: Index, room: Index
) -> tuple[Index, Index, Index, Index]:
    """Of a column chunk at a byte, from the headers of its pages.

    Returns the bytes of a page that is above the limit and unfolds to a multiple of what is stored
    that no documents have, or 0; those of all its pages together, decompressed; its values; and how
    many of these, if they are texts, stay below the limit together: about, or one.

    A plain page holds what it holds. A text that refers to a dictionary, or to the text before it
    (`DELTA_BYTE_ARRAY`), may be as long as the page of either. What follows a damaged page is
    not counted, because nobody reads it.
    """
    worst, total, values = np.int64(0), np.int64(0), np.int64(0)
    fits = np.int64(_MANY)
    if at < 0 or size < 0 or at > len(data) or size > len(data) - at:
        return worst, total, values, fits
    end = at + size
    dictionary = np.int64(0)
    while at < end:
        page, stored, count, encoding, at = _page(data, at, end)
        if at < 0 or stored < 0:
            break
        if page > limit and page > _MOST_UNFOLDED * stored:
            worst = max(worst, page)
        total += max(page, np.int64(0))
        if encoding < 0:
            dictionary = max(dictionary, page)
        elif count > 0:
            values += count
            if encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
                fits = min(fits, room // max(dictionary, np.int64(1)))
            elif encoding == _DELTA_BYTE_ARRAY:
                fits = min(fits, room // max(page, np.int64(1)))
            else:  # so many reach into two pages that are not full as well
                fits = min(fits, count * max(room // max(page, np.int64(1)) - 2, np.int64(1)))
        if stored > end - at:
            break
        at += stored
    return worst, total, values, max(fits, np.int64(1))


@kernel
def _page(
    data: NDArray[np.uint8], at: Index, end: Index
) -> tuple[Index, Index, Index, Index, Index]:
    """A page's bytes, those that are stored, its values and encoding, and where it begins, or -1.

    Pages of dictionaries have encoding -1.
    """
    size, stored = np.int64(0), np.int64(-1)
    count, encoding = np.int64(0), np.int64(-1)
    number = np.int64(0)
    while True:
        kind, number, at = next_field(data, at, end, number)
        if kind <= 0:
            return size, stored, count, encoding, (at if kind == 0 else np.int64(-1))
        if kind == I32 and number == 2:
            size, at = integer(data, at, end, kind)
        elif kind == I32 and number == 3:
            stored, at = integer(data, at, end, kind)
        elif kind == STRUCT and (number == 5 or number == 8):  # of either version
            encoding_number = 2 if number == 5 else 4
            inner = np.int64(0)
            encoding = np.int64(0)
            while True:
                kind, inner, at = next_field(data, at, end, inner)
                if kind <= 0:
                    break
                if kind == I32 and inner == 1:
                    count, at = integer(data, at, end, kind)
                elif kind == I32 and inner == encoding_number:
                    encoding, at = integer(data, at, end, kind)
                else:
                    at = after(data, at, end, kind)
        else:
            at = after(data, at, end, kind)
