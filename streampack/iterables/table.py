"""Tables in memory, datasets of Hugging Face read by columns, and token ids in arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.arguments import explained
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.files.file_source import ShardBlock
from streampack.formats.rows.columns import kinds_of, row_sizes
from streampack.formats.rows.source import RowFiles
from streampack.sources.arguments import NamedFields
from streampack.sources.indexed import SHARD_ITEMS, InMemory
from streampack.sources.manifest import Manifest
from streampack.sources.reading import ReadOptions
from streampack.sources.recognise import arrow_table

if TYPE_CHECKING:
    from typing_extensions import Unpack

_BATCH_ROWS = 1024  # rows taken from the table at a time
_BATCH_BYTES = 256 << 20  # limit of a batch, as offsets of Arrow may have 32 bits


class Table(InMemory, RowFiles):
    """Documents in a column of a table, cut at any row among any number of lanes.

    Columns are read in place, without an object per row of token ids. Shuffling treats every 8,192
    rows as a shard. `Documents.origin` holds the index of the shard and of the row in it.

    Args:
        data: a table of pyarrow, pandas or polars, or a `datasets.Dataset`, which may have been
            shuffled or selected from; transforms set on it are not applied.
        text: as for `Parquet`.
        tokens: as for `Parquet`.
        loss_mask: as for `Parquet`.
        reading: limits of blocks and open shards.

    Raises:
        ConfigError: the arguments exclude each other, or do not fit the columns.
    """

    words = ("row", "table")
    listing_fields = ()
    listing = ""

    @explained
    def __init__(
        self,
        data: Any,
        *,
        reading: ReadOptions | None = None,
        **named: Unpack[NamedFields],
    ) -> None:
        super().__init__((), reading=reading, **named)
        # True for a dataset, which can return tables for slices.
        indexed = hasattr(data, "with_format")
        self.data = data.with_format("arrow") if indexed else arrow_table(data)

    def __repr__(self) -> str:
        return f"Table({len(self.data):,} rows, {self.fields.in_words})"

    def list_shards(self) -> Manifest:
        count = len(self.data)
        kinds = kinds_of(self._rows(0, 1).schema)
        self.fields = self.fields.found_in(kinds, f"The {self.words[1]}")
        first, _ = self._batch(0, count)
        narrow = self._check_schema(f"The {self.words[1]}", first.schema)
        sizes = self._row_sizes(first)
        mean = float(sizes.mean()) if len(sizes) else 0.0
        details = {"dtype": self._dtype_name(narrow)}
        return self.numbered(count, mean if self.fields.tokenized else mean / 4, details)

    def _dtype_name(self, narrow: bool) -> str:
        return ("uint16" if narrow else "uint32") if self.fields.tokenized else "text"

    def blocks(self, shard: int, low: int, high: int, position: int | None) -> Iterator[ShardBlock]:
        """Yield blocks of rows, which weigh one each."""
        row, base = low if position is None else position, shard * SHARD_ITEMS
        schema, dtype = self._batch(0, 1)[0].schema, self.manifest.details["dtype"]
        make = self._block_maker(shard, schema, dtype)
        while row < high:
            batch, stop = self._batch(base + row, base + high)
            yield from make(batch, np.arange(row, row + batch.num_rows))
            row = stop - base

    def _row_sizes(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the (N,) sizes of rows: bytes of text, or ids."""
        if (reader := self.fields.records) is not None:
            width = 4 if self.fields.tokenized else 1
            sizes = [reader.size(row, self.fields.tokenized) // width for row in batch.to_pylist()]
            return np.array(sizes, dtype=np.int64)
        return row_sizes(batch.column(self.column))

    def _rows(self, low: int, high: int) -> pa.Table:
        data = self.data
        return data.slice(low, high - low) if isinstance(data, pa.Table) else data[low:high]

    def _batch(self, first: int, most: int) -> tuple[pa.RecordBatch, int]:
        """Return rows from `first` on as one batch, and the row after them, `most` at most.

        Batches end at the same rows of the table wherever the first one begins.
        """
        low = first - first % _BATCH_ROWS
        high = min(low + _BATCH_ROWS, len(self.data))
        rows = self._rows(low, high)
        wanted = self._columns(rows.schema)
        columns = [name for name in rows.column_names if name in wanted]
        chosen = rows.select(columns) if len(set(columns)) == len(columns) and columns else rows
        begin, end = low, high
        while end - begin > 1 and chosen.slice(begin - low, end - begin).nbytes > _BATCH_BYTES:
            middle = (begin + end) // 2
            begin, end = (begin, middle) if first < middle else (middle, end)
        end = min(end, most)
        taken = chosen.slice(first - low, max(end - first, 0))
        try:
            taken = taken.combine_chunks()
        except pa.ArrowInvalid:  # dictionaries of chunks that have too many values together
            end = first + taken.to_batches()[0].num_rows
        batches = taken.to_batches()
        batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=chosen.schema)
        return batch, end


