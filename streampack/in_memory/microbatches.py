"""The plan of each rank's micro-batches, and the batches made from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words, whole_number
from streampack.batch import PackedBatch
from streampack.batch.kinds import kind_of
from streampack.documents.blocks import Documents, make_origin, offsets_of
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.fields.casting import cast_fields
from streampack.fields.columns import FieldColumns
from streampack.fields.declared import declared_fields
from streampack.forecasts.origins import Provenance
from streampack.packing.plan import Plan
from streampack.sources.fields import RecordSchema
from streampack.sources.items import item_block
from streampack.window.buffer import TokenBuffer
from streampack.window.empty_rows import empty_rows
from streampack.window.gather import RowFormat, RowStage, gather_rows
from streampack.window.packed_rows import PackedRows
from streampack.window.planned import PlannedWindow

_IDS, _MASK = "ids", "loss_mask"  # names in the records that documents are made from


@dataclass(frozen=True, slots=True)
class Given:
    """The caller's columns by name, indexed by document and checked when they are read."""

    columns: Mapping[str, Any]
    types: FieldSpec

    @classmethod
    def of(
        cls,
        count: int,
        documents: NDArray[np.int64],
        ids: Any,
        loss_mask: Any,
        token_fields: Mapping[str, Any] | None,
        document_fields: Mapping[str, Any] | None,
    ) -> Given:
        """Collect the arguments of `MicrobatchPlan.batches`.

        Args:
            count: number of documents in the plan.
            documents: (D,) indices of the rank's documents.

        Raises:
            ConfigError: fields are not a mapping, a field has a reserved name, or a column has more
                or fewer documents than the plan.
        """
        for name, given in (("token_fields", token_fields), ("document_fields", document_fields)):
            if not (given is None or isinstance(given, Mapping)):
                raise ConfigError(
                    f"{name} must be a mapping from names to values, got {type_in_words(given)}.",
                    f'Pass {name}={{"name": values}} with the values of each document.',
                    setting=name,
                )
        columns = {**(token_fields or {}), **(document_fields or {})}
        types = declared_fields(
            {
                name: _declared(name, values, documents)
                for name, values in (token_fields or {}).items()
            },
            {
                name: _dtype(name, values, documents)
                for name, values in (document_fields or {}).items()
            },
        )
        for taken in {_IDS, _MASK} & {*columns}:
            raise ConfigError(
                f'"{taken}" is reserved for an argument of the same name, got a field "{taken}".',
                "Rename the field.",
                setting="token_fields" if taken in (token_fields or {}) else "document_fields",
            )
        columns[_IDS] = ids
        if loss_mask is not None:
            columns[_MASK] = loss_mask
        for name, values in columns.items():
            held = len(values) if isinstance(values, list | tuple) else count
            held = (getattr(values, "shape", None) or (held,))[0]  # for arrays and tensors
            if held != count:
                raise ConfigError(
                    f'"{name}" must have an entry for each of the {count} planned documents, got '
                    f"{held}.",
                    "Pass the entries in the order of the packed lengths, or a dict by index.",
                    setting=name,
                )
        return cls(columns, types)

    def read(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64]) -> Documents:
        """Read documents and check them.

        Args:
            numbers: (D,) indices of the documents.
            lengths: (D,) planned lengths in tokens.

        Raises:
            ConfigError: a document, its mask or a field is missing, malformed or of another length.
        """
        records = [
            {name: _plain(_at(values, number, name)) for name, values in self.columns.items()}
            for number in numbers.tolist()
        ]
        fields = RecordSchema(True, _IDS, (_MASK,) if _MASK in self.columns else ())
        block, problems = item_block(records, fields, make_origin(0, numbers), self.types)
        assert isinstance(block, Documents)
        if not problems:
            block, problems = cast_fields(block, self.types)
            for i in np.flatnonzero(block.lengths != lengths).tolist():
                problems[i] = f"has {block.lengths[i]} ids, but {lengths[i]} were planned"
        refuse_faults(
            problems,
            numbers,
            "Pass the documents and fields in the order of the lengths that were planned.",
        )
        return block


def refuse_faults(faults: Mapping[int, str], numbers: NDArray[np.int64], remedy: str) -> None:
    """Raise `ConfigError` for the first of the faults, which are by position in `numbers`."""
    for i, fault in faults.items():
        raise ConfigError(
            f"Document {numbers[i]} {fault}.", remedy, document=f"document {numbers[i]}"
        )


def _at(values: Any, number: int, name: str) -> Any:
    try:
        return values[number]
    except (TypeError, LookupError) as error:
        raise ConfigError(
            f'"{name}" must have an entry for document {number}, got {type_in_words(values)} '
            "without one.",
            "Pass a list, array, tensor or dict with an entry for each document of the rank.",
            setting=name,
        ) from error


