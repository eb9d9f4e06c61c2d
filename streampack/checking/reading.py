"""Batches of any library in one form: ids, targets, positions and claimed boundaries by slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.checking.masks import Mask, read_mask
from streampack.errors import ConfigError

NO_TARGET = -100

#: Names of the entries of a batch, the first that is there.
TOKENS = ("input_ids", "tokens", "inputs", "input", "idx")
LABELS = ("shift_labels", "labels", "targets", "target", "target_ids", "label")
POSITIONS = (
    "position_ids",
    "input_pos",
    "positions",
    "inputs_position",
    "inputs_positions",
    "position",
)
SEGMENTS = (
    "seq_idx",
    "inputs_segmentation",
    "inputs_segment_ids",
    "segment_ids",
    "document_ids",
    "doc_ids",
    "seq_ids",
)
BOUNDARIES = (
    "cu_seqlens_q_padded",
    "cu_seq_lens_q",
    "cu_seqlens_q",
    "cu_seqlens",
    "cu_seq_lens",
    "cu_seqlens_padded",
)
LONGEST = ("max_length_q", "max_seqlen_q", "max_seqlen", "max_length")
LOSS_MASKS = ("loss_mask", "targets_segmentation", "loss_weights")
MASKS = ("attention_mask", "attn_mask", "mask", "block_mask")
#: Labels under these names are already the next token of each slot.
SHIFTED = ("shift_labels", "targets", "target", "target_ids", "label")
_READ = {*TOKENS, *LABELS, *POSITIONS, *SEGMENTS, *BOUNDARIES, *LONGEST, *LOSS_MASKS, *MASKS}
_READ |= {"padding_mask"}


@dataclass
class View:
    """A batch in one form. Arrays are (rows, slots); absent ones are None.

    Attributes:
        tokens: int64 ids.
        targets: int64, the id that each slot learns; -100 for none. None if the batch has no
            labels.
        shifted: True if the batch had the next token of each slot as label.
        next_tokens: int64, the id after each slot; -100 at the end of a row.
        positions: int64.
        segments: int64, different for neighbouring slots of separate segments.
        mask: a mask of queries and keys.
        padding: bool, slots that a mask of the batch declares as padding.
        claimed_by: name of the entry that tells the boundaries; "" if there is none.
        cu_seqlens: boundaries in the flattened rows, as they are.
        longest: declared length of the longest segment.
        has_padding_mask: True if the batch tells which slots are padding.
        unread: names of entries that are not understood.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64] | None
    shifted: bool
    next_tokens: NDArray[np.int64]
    positions: NDArray[np.int64] | None = None
    segments: NDArray[np.int64] | None = None
    mask: Mask | None = None
    padding: NDArray[np.bool_] | None = None
    claimed_by: str = ""
    cu_seqlens: NDArray[Any] | None = None
    longest: int | None = None
    has_padding_mask: bool = False
    unread: tuple[str, ...] = ()


