"""The plan of each rank's micro-batches, and the batches made from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import whole_number
from streampack.batch import PackedBatch
from streampack.batch.kinds import kind_of
from streampack.documents.blocks import Documents, offsets_of
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.fields.columns import FieldColumns
from streampack.forecasts.origins import Provenance
from streampack.in_memory.given import Given, refuse_faults
from streampack.packing.plan import Plan
from streampack.window.buffer import TokenBuffer
from streampack.window.empty_rows import empty_rows
from streampack.window.gather import RowFormat, RowStage, gather_rows
from streampack.window.packed_rows import PackedRows
from streampack.window.planned import PlannedWindow

if TYPE_CHECKING:
    from streampack.images.in_memory import GivenImages


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
        images: Any = None,
        processor: Any = None,
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
            images: like `ids`, each an image or a list of them in the order of their tokens, as
                `sources.Images` takes them. The ids have the tokens of the images, as the processor
                makes them. Batches have `media`, decoded when they are made. Not for trees.
            processor: the model's processor, for images; see `PackedDataset`.
            pad_id: token id on padding.
            pad_to: shorten the rows of a micro-batch, on all ranks alike, to the next multiple of
                this after the last document of the longest of them. None pads to `seq_len`. A
                larger multiple gives fewer distinct shapes and more padding.

        Raises:
            ConfigError: a document, its mask or a field is missing, malformed or of another length;
                images and ids do not fit together; or `rank` is missing and there are several
                ranks.
            ContentError: an image cannot be decoded.
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
        given_images = None if images is None else self._images(images, processor)
        if given_images is not None:
            layout = replace(layout, stages=(*layout.stages, given_images.stage))
        batches = (
            self._rows(self.documents(rank, number), columns, given_images, layout, width)
            for number, width in enumerate(self._seq_lens(pad_to).tolist())
        )
        return (kind_of(rows)(rows, step=number) for number, rows in enumerate(batches))

    def _images(self, images: Any, processor: Any) -> GivenImages:
        """Return the images of the documents; raise `ConfigError` without a processor."""
        from streampack.images.in_memory import GivenImages

        if processor is None:
            raise ConfigError(
                "Documents with images need processor=, got None.",
                "Pass processor=, a processor of transformers or an ImageModel.",
                setting="processor",
            )
        return GivenImages.of(images, processor)

    def _rows(
        self,
        numbers: NDArray[np.int64],
        given: Given,
        images: GivenImages | None,
        layout: RowFormat,
        width: int,
    ) -> PackedRows:
        if len(numbers):
            documents = given.read(numbers, self.lengths[numbers])
            if images is not None:
                documents, faults = images.attached(documents, numbers)
                refuse_faults(
                    faults, numbers, "Pass ids as the processor makes them for these images, uncut."
                )
            block = self._block(documents, numbers)
            rows = _packed_row(block, -block.lengths % self.align, width, layout)
        else:
            rows = empty_rows(layout, 1, width)
        return rows if images is None else images.finished(rows)


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
