"""PackedBatch: a batch of packed rows, with its tensors and its forms for consumers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from streampack.arguments import Explained, explained
from streampack.batch.tensors import (
    DOCUMENT_FIELD,
    OF_MEDIA,
    TOKEN_FIELD,
    Staged,
    compact_tensors,
    fields_on_device,
    fields_on_host,
    stage,
)
from streampack.errors import ConfigError
from streampack.lane.state import LaneBatch
from streampack.metrics import Metrics
from streampack.packing.plan import PackingStats
from streampack.window.packed_rows import PackedRows

if TYPE_CHECKING:
    from typing_extensions import Self

    from streampack.forms import attention, numpy_arrays, slices, text
    from streampack.forms import context_parallel as cp
    from streampack.forms import loss as losses
    from streampack.forms import megatron as megatron_lm
    from streampack.forms import per_token as spread
    from streampack.hf import arguments as hf_arguments


def refuse_collating(kind: type) -> None:
    """Make a DataLoader that would collate batches of this class raise `ConfigError`."""
    default_collate_fn_map[kind] = _refuse


def _refuse(batches: Any, *, collate_fn_map: Any = None) -> NoReturn:
    raise ConfigError(
        f"The DataLoader must have batch_size=None, because the dataset makes whole batches, got "
        f"{len(batches)}.",
        "Pass batch_size=None: DataLoader(dataset, batch_size=None).",
        setting="batch_size",
    )


class Form:
    """Descriptor for a method that lives in another module, which is imported on first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, batch: Any, kind: type) -> Any:
        module, _, name = self._name.rpartition(".")
        function = getattr(import_module(f"streampack.{module}"), name)
        return function if batch is None else partial(function, batch)


