"""PackedBatch: what the training loop gets; BatchGroup: those of one optimiser step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.consumers.adapters import BatchAdapters
from streampack.consumers.misuse import refuse_collating
from streampack.errors import ConfigError
from streampack.lane.batch import LaneBatch
from streampack.metrics import Metrics
from streampack.packing.composition import Composition
from streampack.window.packed_rows import PackedRows


class PackedBatch(BatchAdapters):
    """R rows of packed documents. One method per consumer: see `BatchAdapters`.

    For example documents of five and two tokens in two rows of four, eight slots:

    >>> from streampack import PackedDataset, Topology
    >>> documents = [[11, 12, 13, 14, 15], [21, 22]]
    >>> dataset = PackedDataset(documents, seq_len=4, batch_rows=2, seed=1, topology=Topology())
    >>> (batch,) = dataset
    >>> batch.input_ids.tolist()
    [[11, 12, 13, 14], [21, 22, 15, 0]]
    >>> batch.document_ids.tolist()  # pieces: 15 is one by itself, -1 is padding
    [[0, 0, 0, 0], [1, 1, 2, -1]]
    >>> batch.position_ids.tolist()
    [[0, 1, 2, 3], [0, 1, 0, 0]]
    >>> batch.labels.tolist()  # not shifted; the first token of a segment has nothing before it
    [[-100, 12, 13, 14], [-100, 22, -100, -100]]
    >>> batch.cu_seqlens.tolist(), batch.num_tokens, batch.num_loss_tokens
    ([0, 4, 6, 7, 8], 7, 4)

    Attributes:
        cu_seqlens: (segments + 1,) int32, ends of the attention segments over the flattened rows;
            padding segments included, none empty, the last entry is R * seq_len. A
            `ContextSchedule` cuts them further; labels are those without it.
        num_segments: attention segments, padding segments included.
        max_seqlen: longest attention segment, padding segments included (an int, on the host).
        num_documents: document pieces in the batch.
        num_tokens: slots that are not padding.
        num_loss_tokens: labels that are not -100.
        num_items_in_batch: what `loss` and `.hf()` divide the batch's summed loss by, so that
            gradients that are averaged over the ranks, as by DDP and FSDP, and added up over a
            group of `PackedLoader.accumulate` are those of the mean over the loss tokens of the
            step: these on all ranks together, divided by the number of ranks. None where the batch
            is a step by itself (one rank without a group, an evaluation), and from a loader other
            than `PackedLoader`.
        sum_squared_lengths: over attention segments that are not padding: what attention costs.
        source_ids: (num_documents,) int32, the source of each piece, to be indexed by
            `document_ids`.
        provenance: (num_documents,) records (source, shard, index, start, stop), or None.
        fields: by name, (rows, seq_len) the dataset's ``token_fields``; 0 on padding and on EOS
            that was added.
        document_fields: by name, (num_documents,) the dataset's ``document_fields``, to be indexed
            by `document_ids`. Where records have several documents,
            ``document_fields["group_ids"]`` numbers the records of the batch, int32 from 0.
        seq_len, rows: the batch's shape.
        lane, step: batch number ``step * lanes + lane`` of the run.
        has_next: False if this is its lane's last batch. After it come empty ones, which hold
            padding only (`num_documents` is 0), until all lanes of all ranks have ended.
    """

    def __init__(
        self,
        packed: PackedRows,
        *,
        lane: int = 0,
        step: int = 0,
        has_next: bool = False,
        state: Callable[[], dict[str, Any] | None] | dict[str, Any] | None = None,
        spent: Metrics | None = None,
        on_fields: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(packed, on_fields)
        self.sum_squared_lengths = packed.sum_squared_lengths
        self.composition: Composition = packed.composition
        self.by_source: NDArray[np.int64] | None = packed.by_source
        self.provenance: NDArray[np.void] | None = packed.provenance
        self.lane = lane
        self.step = step
        self.has_next = has_next
        self.lane_state = state  # may be a function that makes it, since few are asked for
        self.spent = spent

    @classmethod
    def of_lane(
        cls, made: LaneBatch, *, on_fields: Callable[[], None] | None = None
    ) -> PackedBatch:
        """The batch that a lane has made.

        Args:
            made: by the lane.
            on_fields: called when the loop asks for per-token fields that are not made yet.
        """
        return cls(
            made.rows,
            lane=made.lane,
            step=made.step,
            has_next=made.has_next,
            state=partial(made.round.state, made.emitted),
            spent=made.metrics,
            on_fields=on_fields,
        )

    def __reduce__(self) -> Any:
        if self._packed is None:
            raise ConfigError(
                "This batch has left its first device or was pinned, and is being pickled.",
                "Only a batch as the dataset gives it travels between processes.",
                "Send it before `.to()` or `.pin_memory()`.",
            )
        again = partial(
            PackedBatch,
            lane=self.lane,
            step=self.step,
            has_next=self.has_next,
            state=self.state,
            spent=self.spent,
        )
        return again, (self._packed,)

    def __repr__(self) -> str:
        return (
            f"PackedBatch(rows={self.rows}, seq_len={self.seq_len}, "
            f"num_documents={self.num_documents}, num_tokens={self.num_tokens}, "
            f"lane={self.lane}, step={self.step}, device={str(self.device)!r})"
        )

    @property
    def num_tokens(self) -> int:
        """Slots that are not padding."""
        return self.composition.placed + self.composition.inserted_eos

    @property
    def state(self) -> dict[str, Any] | None:
        """JSON-able state of the lane once this batch is consumed."""
        if callable(self.lane_state):
            self.lane_state = self.lane_state()
        return self.lane_state


class BatchGroup:
    """Batches whose gradients are added up before the optimiser steps.

    Attributes:
        batches: this rank's, in order, as the loader gives them (``output=``); fewer than asked for
            at the end of a run.
        num_loss_tokens: labels that count in the loss, over these batches on all data-parallel
            ranks together. The losses divide by it already (`PackedBatch.num_items_in_batch`).
    """

    def __init__(
        self,
        batches: Sequence[PackedBatch],
        num_loss_tokens: int,
        form: Callable[[PackedBatch], Any] = lambda batch: batch,
    ) -> None:
        self.num_loss_tokens = num_loss_tokens
        self.batches: tuple[Any, ...] = tuple(form(batch) for batch in batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __repr__(self) -> str:
        return f"BatchGroup(batches={len(self)}, num_loss_tokens={self.num_loss_tokens})"


refuse_collating(PackedBatch)