def _plain(value: Any) -> Any:
    """Return a tensor without dimensions as a number, and other values unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _declared(name: str, values: Any, documents: NDArray[np.int64]) -> Any:
    """Return a token field's dtype, with the shape of its values if it has several per token."""
    dtype = _dtype(name, values, documents)
    number = _example(values, documents)
    try:
        shape = () if number is None else np.shape(_at(values, number, name))
    except (TypeError, ValueError, RuntimeError):
        return dtype  # `read` raises an error that names the document
    return (dtype, tuple(shape[1:])) if len(shape) > 1 else dtype


def _example(values: Any, documents: NDArray[np.int64]) -> int | None:
    """Return the rank's first document, or any in a dict; None if there is none."""
    if len(documents):
        return int(documents[0])
    return next(iter(values), None) if isinstance(values, Mapping) else None


def _dtype(name: str, values: Any, documents: NDArray[np.int64]) -> Any:
    """Return the dtype of a field, inferred from the rank's first document."""
    number = _example(values, documents)
    if number is None:
        return np.float32
    first = _at(values, number, name)
    try:
        kind = np.asarray(first).dtype
    except (TypeError, ValueError, RuntimeError):
        return np.float32  # `read` raises an error that names the document
    if not hasattr(first, "dtype"):  # Python numbers; numpy and torch have dtypes
        return {"f": np.float32, "i": np.int64}.get(kind.kind, kind)
    return kind