class PackedBatch(Explained):
    """R rows of packed documents, with one method per consumer.

    For example, documents of five and two tokens in two rows of four slots:

    >>> from streampack import PackedDataset, Topology
    >>> documents = [[11, 12, 13, 14, 15], [21, 22]]
    >>> dataset = PackedDataset(documents, seq_len=4, batch_size=2, seed=1, topology=Topology())
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
            padding segments included, none empty, the last entry is R * seq_len.
        num_segments: attention segments, padding segments included.
        max_seqlen: longest attention segment, padding segments included (an int, on the host).
        num_documents: document pieces in the batch.
        num_tokens: slots that are not padding.
        num_loss_tokens: labels that are not -100.
        num_items_in_batch: divisor of the batch's summed loss in `loss` and `.hf()`: the loss
            tokens of the step on all ranks, divided by the number of ranks. With it, averaging
            gradients over ranks (DDP, FSDP) and adding them over a group of
            `PackedLoader.accumulate` gives the gradient of the mean over the step's loss tokens. A
            batch that is a step by itself (one rank without a group, an evaluation, a loader other
            than `PackedLoader`) counts its own loss tokens; a step without loss tokens counts 1. If
            ranks share the batch, each divides the loss of its part by this number; `loss` and
            `.hf()` compute the loss of the whole batch, and each rank counts an equal share.
        sum_squared_lengths: sum over attention segments that are not padding; attention's cost.
        source_ids: (num_documents,) int32, the source of each piece; see `per_token`.
        provenance: (num_documents,) records (source, shard, index, start, stop), or None.
        fields: the dataset's ``token_fields`` by name, (rows, seq_len) each, or (rows, seq_len,
            *shape) with several numbers per token; 0 on padding and on added EOS tokens.
        document_fields: the dataset's ``document_fields`` by name, (num_documents,) each, and of
            each token by `per_token`. Where records have several documents,
            ``document_fields["group_ids"]`` is the index of the document's record in the batch,
            int32.
        media: the model's image arguments by name, such as `pixel_values`, in the order of the
            images in the rows, for a dataset with ``processor=``; empty without images.
        seq_len, rows: the batch's shape.
        cp_size, cp_rank: number of neighbouring ranks that share the batch, and this rank's index
            among them; see `Buckets`. `context_parallel` and `megatron` return its part.
        lane, step: position in the run: this is batch ``step * lanes + lane``.
        has_next: False if this is its lane's last batch. Empty batches follow, padding alone
            (`num_documents` is 0), until all lanes of all ranks have ended.
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
        cp_size: int = 1,
        cp_rank: int = 0,
    ) -> None:
        self.seq_len = packed.seq_len
        self.rows = len(packed.tokens) // packed.seq_len
        self.num_segments = len(packed.cu_seqlens) - 1
        self.max_seqlen = packed.max_seqlen
        self.num_documents = len(packed.source_ids)
        self.num_loss_tokens = packed.num_loss_tokens
        self._step_items: float | None = None
        self._step_batches = 1  # of this rank
        self.sum_squared_lengths = packed.sum_squared_lengths
        self.composition: PackingStats = packed.composition
        self.by_source: NDArray[np.int64] | None = packed.by_source
        self.provenance: NDArray[np.void] | None = packed.provenance
        self.lane = lane
        self.step = step
        self.cp_size = cp_size
        self.cp_rank = cp_rank
        self.has_next = has_next
        self.lane_state = state  # may be a function, because most states are never read
        self.spent = spent
        self._on_fields = on_fields
        self._host_fields = packed.document_fields
        self._runs = (packed.cu_seqlens, packed.boundaries, packed.piece)
        self._attached = {name: part.on_host() for name, part in packed.attached.items()}
        self._packed: PackedRows | None = packed
        self._staged: Staged | None = None
        self._compact: dict[str, Tensor] | None = None
        self._fields: dict[str, Tensor] | None = None

    @classmethod
    def of_lane(
        cls, lane_batch: LaneBatch, *, on_fields: Callable[[], None] | None = None
    ) -> PackedBatch:
        """Make the batch from a lane's result.

        Args:
            lane_batch: the lane's result.
            on_fields: called if the loop reads per-token fields before `make_fields`.
        """
        return cls(
            lane_batch.rows,
            lane=lane_batch.lane,
            step=lane_batch.step,
            has_next=lane_batch.has_next,
            state=partial(lane_batch.start.state, lane_batch.emitted),
            spent=lane_batch.metrics,
            on_fields=on_fields,
        )

    def __reduce__(self) -> Any:
        if self._packed is None:
            raise ConfigError(
                "Only a batch in host memory can be pickled, and this one was moved to a device or "
                "pinned.",
                "Pickle it before `.to()` or `.pin_memory()`.",
                setting="device",
            )
        rebuild = partial(
            type(self),
            lane=self.lane,
            step=self.step,
            has_next=self.has_next,
            state=self.state,
            spent=self.spent,
            cp_size=self.cp_size,
            cp_rank=self.cp_rank,
        )
        return rebuild, (self._packed,)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(rows={self.rows}, seq_len={self.seq_len}, "
            f"num_documents={self.num_documents}, num_tokens={self.num_tokens}, "
            f"lane={self.lane}, step={self.step}, device={str(self.device)!r})"
        )

    @property
    def num_tokens(self) -> int:
        """Number of slots that are not padding."""
        return self.composition.placed + self.composition.inserted_eos

    @property
    def num_items_in_batch(self) -> float:
        """Divisor of the batch's summed loss; see the class."""
        if self._step_items is not None:
            return self._step_items or 1
        loss_tokens = self.num_loss_tokens or 1
        return loss_tokens if self.cp_size == 1 else loss_tokens / self.cp_size

    @num_items_in_batch.setter
    def num_items_in_batch(self, count: float) -> None:
        self._step_items = count

    @property
    def state(self) -> dict[str, Any] | None:
        """State of the lane after this batch, as values that JSON can hold."""
        if callable(self.lane_state):
            self.lane_state = self.lane_state()
        return self.lane_state

    # ------------------------------------------------------------------ for kernels and trainers

    if TYPE_CHECKING:
        varlen = attention.varlen
        fla = attention.fla
        flex = attention.flex
        magi = slices.magi
        next_tokens = attention.next_tokens
        context_parallel = cp.context_parallel
        hf = hf_arguments.hf
        loss = losses.loss
        megatron = megatron_lm.megatron
        packed_seq_params = megatron_lm.packed_seq_params
        samples = megatron_lm.samples
        numpy = numpy_arrays.numpy
        pairs = losses.pairs
        per_token = spread.per_token
        decode = text.decode
        show = text.show
        limit_context = attention.limit_context
    else:
        varlen = Form("forms.attention.varlen")
        fla = Form("forms.attention.fla")
        flex = Form("forms.attention.flex")
        magi = Form("forms.slices.magi")
        next_tokens = Form("forms.attention.next_tokens")
        context_parallel = Form("forms.context_parallel.context_parallel")
        hf = Form("hf.arguments.hf")
        loss = Form("forms.loss.loss")
        megatron = Form("forms.megatron.megatron")
        packed_seq_params = Form("forms.megatron.packed_seq_params")
        samples = Form("forms.megatron.samples")
        numpy = Form("forms.numpy_arrays.numpy")
        pairs = Form("forms.loss.pairs")
        per_token = Form("forms.per_token.per_token")
        decode = Form("forms.text.decode")
        show = Form("forms.text.show")
        limit_context = Form("forms.attention.limit_context")
        keys = Form("forms.mapping.keys")

    @property
    def seq_idx(self) -> Tensor:
        """(1, T) int32, each slot's attention segment, as mamba_ssm and causal_conv1d take it."""
        number = torch.arange(self.num_segments, dtype=torch.int32, device=self.device)
        slots = self.rows * self.seq_len
        return number.repeat_interleave(self.cu_seqlens.diff(), output_size=slots).view(1, -1)

    # ------------------------------------------------------------------ tensors

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self._tensors["cu_seqlens"].device

    @property
    def cu_seqlens(self) -> Tensor:
        """(segments + 1,) int32."""
        return self._tensors["cu_seqlens"]

    @property
    def source_ids(self) -> Tensor:
        """(num_documents,) int32."""
        return self._tensors["source_ids"]

    @property
    def input_ids(self) -> Tensor:
        """(rows, seq_len) int64."""
        return self._derived["input_ids"]

    @property
    def labels(self) -> Tensor:
        """(rows, seq_len) int64, not shifted; -100 where a token carries no loss."""
        return self._derived["labels"]

    @property
    def position_ids(self) -> Tensor:
        """(rows, seq_len) int64, counted from 0 in every attention segment."""
        return self._derived["position_ids"]

    @property
    def document_ids(self) -> Tensor:
        """(rows, seq_len) int32, index of the document piece in the batch; -1 on padding."""
        return self._derived["document_ids"]

    @property
    def padding_mask(self) -> Tensor:
        """(rows, seq_len) bool, True on padding, which statistics of routers should leave out."""
        return self.document_ids < 0

    @property
    def fields(self) -> dict[str, Tensor]:
        """Token fields by name, (rows, seq_len, ...) in the dtypes that the dataset declares."""
        return {
            name: values.view(self.rows, self.seq_len, *values.shape[1:])
            for name, values in self._named(TOKEN_FIELD).items()
        }

    @property
    def document_fields(self) -> dict[str, Tensor]:
        """Document fields by name, (num_documents,) in the dtypes that the dataset declares."""
        return self._named(DOCUMENT_FIELD)

    @property
    def media(self) -> dict[str, Tensor]:
        """Image arguments of the model by name, in the order of the images in the rows."""
        return self._named(OF_MEDIA)

    def _named(self, kind: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(kind): tensor
            for name, tensor in self._tensors.items()
            if name.startswith(kind)
        }

    def make_fields(self) -> None:
        """Make the per-token fields now instead of on first access."""
        if self._fields is not None:
            return
        if self._packed is not None:
            self._fields = fields_on_host(self._packed)
        else:
            self._fields = fields_on_device(self._tensors, self.rows, self.seq_len)

    @explained
    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Copy the batch to a device as one buffer of 2 to 4 bytes per token."""
        if isinstance(device, torch.dtype):
            from streampack.wrong_calls.attributes import missing

            raise missing(self, "dtype")
        if torch.empty(0, device=device).device == self.device:  # "cuda" may mean "cuda:0"
            return self
        return self._moved(lambda buffer: buffer.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: Any = None) -> Self:
        """Copy the batch to page-locked memory, so that `.to(..., non_blocking=True)` overlaps."""
        return self._moved(lambda buffer: buffer, pin=True)

    def record_stream(self, stream: torch.Stream) -> None:
        """Mark the batch as used by a CUDA stream other than the one that copied it."""
        if self._staged is not None:
            self._staged.buffer.record_stream(stream)

    # ------------------------------------------------------------------ making them

    @property
    def _tensors(self) -> dict[str, Tensor]:
        """Tensors of the compact form, by name."""
        if self._compact is None:
            assert self._packed is not None
            self._compact = compact_tensors(self._packed)
        return self._compact

    @property
    def _derived(self) -> dict[str, Tensor]:
        if self._fields is None:
            if self._packed is not None and self._on_fields is not None:
                self._on_fields()
            self.make_fields()
        assert self._fields is not None
        return self._fields

    def _with_input_ids(self, input_ids: Tensor) -> Self:
        """Return the batch with other ids, (rows, seq_len) int64; labels follow."""
        labels = torch.where(self.labels == -100, self.labels, input_ids)
        return self._with(_fields={**self._derived, "input_ids": input_ids, "labels": labels})

    def _moved(self, copy: Callable[[Tensor], Tensor], pin: bool = False) -> Self:
        """Return the batch on a copy of its staging buffer; per-token fields are made anew."""
        staged = self._staged
        if staged is None or pin:
            staged = stage(self._tensors, pin=pin)
        staged = staged._replace(buffer=copy(staged.buffer))
        return self._with(_packed=None, _fields=None, _staged=staged, _compact=staged.views())

    def _with(self, **attributes: Any) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **attributes)
        return other


refuse_collating(PackedBatch)