def table_of_ragged(tokens: Any, offsets: Any) -> pa.Table:
    """Make a table with the column "tokens".

    Args:
        tokens: (T,) integers, of numpy or torch.
        offsets: (N + 1,) integers; document i is ``tokens[offsets[i]:offsets[i + 1]]``.

    Raises:
        ConfigError: the arrays do not hold integers, or the offsets do not fit the tokens.
    """
    try:
        ids, bounds = (np.asarray(part) for part in (tokens, offsets))
    except (TypeError, ValueError, RuntimeError) as error:  # of bfloat16 or another device's tensor
        raise ConfigError(
            f"The source is a pair of arrays that numpy does not take ({error}).",
            "Pass the ids as the tokenizer gave them; floats have rounded some of them.",
            setting="data",
        ) from error
    return pa.table({"tokens": _lists(ids, _checked(ids, bounds))})


def table_of_documents(documents: Documents) -> pa.Table:
    """Make a table with the columns "tokens" and "loss_mask" and a column per field."""
    low, high = int(documents.offsets[0]), int(documents.offsets[-1])  # a slice begins after 0
    offsets = _checked(documents.tokens[low:high], documents.offsets - low)
    per_token = {"tokens": documents.tokens, **documents.token_fields}
    if documents.loss_mask is not None:
        per_token["loss_mask"] = documents.loss_mask
    columns = {name: _lists(values[low:high], offsets) for name, values in per_token.items()}
    columns |= {name: pa.array(values) for name, values in documents.document_fields.items()}
    return pa.table(columns)


def _checked(tokens: NDArray[Any], offsets: NDArray[Any]) -> NDArray[np.int64]:
    """Check that the offsets cover all tokens, and return them."""
    integers = tokens.dtype.kind in "iu" and offsets.dtype.kind in "iu"
    if integers and len(offsets):
        bounds = offsets.astype(np.int64)
        if bounds[0] == 0 and bounds[-1] == len(tokens) and bool((np.diff(bounds) >= 0).all()):
            return bounds
    raise ConfigError(
        f"The source is a pair of arrays, {tokens.dtype} {tokens.shape} and {offsets.dtype} "
        f"{offsets.shape}, and the second does not hold the offsets of the first.",
        "Correct them; if each array is one document, pass a list of both.",
        setting="data",
    )


def _lists(values: NDArray[Any], offsets: NDArray[np.int64]) -> pa.Array:
    inner = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        inner = pa.FixedSizeListArray.from_arrays(inner, size)
    return pa.LargeListArray.from_arrays(pa.array(offsets), inner)


def of_arrays(source: Any, **options: Any) -> Table:
    """Return the source of `Documents`, or of a pair of arrays (tokens, offsets)."""
    if isinstance(source, Documents):
        mask = [] if source.loss_mask is None else "loss_mask"
        return Table(table_of_documents(source), tokens="tokens", loss_mask=mask, **options)
    return Table(table_of_ragged(*source), tokens="tokens", **options)
