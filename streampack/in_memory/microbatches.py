"""The documents of each rank's micro-batches, and the batches that they make."""

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
from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.packing.plan import Plan
from streampack.sources.fields import Fields
from streampack.sources.iterable.items import item_block
from streampack.window.buffer import TokenBuffer
from streampack.window.empty_rows import empty_rows
from streampack.window.field_columns import FieldColumns
from streampack.window.gather import RowFormat, RowStage, gather_rows
from streampack.window.packed_rows import PackedRows
from streampack.window.planned import PlannedWindow
from streampack.window.provenance import Provenance

_IDS, _MASK = "ids", "loss_mask"  # in the records that documents are made of


@dataclass(frozen=True, slots=True)
class Given:
    """By name what documents have, looked up by their numbers; checked when it is read."""

    columns: Mapping[str, Any]
    types: FieldTypes

    @classmethod
    def of(
        cls,
        count: int,
        own: NDArray[np.int64],
        ids: Any,
        loss_mask: Any,
        token_fields: Mapping[str, Any] | None,
        document_fields: Mapping[str, Any] | None,
    ) -> Given:
        """From the arguments of `MicrobatchPlan.batches`; `own` (D,) of `count` are the rank's.

        Raises:
            ConfigError: fields are no mapping, one has a name that is taken, or something is there
                for more or fewer documents than were planned.
        """
        for name, given in (("token_fields", token_fields), ("document_fields", document_fields)):
            if not (given is None or isinstance(given, Mapping)):
                raise ConfigError(
                    f"{name} is {type_in_words(given)}.",
                    f'Pass {name}={{"name": values}}, with what each document has.',
                    setting=name,
                )
        columns = {**(token_fields or {}), **(document_fields or {})}
        types = FieldTypes.of(
            {name: _dtype(name, values, own) for name, values in (token_fields or {}).items()},
            {name: _dtype(name, values, own) for name, values in (document_fields or {}).items()},
        )
        for taken in {_IDS, _MASK} & {*columns}:
            raise ConfigError(
                f'A field is named "{taken}".',
                "Rename it.",
                setting="token_fields" if taken in (token_fields or {}) else "document_fields",
            )
        columns[_IDS] = ids
        if loss_mask is not None:
            columns[_MASK] = loss_mask
        for name, values in columns.items():
            held = len(values) if isinstance(values, list | tuple) else count
            held = (getattr(values, "shape", None) or (held,))[0]  # of arrays and tensors
            if held != count:
                raise ConfigError(
                    f'"{name}" has {held} documents, and {count} were planned.',
                    "Pass as many as lengths were packed, in their order, or a dict by number.",
                    setting=name,
                )
        return cls(columns, types)

    def read(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64]) -> Documents:
        """The documents with these numbers (D,), which were planned with these `lengths` (D,).

        Raises:
            ConfigError: a document, or what belongs to it, is not what it should be.
        """
        records = [
            {name: _plain(_at(values, number, name)) for name, values in self.columns.items()}
            for number in numbers.tolist()
        ]
        fields = Fields(True, _IDS, (_MASK,) if _MASK in self.columns else ())
        block, problems = item_block(records, fields, make_origin(0, numbers), self.types)
        assert isinstance(block, Documents)
        if not problems:
            block, problems = self.types.cast(block)
            for i in np.flatnonzero(block.lengths != lengths).tolist():
                problems[i] = f"has {block.lengths[i]} ids, and {lengths[i]} when it was planned"
        for i, what in problems.items():
            raise ConfigError(
                f"Document {numbers[i]} {what}.",
                "Pass the documents and fields in the order of the lengths that were planned.",
                document=f"document {numbers[i]}",
            )
        return block


def _at(values: Any, number: int, name: str) -> Any:
    try:
        return values[number]
    except (TypeError, LookupError) as error:
        raise ConfigError(
            f'There is nothing for document {number} in "{name}", '
            f"which is {type_in_words(values)}.",
            "Pass a list, array, tensor or dict with one for each document of the rank, in order.",
            setting=name,
        ) from error