@dataclass(frozen=True, slots=True, eq=False)
class MicrobatchPlan:
    """Assignment of documents to the micro-batches of each rank, made by `pack`.

    Attributes:
        seq_len: slots of a row; a micro-batch is one row.
        ranks: number of data-parallel ranks.
        microbatches: number of micro-batches per rank.
        align: every document takes up a multiple of this number of slots.
        lengths: (N,) int64 lengths of the documents in tokens.
        document_costs: (N,) float64 costs of the documents.
    """

    seq_len: int
    ranks: int
    microbatches: int
    align: int
    lengths: NDArray[np.int64]
    document_costs: NDArray[np.float64]
    _offsets: NDArray[np.int64]
    _documents: NDArray[np.int64]

    def documents(self, rank: int, microbatch: int | None = None) -> NDArray[np.int64]:
        """Return the indices of the documents in a rank's micro-batch, (D,) int64.

        Args:
            rank: index of the rank.
            microbatch: index of the micro-batch; None returns all documents of the rank.

        Raises:
            ConfigError: the rank or the micro-batch does not exist.
        """
        rank = whole_number("rank", rank, least=0, most=self.ranks - 1)
        first, last = rank * self.microbatches, (rank + 1) * self.microbatches
        if microbatch is not None:
            most = self.microbatches - 1
            first += whole_number("microbatch", microbatch, least=0, most=most)
            last = first + 1
        return self._documents[self._offsets[first] : self._offsets[last]]

    @property
    def tokens(self) -> NDArray[np.int64]:
        """(ranks, microbatches) int64, tokens of each micro-batch; for trees, slots."""
        return np.asarray(self._sums(self._slots()), dtype=np.int64)

    @property
    def costs(self) -> NDArray[np.float64]:
        """(ranks, microbatches) float64, cost of each micro-batch."""
        return np.asarray(self._sums(self.document_costs), dtype=np.float64)

    @property
    def imbalance(self) -> float:
        """Total time relative to perfectly equal micro-batches, if ranks wait after each."""
        costs = self.costs
        return float(costs.max(axis=0).sum() / costs.mean(axis=0).sum()) if costs.any() else 1.0

    @property
    def padding_ratio(self) -> float:
        """Share of slots without a token, in rows of `seq_len`."""
        slots = self.ranks * self.microbatches * self.seq_len
        return 1 - int(self._slots().sum()) / slots if slots else 0.0

    def _slots(self) -> NDArray[np.int64]:
        """Return the slots that each document takes, (N,)."""
        return self.lengths

    def _aligned_slots(self) -> NDArray[np.int64]:
        """Return the slots (N,) int64 of documents with the padding up to a multiple of `align`."""
        return -(-self.lengths // self.align) * self.align

    def _seq_lens(self, pad_to: int | None) -> NDArray[np.int64]:
        """Return the slots (microbatches,) int64 of a row, the same on all ranks."""
        if pad_to is None:
            return np.full(self.microbatches, self.seq_len)
        step = int(np.lcm(pad_to, self.align))
        longest = self._sums(self._aligned_slots()).max(axis=0)
        return np.asarray(np.minimum(np.maximum(-(-longest // step), 1) * step, self.seq_len))

    def _format(self, pad_id: int, fields: FieldSpec) -> RowFormat:
        stages: list[RowStage] = [Provenance()]
        if fields:
            stages.append(FieldColumns(fields))
        return RowFormat(pad_id=pad_id, eos_id=-1, stages=tuple(stages))

    def _block(self, block: Documents, numbers: NDArray[np.int64]) -> Documents:
        """Return the documents of a row, with indices `numbers` (D,), in the form of the plan."""
        return block

    def _sums(self, values: NDArray[Any]) -> NDArray[Any]:
        sums = np.zeros(len(self._offsets) - 1, dtype=values.dtype)
        np.add.at(sums, self._row, values[self._documents])
        return sums.reshape(self.ranks, self.microbatches)

    @property
    def _row(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self._offsets) - 1), np.diff(self._offsets))

    def batches(
        self,
        ids: Any,
        *,
        rank: int | None = None,
        loss_mask: Any = None,
        token_fields: Mapping[str, Any] | None = None,
        document_fields: Mapping[str, Any] | None = None,
        pad_id: int = 0,
        pad_to: int | None = None,
    ) -> Iterator[PackedBatch]:
        """Make a rank's micro-batches, one at a time.

        ``batch.provenance["index"]`` is the index of each piece's document.

        Args:
            ids: token ids; ``ids[i]`` is a list, array or tensor of ``lengths[i]`` ids. Only the
                rank's documents are read, so a dict with these is enough.
            rank: index of the rank. None is allowed if there is one rank.
            loss_mask: like `ids`, true where a token counts in the loss. None means everywhere.
            token_fields: fields by name, each like `ids` with a number per token, or an array of
                the same shape per token, ``(lengths[i], *shape)``. See `PackedBatch.fields`.
            document_fields: fields by name, each with a number per document. A field keeps the
                dtype of its numpy arrays or tensors; lists become float32 or int64.
            pad_id: token id on padding.
            pad_to: shorten the rows of a micro-batch, on all ranks alike, to the next multiple of
                this after the last document of the longest of them. None pads to `seq_len`. A
                larger multiple gives fewer distinct shapes and more padding.

        Raises:
            ConfigError: a document, its mask or a field is missing, malformed or of another length;
                or `rank` is missing and there are several ranks.
        """
        if rank is None and self.ranks > 1:
            raise ConfigError(
                f"A plan for {self.ranks} ranks needs rank=, got None.",
                "Pass rank=torch.distributed.get_rank().",
                setting="rank",
            )
        rank = rank or 0
        documents = self.documents(rank)
        columns = Given.of(
            len(self.lengths), documents, ids, loss_mask, token_fields, document_fields
        )
        pad_id = whole_number("pad_id", pad_id, least=0, most=(1 << 32) - 1)
        if pad_to is not None:
            pad_to = whole_number("pad_to", pad_to)
        layout = self._format(pad_id, columns.types)
        batches = (
            self._rows(self.documents(rank, number), columns, layout, width)
            for number, width in enumerate(self._seq_lens(pad_to).tolist())
        )
        return (kind_of(rows)(rows, step=number) for number, rows in enumerate(batches))

    def _rows(
        self, numbers: NDArray[np.int64], given: Given, layout: RowFormat, width: int
    ) -> PackedRows:
        if not len(numbers):
            return empty_rows(layout, 1, width)
        block = self._block(given.read(numbers, self.lengths[numbers]), numbers)
        return _packed_row(block, -block.lengths % self.align, width, layout)


def _packed_row(
    documents: Documents, gaps: NDArray[np.int64], width: int, layout: RowFormat
) -> PackedRows:
    """Make a row of consecutive documents, each followed by `gaps`, (D,), slots of padding."""
    count, lengths = len(documents), documents.lengths
    buffer = TokenBuffer(int((lengths + gaps).sum()))
    buffer.append(documents, 0, lengths, np.arange(len(lengths)), 0)
    plan = Plan.plain(
        np.array([0, count]), width, np.arange(count), np.zeros(count, dtype=np.int64),
        lengths, np.zeros(count, dtype=np.int64),
    )  # fmt: skip
    planned = PlannedWindow(
        plan=replace(plan, pad_after=gaps),
        rows=np.zeros(1, dtype=np.int64),
        batches=np.array([0, 1]),
        position=offsets_of(lengths),
        lengths=lengths,
        rows_per_batch=np.ones(1, dtype=np.int64),
    )
    (rows,) = gather_rows(planned, buffer, layout)
    return rows