def array_of(value: Any) -> NDArray[Any] | None:
    """Return tensors of torch, JAX or numpy and lists of numbers as arrays, else None.

    The result is a copy, because loaders may fill one buffer with every batch.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value.clone()).numpy()
    try:
        array = np.array(value)
    except (ValueError, TypeError):
        return None
    return None if array.dtype.kind not in "biuf" else array


def is_batch(value: Any) -> bool:
    """Return True for an object that `read` understands."""
    return _entries(value) is not None


def read(batch: Any, *, shifted: bool | None = None) -> View:
    """Return a batch in one form.

    Args:
        batch: a `PackedBatch`; a dictionary; a tuple of inputs and labels; or a tensor of rows of
            ids, one longer than the model's input.
        shifted: labels are the next token of each slot. None decides by the names of entries:
            `input_ids` with `labels` are not shifted, `tokens` with `loss_mask` are.

    Raises:
        ConfigError: the batch has no token ids, or arrays that do not fit them.
    """
    entries = _entries(batch)
    if entries is None:
        raise ConfigError(
            f"A batch must be a dictionary, a pair or a tensor with token ids, got "
            f"{type_in_words(batch)}.",
            "Pass a loader of such batches, or wrap it in a generator of dictionaries with "
            "input_ids and labels.",
            setting="loader",
        )
    arrays = {name: array_of(value) for name, value in entries.items()}
    name = next(name for name in TOKENS if arrays.get(name) is not None)
    tokens = _rows(arrays[name]).astype(np.int64)
    label_name = next((key for key in LABELS if arrays.get(key) is not None), None)
    if shifted is None:
        megatron = name == "tokens" and "loss_mask" in entries
        shifted = label_name in SHIFTED or megatron or name == "input"
    shape = tokens.shape

    def rows(names: tuple[str, ...]) -> NDArray[Any] | None:
        key = next((key for key in names if arrays.get(key) is not None), None)
        return None if key is None else _shaped(arrays[key], shape, key)

    following = np.full(shape, NO_TARGET, dtype=np.int64)
    following[:, :-1] = tokens[:, 1:]
    targets = None
    if label_name is not None:
        labels = _shaped(arrays[label_name], shape, label_name).astype(np.int64)
        counts = rows(LOSS_MASKS)
        if counts is not None:
            labels = np.where(counts > 0, labels, NO_TARGET)
        if shifted:
            following[:, -1] = labels[:, -1]
            targets = labels
        else:
            targets = np.full(shape, NO_TARGET, dtype=np.int64)
            targets[:, :-1] = labels[:, 1:]
        targets = np.where(targets < 0, NO_TARGET, targets)
    elif name == "idx":  # rows of ids alone, from which a loop takes inputs and targets
        targets = following.copy()
    view = View(tokens, targets, shifted, following)
    positions = rows(POSITIONS)
    if positions is not None:
        view.positions = positions.astype(np.int64)
    _read_boundaries(view, entries, arrays, hides_true="loss_mask" in entries)
    present = [key for key, value in entries.items() if value is not None]
    view.unread = tuple(str(key) for key in present if key not in _READ)
    return view


def _read_boundaries(
    view: View,
    entries: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any] | None],
    *,
    hides_true: bool,
) -> None:
    """Set the claims of a batch: the first of its boundaries, segment ids, masks, positions."""
    shape = view.tokens.shape
    mask_name = next((name for name in MASKS if entries.get(name) is not None), None)
    flat_mask: NDArray[Any] | None = None
    if mask_name is not None:
        values = arrays.get(mask_name)
        if values is not None and values.ndim == 2 and values.shape == (shape[1],) * 2 != shape:
            values = values[None]  # one for all rows
        if values is not None and values.ndim <= 2:
            flat_mask = _shaped(values, shape, mask_name)
        else:
            source = entries[mask_name] if values is None else values
            view.mask = read_mask(source, shape, hides_true=hides_true)
    if flat_mask is not None:
        view.padding = flat_mask == 0
        view.has_padding_mask = True
    padding = arrays.get("padding_mask")
    if padding is not None:
        view.padding = _shaped(padding, shape, "padding_mask").astype(bool)
        view.has_padding_mask = True
    cu_name = next((name for name in BOUNDARIES if arrays.get(name) is not None), None)
    segment_name = next((name for name in SEGMENTS if arrays.get(name) is not None), None)
    if cu_name is not None:
        view.cu_seqlens = _flat_boundaries(arrays[cu_name], shape)
        longest = next((entries[name] for name in LONGEST if entries.get(name) is not None), None)
        view.longest = None if longest is None else int(np.max(array_of(longest)))  # type: ignore[arg-type]
        ends = view.cu_seqlens[(view.cu_seqlens > 0) & (view.cu_seqlens < view.tokens.size)]
        slots = np.arange(view.tokens.size)
        view.segments = np.searchsorted(np.unique(ends), slots, side="right").reshape(shape)
        view.claimed_by = cu_name
    elif segment_name is not None:
        view.segments = _shaped(arrays[segment_name], shape, segment_name).astype(np.int64)
        if segment_name in ("inputs_segmentation", "inputs_segment_ids"):
            view.padding, view.has_padding_mask = view.segments == 0, True
        view.claimed_by = segment_name
    elif view.mask is not None:
        view.claimed_by = mask_name or ""
    elif flat_mask is not None and flat_mask.max(initial=0) > 1:
        view.segments, view.claimed_by = flat_mask.astype(np.int64), f"{mask_name} (numbers)"
    elif flat_mask is not None:  # models that get one do not look at positions
        view.segments, view.claimed_by = np.zeros(shape, dtype=np.int64), ""
    elif view.positions is not None:
        starts = np.ones(shape, dtype=bool)
        starts[:, 1:] = view.positions[:, 1:] != view.positions[:, :-1] + 1
        view.segments, view.claimed_by = starts.cumsum(axis=1), "positions"


def _entries(batch: Any) -> Mapping[str, Any] | None:
    """Return the entries of a batch by name, or None for an object that is no batch."""
    if hasattr(batch, "make_fields"):
        return _of_packed_batch(batch)
    if hasattr(batch, "_asdict"):
        batch = batch._asdict()
    if isinstance(batch, (tuple, list)) and len(batch) > 1 and not isinstance(batch[0], list):
        inputs, labels, *others = batch
        if not isinstance(inputs, Mapping):
            inputs = {"inputs": inputs}
        if isinstance(labels, Mapping) or array_of(labels) is None:
            return None
        batch = {**inputs, "targets": labels, **_named(others, array_of(labels))}
    if not isinstance(batch, Mapping):
        array = array_of(batch) if hasattr(batch, "shape") else None
        return None if array is None or array.ndim != 2 else {"idx": array}
    return batch if any(batch.get(name) is not None for name in TOKENS) else None


def _named(others: Sequence[Any], labels: Any) -> dict[str, Any]:
    """Name the entries of a tuple behind inputs and targets: "cu_seqlens", or by their index.

    Boundaries are integers in one dimension, from 0 to the number of slots, that never decrease.
    """
    named: dict[str, Any] = {}
    for index, value in enumerate(others, 2):
        ends = array_of(value)
        if ends is not None and _are_boundaries(ends, labels.size):
            named.setdefault("cu_seqlens", ends)
        elif value is not None:
            named[f"item {index} of the tuple"] = value
    return named


def _are_boundaries(ends: NDArray[Any], size: int) -> bool:
    if ends.ndim != 1 or ends.dtype.kind not in "iu" or len(ends) < 2:
        return False
    return bool(ends[0] == 0 and ends[-1] == size and (np.diff(ends.astype(np.int64)) >= 0).all())


def _of_packed_batch(batch: Any) -> dict[str, Any]:
    entries = {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "padding_mask": batch.padding_mask,
    }
    if hasattr(batch, "tout"):  # trees: several tokens may follow a slot, so there are no labels
        return {**entries, "attention_mask": batch.mask()}
    boundaries = {"cu_seqlens": batch.cu_seqlens, "max_seqlen": batch.max_seqlen}
    return {**entries, **boundaries, "labels": batch.labels}


def _flat_boundaries(array: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return boundaries in the flattened rows; boundaries per row, (rows, n), are joined."""
    if array.ndim < 2 or array.shape[0] == 1:
        flat: NDArray[Any] = array.reshape(-1)
        return flat
    parts = [np.zeros(1, dtype=array.dtype)]
    for row, ends in enumerate(array.reshape(shape[0], -1)):
        last = np.flatnonzero(np.diff(ends) <= 0)  # the rest fills the array
        inside = ends[1 : last[0] + 1] if len(last) else ends[1:]
        parts.append(inside + row * shape[1])
    return np.concatenate(parts)


def _rows(array: Any) -> NDArray[Any]:
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2:
        raise ConfigError(
            f"Token ids must be (rows, slots) or (slots,), got the shape {array.shape}.",
            "Pass batches without further dimensions.",
            setting="loader",
        )
    rows: NDArray[Any] = array
    return rows


def _shaped(array: Any, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    if array.ndim == 3 and array.shape[0] in (3, 4):  # positions of text, height, width
        array = array[0]
    if array.size != shape[0] * shape[1]:
        raise ConfigError(
            f"{name} must have the shape of the token ids, {shape}, got {array.shape}.",
            "Pass batches in which both have an entry for each slot.",
            setting="loader",
        )
    reshaped: NDArray[Any] = array.reshape(shape)
    return reshaped


Reader = Callable[[Any], View]
