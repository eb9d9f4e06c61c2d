"""Tensors of a packed batch: the compact form in one buffer, and the per-token fields.

A batch travels in compact form (`PackedRows`: narrow token ids and boundaries). The other
per-token fields are derived from it on first use, on the batch's device.

All tensors of a batch lie one after the other in one buffer of bytes, so a batch is one copy to a
device: every copy costs a launch and a DMA set-up, and memory is page-locked block by block.
Consumers get views of the buffer, before and after the copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from streampack.window.packed_rows import PackedRows, derive_fields

#: Prefixes of tensor names, one for each kind of field.
TOKEN_FIELD, DOCUMENT_FIELD, OF_MEDIA = "token_field ", "document_field ", "media "


def compact_tensors(packed: PackedRows) -> dict[str, Tensor]:
    """Return the compact form as tensors that share its memory."""
    # Torch has few operations on unsigned integers, so ids travel as signed integers of the same
    # width and are widened with a mask.
    signed = np.int16 if packed.tokens.dtype == np.uint16 else np.int32
    tensors = {
        "tokens": torch.from_numpy(packed.tokens.view(signed)),
        "cu_seqlens": torch.from_numpy(packed.cu_seqlens),
        "boundaries": torch.from_numpy(packed.boundaries),
        "piece": torch.from_numpy(packed.piece),
        "source_ids": torch.from_numpy(packed.source_ids),
    }
    if packed.uncut is not None:
        tensors["uncut"] = torch.from_numpy(packed.uncut)
    if packed.loss_mask is not None:
        tensors["loss_mask"] = torch.from_numpy(packed.loss_mask)
    for kind, fields in (
        (TOKEN_FIELD, packed.token_fields),
        (DOCUMENT_FIELD, packed.document_fields),
    ):
        for name, values in fields.items():
            tensors[kind + name] = torch.from_numpy(values)
    for kind, part in packed.attached.items():
        for name, values in part.tensors().items():
            tensors[f"{kind} {name}"] = torch.from_numpy(values)
    return tensors


def fields_on_host(packed: PackedRows) -> dict[str, Tensor]:
    """Derive the per-token fields in one compiled pass on the CPU."""
    wide, document_ids = derive_fields(packed)
    ids, positions, labels = map(torch.from_numpy, wide)  # half the time of `unbind`
    return {
        "input_ids": ids,
        "position_ids": positions,
        "labels": labels,
        "document_ids": torch.from_numpy(document_ids),
    }


def fields_on_device(compact: dict[str, Tensor], rows: int, seq_len: int) -> dict[str, Tensor]:
    """Derive the per-token fields by tensor operations on any device, without synchronising."""
    slots = rows * seq_len
    tokens = compact["tokens"]
    ids = tokens.to(torch.int64) & ((1 << (8 * tokens.element_size())) - 1)
    cu_seqlens, boundaries = compact["cu_seqlens"], compact["boundaries"]
    positions = positions_in(cu_seqlens, slots)
    uncut = label_positions(compact, slots)
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


def label_positions(compact: dict[str, Tensor], slots: int) -> Tensor:
    """Return each slot's position in its segment before `limit_context`, (T,) int64."""
    return positions_in(compact.get("uncut", compact["cu_seqlens"]), slots)


def positions_in(ends: Tensor, slots: int) -> Tensor:
    """Return each slot's position in its segment, (T,) int64; segments end at `ends`, (n + 1,)."""
    starts = torch.repeat_interleave(ends[:-1], ends.diff(), output_size=slots)
    return torch.arange(slots, device=ends.device) - starts


_ALIGN = 64  # in bytes; a cache line, more than any dtype needs


class _Place(NamedTuple):
    start: int
    stop: int
    dtype: torch.dtype
    shape: torch.Size


class Staged(NamedTuple):
    """Tensors in one buffer.

    Attributes:
        buffer: (bytes,) uint8, on any device.
        places: byte range, dtype and shape of each tensor, by name.
    """

    buffer: Tensor
    places: Mapping[str, _Place]

    def views(self) -> dict[str, Tensor]:
        """Return the tensors by name, as views of the buffer."""
        return {
            name: self.buffer[place.start : place.stop].view(place.dtype).view(place.shape)
            for name, place in self.places.items()
        }


def stage(tensors: Mapping[str, Tensor], *, pin: bool) -> Staged:
    """Copy tensors on the host into one buffer, page-locked if `pin`."""
    places: dict[str, _Place] = {}
    end = 0
    for name, tensor in tensors.items():
        start = -(-end // _ALIGN) * _ALIGN
        end = start + tensor.nbytes
        places[name] = _Place(start, end, tensor.dtype, tensor.shape)
    # Torch caches freed page-locked blocks and reuses them only after copies from them are done.
    staged = Staged(torch.empty(end, dtype=torch.uint8, pin_memory=pin), places)
    for name, view in staged.views().items():
        view.copy_(tensors[name])
    return staged
