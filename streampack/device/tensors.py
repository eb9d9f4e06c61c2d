"""BatchTensors: what a packed batch holds, as tensors on a device.

A batch travels in compact form (`PackedRows`: narrow token ids and boundaries). The other
per-token fields are functions of it and are made on first use, on the device the batch is on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from streampack.device.staging import Staged, stage
from streampack.window.packed_rows import PackedRows
from streampack.window.token_fields import derive_fields

if TYPE_CHECKING:
    from typing_extensions import Self

_TOKEN_FIELD, _DOCUMENT_FIELD = "token_field ", "document_field "  # before names of tensors


class BatchTensors:
    """The tensors of a `PackedBatch`, and how they move.

    Args:
        packed: the compact form.
        on_fields: called when the loop asks for per-token fields that are not made yet.
    """

    def __init__(self, packed: PackedRows, on_fields: Callable[[], None] | None = None) -> None:
        self.seq_len = packed.seq_len
        self.rows = len(packed.tokens) // packed.seq_len
        self.num_segments = len(packed.cu_seqlens) - 1
        self.max_seqlen = packed.max_seqlen
        self.num_documents = len(packed.source_ids)
        self.num_loss_tokens = packed.num_loss_tokens
        self.num_items_in_batch: float | None = None
        self._on_fields = on_fields
        self._host_fields = packed.document_fields
        self._runs = (packed.cu_seqlens, packed.boundaries, packed.piece)
        self._packed: PackedRows | None = packed
        self._staged: Staged | None = None
        self._compact: dict[str, Tensor] | None = None
        self._fields: dict[str, Tensor] | None = None

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self._tensors["cu_seqlens"].device

    # ------------------------------------------------------------------ tensors

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
        """(rows, seq_len) int64, not shifted; -100 where no loss is taken."""
        return self._derived["labels"]

    @property
    def position_ids(self) -> Tensor:
        """(rows, seq_len) int64, from 0 in every attention segment."""
        return self._derived["position_ids"]

    @property
    def document_ids(self) -> Tensor:
        """(rows, seq_len) int32, number of the document piece in the batch, -1 on padding."""
        return self._derived["document_ids"]

    @property
    def fields(self) -> dict[str, Tensor]:
        """By name, (rows, seq_len) in the dtype that ``token_fields`` of the dataset declares."""
        return {
            name: values.view(self.rows, self.seq_len)
            for name, values in self._named(_TOKEN_FIELD).items()
        }

    @property
    def document_fields(self) -> dict[str, Tensor]:
        """By name, (num_documents,) in the dtype that the dataset declares."""
        return self._named(_DOCUMENT_FIELD)

    def _named(self, kind: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(kind): tensor
            for name, tensor in self._tensors.items()
            if name.startswith(kind)
        }

    def make_fields(self) -> None:
        """Make the per-token fields now instead of when one is first asked for."""
        if self._fields is not None:
            return
        if self._packed is not None:
            self._fields = _derive_on_host(self._packed)
        else:
            self._fields = _derive_on_device(self._tensors, self.rows, self.seq_len)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The batch on a device: one copy of the compact form, 2 to 4 bytes per token."""
        if torch.device(device) == self.device:
            return self
        return self._moved(lambda buffer: buffer.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: Any = None) -> Self:
        """The batch in page-locked memory, so that `.to(..., non_blocking=True)` overlaps."""
        return self._moved(lambda buffer: buffer, pin=True)

    def record_stream(self, stream: torch.Stream) -> None:
        """Say that work on another CUDA stream than the copy's uses the batch."""
        if self._staged is not None:
            self._staged.buffer.record_stream(stream)

    # ------------------------------------------------------------------ making them

    @property
    def _tensors(self) -> dict[str, Tensor]:
        """The compact form as tensors."""
        if self._compact is None:
            packed = self._packed
            assert packed is not None
            # Torch has few operations on unsigned integers, so ids travel as signed ones of the
            # same width and are widened with a mask.
            signed = np.int16 if packed.tokens.dtype == np.uint16 else np.int32
            self._compact = {
                "tokens": torch.from_numpy(packed.tokens.view(signed)),
                "cu_seqlens": torch.from_numpy(packed.cu_seqlens),
                "boundaries": torch.from_numpy(packed.boundaries),
                "piece": torch.from_numpy(packed.piece),
                "source_ids": torch.from_numpy(packed.source_ids),
            }
            if packed.uncut is not None:
                self._compact["uncut"] = torch.from_numpy(packed.uncut)
            if packed.loss_mask is not None:
                self._compact["loss_mask"] = torch.from_numpy(packed.loss_mask)
            for kind, fields in (
                (_TOKEN_FIELD, packed.token_fields),
                (_DOCUMENT_FIELD, packed.document_fields),
            ):
                for name, values in fields.items():
                    self._compact[kind + name] = torch.from_numpy(values)
        return self._compact

    def _label_positions(self) -> Tensor:
        """(T,) int64: every slot's place in what its label may be predicted from."""
        uncut = self._tensors.get("uncut")
        if uncut is None:
            return self.position_ids.view(-1)
        return _positions(uncut, self.rows * self.seq_len)

    @property
    def _derived(self) -> dict[str, Tensor]:
        if self._fields is None:
            if self._packed is not None and self._on_fields is not None:
                self._on_fields()
            self.make_fields()
        assert self._fields is not None
        return self._fields

    def _with_input_ids(self, input_ids: Tensor) -> Self:
        """The batch with other ids in the same places, (rows, seq_len) int64."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        labels = torch.where(self.labels == -100, self.labels, input_ids)
        other._fields = {**self._derived, "input_ids": input_ids, "labels": labels}
        return other

    def _moved(self, copy: Callable[[Tensor], Tensor], pin: bool = False) -> Self:
        """The batch in a copy of its staging buffer; per-token fields are made again there."""
        staged = self._staged
        if staged is None or pin:
            staged = stage(self._tensors, pin=pin)
        moved = object.__new__(type(self))
        moved.__dict__.update(self.__dict__)
        moved._packed = moved._fields = None
        moved._staged = staged._replace(buffer=copy(staged.buffer))
        moved._compact = moved._staged.views()
        return moved


def _derive_on_host(packed: PackedRows) -> dict[str, Tensor]:
    """One compiled pass on the CPU."""
    wide, document_ids = derive_fields(packed)
    ids, positions, labels = map(torch.from_numpy, wide)  # in half the time of `unbind`
    return {
        "input_ids": ids,
        "position_ids": positions,
        "labels": labels,
        "document_ids": torch.from_numpy(document_ids),
    }


def _derive_on_device(compact: dict[str, Tensor], rows: int, seq_len: int) -> dict[str, Tensor]:
    """The same by tensor operations, on any device and without waiting for it."""
    slots = rows * seq_len
    tokens = compact["tokens"]
    ids = tokens.to(torch.int64) & ((1 << (8 * tokens.element_size())) - 1)
    cu_seqlens, boundaries = compact["cu_seqlens"], compact["boundaries"]
    positions = _positions(cu_seqlens, slots)
    uncut = _positions(compact["uncut"], slots) if "uncut" in compact else positions
    documents = torch.repeat_interleave(compact["piece"], boundaries.diff(), output_size=slots)
    ignored = (uncut == 0) | (documents < 0)
    if "loss_mask" in compact:
        ignored |= ~compact["loss_mask"]
    shape = (rows, seq_len)
    return {
        "input_ids": ids.view(shape),
        "position_ids": positions.view(shape),
        "labels": ids.masked_fill(ignored, -100).view(shape),
        "document_ids": documents.view(shape),
    }


def _positions(ends: Tensor, slots: int) -> Tensor:
    """(T,) int64: every slot's place in its segment, of those that end at `ends` (n + 1,)."""
    starts = torch.repeat_interleave(ends[:-1], ends.diff(), output_size=slots)
    return torch.arange(slots, device=ends.device) - starts
