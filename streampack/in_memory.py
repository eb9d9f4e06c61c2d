"""pack: documents in memory, as rollouts are, divided among ranks as micro-batches; no collectives.

Every process that knows the lengths makes the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampack.batch import PackedBatch
from streampack.documents import Documents, make_origin, offsets_of
from streampack.errors import ConfigError, PlanError
from streampack.fields import FieldTypes
from streampack.numeric import is_whole, whole_number
from streampack.packing.arguments import require_align, require_seq_len
from streampack.packing.cost import Cost
from streampack.packing.microbatches import Units, grouped_rows, place_in_rows
from streampack.packing.overflow import checked_lengths
from streampack.packing.plan import Plan
from streampack.reading.fields import Fields
from streampack.sources.iterable.items import item_block
from streampack.window.buffer import TokenBuffer
from streampack.window.empty_rows import empty_rows
from streampack.window.gather import RowFormat, gather_rows
from streampack.window.planned import PlannedWindow

_IDS, _MASK = "ids", "loss_mask"  # in the records that documents are made of


def pack(
    lengths: ArrayLike,
    *,
    seq_len: int,
    ranks: int = 1,
    groups: ArrayLike | None = None,
    within: Literal["rank", "row"] = "rank",
    cost: Callable[[NDArray[np.int64]], ArrayLike] | None = None,
    microbatches: int | Literal["equal"] = "equal",
    align: int | Sequence[int] = 1,
    seed: int = 0,
) -> MicrobatchPlan:
    """Divide documents among ranks, in micro-batches of nearly equal cost; none is ever cut.

    A micro-batch is one row. All ranks have the same number of them; those at the same place cost
    nearly the same on all ranks, and so do the sums. For example four documents for two ranks:

    >>> from streampack import pack
    >>> plan = pack([5, 2, 4, 3], seq_len=8, ranks=2)
    >>> plan.microbatches, plan.tokens.tolist()
    (1, [[7], [7]])
    >>> ids = [[11, 12, 13, 14, 15], [21, 22], [31, 32, 33, 34], [41, 42, 43]]
    >>> [batch.input_ids.tolist() for batch in plan.batches(ids, rank=0)]
    [[[11, 12, 13, 14, 15, 21, 22, 0]]]

    Args:
        lengths: (N,) tokens of each document, at least 1.
        seq_len: slots of a row; no document is longer.
        ranks: data-parallel ranks.
        groups: (N,) whole numbers or names; documents with the same one stay together.
        within: where: on one "rank", or in one "row", and so in one micro-batch.
        cost: a function from lengths (M,) to costs (M,), for example `Cost.from_config`. None is
            that of a model 4,096 wide.
        microbatches: per rank: "equal" is as few as are found to hold all, or a number. Where
            documents are fewer than all micro-batches, some hold nothing but padding.
        align: a document takes up a multiple of so many slots, as context parallelism wants; of
            several numbers, of their least common multiple.
        seed: of the order of micro-batches, and of which rank gets which.

    Raises:
        ConfigError: an argument makes no sense.
        PlanError: a document, or a group within a row, is longer than a row, or `microbatches` are
            too few.
    """
    seq_len = require_seq_len(seq_len, "error")
    multiple = require_align(align, seq_len)
    ranks = whole_number("ranks", ranks, "There would be nobody to train.", most=1 << 20)
    equal = isinstance(microbatches, str) and microbatches == "equal"
    if not is_whole(microbatches) and not equal:
        raise ConfigError(
            f"microbatches is {microbatches!r}.",
            "It says how many each rank has.",
            'Pass a whole number, or "equal" for as few as hold all documents.',
        )
    wanted = None
    if not equal:
        wanted = whole_number("microbatches", microbatches, "A step has some.", most=1 << 20)
    if within not in ("rank", "row"):
        raise ConfigError(
            f"within is {within!r}.",
            "It says where groups stay whole.",
            'Use "rank" or "row"; a micro-batch is one row.',
        )
    sizes = checked_lengths(lengths).copy()  # the plan's own, whatever becomes of the caller's
    _check_sizes(sizes, seq_len)
    costs = _costs(cost or Cost.of_width(4096), sizes)
    group, names = _numbered(groups, len(sizes))
    slots = -(-sizes // multiple) * multiple
    units = Units.of(slots, costs, group if within == "row" else None)
    if group is not None and within == "row" and units.sizes.max(initial=0) > seq_len:
        i = int(np.argmax(units.sizes))
        raise PlanError(
            f"The documents of group {names[i]!r} have {units.sizes[i]} tokens together, a row "
            f"has {seq_len}.",
            "A group within a row is never cut.",
            f'Pass seq_len={units.sizes[i]} or more, or within="rank".',
        )
    count, row = place_in_rows(
        units,
        seq_len,
        ranks,
        rank_groups=group if within == "rank" else None,
        microbatches=wanted,
        seed=whole_number("seed", seed, "It is that of a generator.", least=None),
    )
    offsets, documents = grouped_rows(row, units.unit, ranks * count)
    return MicrobatchPlan(seq_len, ranks, count, multiple, sizes, costs, offsets, documents)


def _check_sizes(sizes: NDArray[np.int64], seq_len: int) -> None:
    if not len(sizes):
        return
    if sizes.min() < 1:
        raise PlanError(
            f"Document {int(np.argmin(sizes))} has no tokens.",
            "It would be in no row.",
            "Leave it out of `lengths`.",
        )
    if sizes.max() > seq_len:
        i = int(np.argmax(sizes > seq_len))
        raise PlanError(
            f"Document {i} has {sizes[i]} tokens, a row has {seq_len}.",
            "Documents in memory are never cut.",
            f"Pass seq_len={sizes.max()} or more, or shorten such documents or leave them out.",
        )


def _costs(
    cost: Callable[[NDArray[np.int64]], ArrayLike], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    if not callable(cost):
        raise ConfigError(
            f"cost is {cost!r}.",
            "It says what documents of some lengths cost.",
            "Pass a function from lengths to costs, as a Cost is, or None.",
        )
    given = _array(cost(sizes.copy()))
    fits = given.shape == sizes.shape and given.dtype.kind in "biuf"
    if not fits or not np.isfinite(given).all() or (given < 0).any():
        raise ConfigError(
            f"cost gave an array of shape {given.shape} and dtype {given.dtype} for {len(sizes)} "
            "documents, or a cost that is negative or not finite.",
            "Documents cannot be divided by it.",
            "Return one cost >= 0 for each length, or pass a Cost.",
        )
    return given.astype(np.float64)


def _array(given: Any) -> NDArray[Any]:
    """The values as an array, which has no dimension where numpy cannot make one of them."""
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError):
        return np.asarray(None)


def _numbered(
    groups: ArrayLike | None, count: int
) -> tuple[NDArray[np.int64] | None, Sequence[Any]]:
    """(N,) int64 numbers of the groups, and their names; None where there are none."""
    if groups is None:
        return None, ()
    given = _array(groups)
    if given.shape != (count,) or (count and given.dtype.kind not in "iubUS"):
        raise ConfigError(
            f"groups has the shape {given.shape} and dtype {given.dtype} for {count} documents.",
            "Every document belongs to one group.",
            "Pass one whole number or name for each document.",
        )
    names, number = np.unique(given, return_inverse=True)
    return number.astype(np.int64), names.tolist()


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
        rank = whole_number("rank", rank, "", least=0, most=self.ranks - 1)
        first, last = rank * self.microbatches, (rank + 1) * self.microbatches
        if microbatch is not None:
            most = self.microbatches - 1
            first += whole_number("microbatch", microbatch, "", least=0, most=most)
            last = first + 1
        return self._documents[self._offsets[first] : self._offsets[last]]

    @property
    def tokens(self) -> NDArray[np.int64]:
        """(ranks, microbatches) int64 tokens."""
        return np.asarray(self._sums(self.lengths), dtype=np.int64)

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
        return 1 - int(self.lengths.sum()) / slots if slots else 0.0

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
        rank: int = 0,
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
            rank: whose.
            loss_mask: like `ids`, true where a token counts in the loss; None: everywhere.
            token_fields: by name, like `ids`: one number per token. See `PackedBatch.fields`.
            document_fields: by name, one number for each document. A field has the dtype of the
                numpy arrays or tensors given, float32 for floats in lists, int64 for integers.
            pad_id: id on padding.
            pad_to: rows end at the next multiple of this after their last document, instead of at
                `seq_len`.

        Raises:
            ConfigError: a document, or what belongs to it, is not what it should be.
        """
        own = self.documents(rank)
        for name, given in (("token_fields", token_fields), ("document_fields", document_fields)):
            if not (given is None or isinstance(given, Mapping)):
                raise ConfigError(
                    f"{name} is a {type(given).__name__}.",
                    "Fields have names.",
                    f'Pass {name}={{"name": values}}, with what each document has.',
                )
        columns = {**(token_fields or {}), **(document_fields or {})}
        types = FieldTypes.of(
            {name: _dtype(name, values, own) for name, values in (token_fields or {}).items()},
            {name: _dtype(name, values, own) for name, values in (document_fields or {}).items()},
        )
        for taken in {_IDS, _MASK} & {*columns}:
            raise ConfigError(
                f'A field is named "{taken}".', "Batches have that beside fields.", "Rename it."
            )
        columns[_IDS] = ids
        if loss_mask is not None:
            columns[_MASK] = loss_mask
        pad_id = whole_number("pad_id", pad_id, "It is an id.", least=0, most=(1 << 32) - 1)
        if pad_to is not None:
            pad_to = whole_number("pad_to", pad_to, "Rows have a multiple of it.")
        layout = RowFormat(pad_id=pad_id, eos_id=-1, provenance=True, fields=types)
        made = (
            self._batch(self.documents(rank, number), columns, layout, pad_to)
            for number in range(self.microbatches)
        )
        return (PackedBatch(rows, step=number) for number, rows in enumerate(made))

    def _batch(
        self,
        numbers: NDArray[np.int64],
        columns: Mapping[str, Any],
        layout: RowFormat,
        pad_to: int | None,
    ) -> Any:
        lengths = self.lengths[numbers]
        gaps = -lengths % self.align
        used = int((lengths + gaps).sum())
        width = self.seq_len
        if pad_to is not None:
            step = int(np.lcm(pad_to, self.align))
            width = min(width, max(-(-used // step), 1) * step)
        if not len(numbers):
            return empty_rows(layout, 1, width)
        documents = self._read(numbers, columns, layout.fields)
        buffer = TokenBuffer(used)
        buffer.append(documents, 0, lengths, serial=0, round=0)
        count = len(numbers)
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
        )
        (rows,) = gather_rows(planned, width, buffer, layout)
        return rows

    def _read(
        self, numbers: NDArray[np.int64], columns: Mapping[str, Any], types: FieldTypes
    ) -> Documents:
        """The documents with these numbers (D,), checked."""
        records = [
            {name: _plain(_at(values, number, name)) for name, values in columns.items()}
            for number in numbers.tolist()
        ]
        fields = Fields(True, _IDS, (_MASK,) if _MASK in columns else ())
        block, problems = item_block(records, fields, make_origin(0, numbers), types)
        assert isinstance(block, Documents)
        if not problems:
            block, problems = types.cast(block)
            for i in np.flatnonzero(block.lengths != self.lengths[numbers]).tolist():
                planned = self.lengths[numbers[i]]
                problems[i] = f"has {block.lengths[i]} ids, and {planned} when it was planned"
        for i, what in problems.items():
            raise ConfigError(
                f"Document {numbers[i]} {what}.",
                "It cannot be in a batch.",
                "Pass the documents and fields in the order of the lengths that were planned.",
            )
        return block


def _at(values: Any, number: int, name: str) -> Any:
    try:
        return values[number]
    except (TypeError, LookupError) as error:
        raise ConfigError(
            f'There is nothing for document {number} in "{name}", a {type(values).__name__}.',
            "What belongs to a document is looked up by its number.",
            "Pass a list, array, tensor or dict with one for each document of the rank, in order.",
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