def _plain(value: Any) -> Any:
    """A number in place of a tensor of no dimension."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _dtype(name: str, values: Any, own: NDArray[np.int64]) -> Any:
    """Of a field, from what the first document has."""
    if not len(own):
        return np.float32
    first = _at(values, int(own[0]), name)
    try:
        kind = np.asarray(first).dtype
    except (TypeError, ValueError, RuntimeError):
        return np.float32  # the document is named when it is read
    if not hasattr(first, "dtype"):  # Python's numbers
        return {"f": np.float32, "i": np.int64}.get(kind.kind, kind)
    return kind


@dataclass(frozen=True, slots=True, eq=False)
class MicrobatchPlan:
    """Which documents each rank has in each of its micro-batches. Made by `pack`.

    Attributes:
        seq_len: slots of a row; a micro-batch is one row.
        ranks: data-parallel ranks.
        microbatches: of each rank.
        align: slots that documents take up multiples of.
        lengths: (N,) int64 tokens of the documents.
        document_costs: (N,) float64.
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
        """(D,) int64: numbers of the documents in a micro-batch of a rank, or in all of its.

        Raises:
            ConfigError: there is no such rank or micro-batch.
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
        """(ranks, microbatches) int64 tokens; of trees the slots that they take."""
        return np.asarray(self._sums(self._slots()), dtype=np.int64)

    @property
    def costs(self) -> NDArray[np.float64]:
        """(ranks, microbatches) float64."""
        return np.asarray(self._sums(self.document_costs), dtype=np.float64)

    @property
    def imbalance(self) -> float:
        """Time of all micro-batches over what equal ones would take, if ranks wait in each."""
        costs = self.costs
        return float(costs.max(axis=0).sum() / costs.mean(axis=0).sum()) if costs.any() else 1.0

    @property
    def padding_ratio(self) -> float:
        """Share of slots without a token, in rows of seq_len."""
        slots = self.ranks * self.microbatches * self.seq_len
        return 1 - int(self._slots().sum()) / slots if slots else 0.0

    def _slots(self) -> NDArray[np.int64]:
        """(N,) slots that each document takes."""
        return self.lengths

    def _format(self, pad_id: int, fields: FieldTypes) -> RowFormat:
        stages: list[RowStage] = [Provenance()]
        if fields:
            stages.append(FieldColumns(fields))
        return RowFormat(pad_id=pad_id, eos_id=-1, stages=tuple(stages))

    def _block(self, block: Documents, numbers: NDArray[np.int64]) -> Documents:
        """The documents of a row with these numbers (D,), as they stand in it."""
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
        """A rank's micro-batches, each made when it is asked for.

        ``batch.provenance["index"]`` has the number of the document of every piece.

        Args:
            ids: the documents' ids: ``ids[i]`` is a list, array or tensor of ``lengths[i]`` of
                them. Only the rank's own are asked for, so a dict of these does too.
            rank: whose; None is that of the only rank.
            loss_mask: like `ids`, true where a token counts in the loss; None: everywhere.
            token_fields: by name, like `ids`: one number per token. See `PackedBatch.fields`.
            document_fields: by name, one number for each document. A field has the dtype of the
                numpy arrays or tensors given, float32 for floats in lists, int64 for integers.
            pad_id: id on padding.
            pad_to: rows end at the next multiple of this after their last document, instead of at
                `seq_len`.

        Raises:
            ConfigError: a document, or what belongs to it, is not what it should be; or there are
                several ranks, and none is named.
        """
        if rank is None and self.ranks > 1:
            raise ConfigError(
                f"The plan is for {self.ranks} ranks, and no rank is named.",
                "Pass rank=, as torch.distributed.get_rank() gives it.",
                setting="rank",
            )
        rank = rank or 0
        own = self.documents(rank)
        given = Given.of(len(self.lengths), own, ids, loss_mask, token_fields, document_fields)
        pad_id = whole_number("pad_id", pad_id, least=0, most=(1 << 32) - 1)
        if pad_to is not None:
            pad_to = whole_number("pad_to", pad_to)
        layout = self._format(pad_id, given.types)
        made = (
            self._rows(self.documents(rank, number), given, layout, pad_to)
            for number in range(self.microbatches)
        )
        return (kind_of(rows)(rows, step=number) for number, rows in enumerate(made))

    def _rows(
        self, numbers: NDArray[np.int64], given: Given, layout: RowFormat, pad_to: int | None
    ) -> PackedRows:
        block = None
        if len(numbers):
            block = self._block(given.read(numbers, self.lengths[numbers]), numbers)
        lengths = np.zeros(0, dtype=np.int64) if block is None else block.lengths
        gaps = -lengths % self.align
        width = self.seq_len
        if pad_to is not None:
            step = int(np.lcm(pad_to, self.align))
            width = min(width, max(-(-int((lengths + gaps).sum()) // step), 1) * step)
        if block is None:
            return empty_rows(layout, 1, width)
        return _packed_row(block, gaps, width, layout)


def _packed_row(
    documents: Documents, gaps: NDArray[np.int64], width: int, layout: RowFormat
) -> PackedRows:
    """The documents one after the other, each with so many slots of padding after it (D,)."""
    count, lengths = len(documents), documents.lengths
    buffer = TokenBuffer(int((lengths + gaps).sum()))
    buffer.append(documents, 0, lengths, serial=0, round=0)
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
