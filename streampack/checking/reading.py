"""Batches of any library in one form: ids, targets, positions and claimed boundaries by slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.checking.entries import array_of, entries_of, in_words, tokens_of
from streampack.checking.masks import Mask, read_mask
from streampack.errors import ConfigError

NO_TARGET = -100

#: Labels under these names are already the next token of each slot.
SHIFTED = (
    "shift_labels",
    "targets",
    "target",
    "target_ids",
    "target_tokens",
    "label_ids",
    "label",
)
#: Names of the entries of a batch, the first that is there.
LABELS = ("shift_labels", "labels", *SHIFTED[1:])
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
    "sequence_id",
)
BOUNDARIES = (
    "cu_seqlens_q_padded",
    "cu_seq_lens_q",
    "cu_seqlens_q",
    "cu_seqlens",
    "cu_seq_lens",
    "cu_seqlens_padded",
)
#: Boundaries of keys, which must equal the boundaries of queries.
OF_KEYS = ("cu_seqlens_kv_padded", "cu_seq_lens_k", "cu_seqlens_k", "cu_seqlens_kv")
#: Lengths of documents by row, filled with zeros.
LENGTHS = ("doc_lens", "packed_seq_lengths", "seq_lens", "seq_lengths")
LONGEST = ("max_length_q", "max_seqlen_q", "max_seqlen", "max_length", "max_doc_lens")
LONGEST_OF_KEYS = ("max_length_k", "max_seqlen_k", "max_seqlen_kv")
LOSS_MASKS = (
    "loss_mask",
    "label_mask",
    "loss_masks",
    "targets_segmentation",
    "loss_weights",
    "loss_weight",
)
MASKS = ("attention_mask", "attn_mask", "mask", "block_mask", "input_mask")


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
        longest: declared lengths of the longest segment, of queries and of keys, each with the
            boundaries that it belongs to.
        has_padding_mask: True if the batch tells which slots are padding.
        further: other claims of boundaries, by name, in the form of `segments`.
        unread: names of entries that are not understood, or not compared.
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
    longest: tuple[tuple[int, NDArray[Any]], ...] = ()
    has_padding_mask: bool = False
    further: tuple[tuple[str, NDArray[np.int64]], ...] = ()
    unread: tuple[str, ...] = ()


class _Entries:
    """The entries of a batch, with the names that were used."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.used: set[str] = set()
        self._arrays: dict[str, NDArray[Any] | None] = {}

    def array(self, name: str) -> NDArray[Any] | None:
        """Return an entry as an array; None if it is absent or has no numbers."""
        if name not in self._arrays:
            value = self.values.get(name)
            self._arrays[name] = None if value is None else array_of(value)
        return self._arrays[name]

    def first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """Return the first of the names that is an array; "" and None without."""
        for name in names:
            array = self.array(name)
            if array is not None:
                self.used.add(name)
                return name, array
        return "", None

    def all(self, names: tuple[str, ...]) -> list[tuple[str, NDArray[Any]]]:
        """Return all of these entries that are arrays."""
        arrays = [(name, array) for name in names if (array := self.array(name)) is not None]
        self.used |= {name for name, _ in arrays}
        return arrays

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of the other entries."""
        present = [key for key, value in self.values.items() if value is not None]
        return tuple(str(key) for key in present if key not in self.used)


def is_batch(value: Any) -> bool:
    """Return True for an object that `read` understands."""
    return entries_of(value) is not None


def read(batch: Any, *, shifted: bool | None = None) -> View:
    """Return a batch in one form.

    Args:
        batch: a `PackedBatch`; a dictionary or an object with names, such as a dataclass; a tuple
            of inputs and labels; or a tensor of rows of ids, one longer than the model's input.
        shifted: labels are the next token of each slot. None decides by the names of entries:
            `input_ids` with `labels` are not shifted, `tokens` with `loss_mask` are.

    Raises:
        ConfigError: the batch has no token ids, or arrays that do not fit them.
    """
    values = entries_of(batch)
    if values is None:
        raise ConfigError(
            f"A batch must be a dictionary, a pair or a tensor with token ids, got "
            f"{in_words(batch)}.",
            "Pass a loader of such batches, or wrap it in a generator of dictionaries with "
            "input_ids and labels.",
            setting="loader",
        )
    entries = _Entries(values)
    name, array = entries.first((tokens_of(values),))
    tokens = _rows(array).astype(np.int64)
    view = View(tokens, None, False, np.full(tokens.shape, NO_TARGET, dtype=np.int64))
    view.next_tokens[:, :-1] = tokens[:, 1:]
    _read_labels(view, entries, name, shifted)
    position_name, positions = entries.first(POSITIONS)
    if positions is not None:
        view.positions = _shaped(positions, tokens.shape, position_name).astype(np.int64)
    _read_boundaries(view, entries)
    view.unread = entries.unread
    return view


def _read_labels(view: View, entries: _Entries, name: str, shifted: bool | None) -> None:
    shape = view.tokens.shape
    label_name, array = entries.first(LABELS)
    if shifted is None:
        megatron = name == "tokens" and "loss_mask" in entries.values
        rows = name in ("idx", "text")  # labels of rows from which a loop takes both
        shifted = (label_name in SHIFTED or megatron or name == "input") and not rows
    view.shifted = shifted
    if label_name:
        labels = _shaped(array, shape, label_name).astype(np.int64)
        mask_name, counts = entries.first(LOSS_MASKS)
    else:
        mask_name, counts = entries.first(("label_mask",))  # of labels that the loop copies
        if not mask_name:
            if name in ("idx", "text"):
                view.targets = view.next_tokens.copy()
            return
        labels, view.shifted = view.tokens, False
    if counts is not None:
        labels = np.where(_shaped(counts, shape, mask_name) > 0, labels, NO_TARGET)
    if view.shifted:
        view.next_tokens[:, -1] = labels[:, -1]
        targets = labels
    else:
        targets = np.full(shape, NO_TARGET, dtype=np.int64)
        targets[:, :-1] = labels[:, 1:]
    view.targets = np.where(targets < 0, NO_TARGET, targets)


def _read_boundaries(view: View, entries: _Entries) -> None:
    """Set the claims of a batch: the first of its boundaries, segment ids, masks, positions."""
    shape = view.tokens.shape
    mask_name, flat_mask = _read_masks(view, entries)
    _read_cu_seqlens(view, entries)
    claims = (
        [] if view.cu_seqlens is None else [(view.claimed_by, _segments_of(view.cu_seqlens, shape))]
    )
    for name, ends in entries.all(OF_KEYS) if claims else ():
        claims.append((name, _segments_of(_flat_boundaries(ends, shape), shape)))
    for name, array in entries.all(SEGMENTS):
        segments = _shaped(array, shape, name).astype(np.int64)
        if name in ("inputs_segmentation", "inputs_segment_ids", "sequence_id"):
            fill = -1 if name == "sequence_id" else 0
            view.padding, view.has_padding_mask = segments == fill, True
        claims.append((name, segments))
    if claims:
        (view.claimed_by, view.segments), *further = claims
        view.further = tuple(further)
        if view.mask is not None:  # models read one of both
            entries.used.discard(mask_name)
    elif view.mask is not None:
        view.claimed_by = mask_name
    elif flat_mask is not None and flat_mask.max(initial=0) > 1:
        view.segments, view.claimed_by = flat_mask.astype(np.int64), f"{mask_name} (numbers)"
    elif flat_mask is not None:  # models that get one do not look at positions
        view.segments, view.claimed_by = np.zeros(shape, dtype=np.int64), ""
    elif view.positions is not None:
        starts = np.ones(shape, dtype=bool)
        starts[:, 1:] = view.positions[:, 1:] != view.positions[:, :-1] + 1
        view.segments, view.claimed_by = starts.cumsum(axis=1), "positions"


def _read_masks(view: View, entries: _Entries) -> tuple[str, NDArray[Any] | None]:
    """Set the mask of queries and keys, and padding; return the name and a mask of slots."""
    shape = view.tokens.shape
    name = next((name for name in MASKS if entries.values.get(name) is not None), "")
    values = entries.array(name) if name else None
    if values is not None and values.size == 1 != view.tokens.size:
        name, values = "", None  # a placeholder
    entries.used.add(name)
    flat_mask: NDArray[Any] | None = None
    if values is not None and values.ndim == 2 and values.shape == (shape[1],) * 2 != shape:
        values = values[None]  # one for all rows
    if values is not None and (values.ndim <= 2 or values.size == view.tokens.size):
        flat_mask = _shaped(values, shape, name)
        view.padding, view.has_padding_mask = flat_mask == 0, True
    elif name:
        source = entries.values[name] if values is None else values
        view.mask = read_mask(source, shape, hides_true="loss_mask" in entries.values)
    padding_name, padding = entries.first(("padding_mask",))
    if padding is not None:
        view.padding = _shaped(padding, shape, padding_name).astype(bool)
        view.has_padding_mask = True
    return name, flat_mask


def _read_cu_seqlens(view: View, entries: _Entries) -> None:
    """Set boundaries, from themselves or from lengths, and the longest segment."""
    shape = view.tokens.shape
    name, ends = entries.first(BOUNDARIES)
    if name:
        _, end = entries.first((f"{name}_argmin",))
        if end is not None and shape[0] == 1:  # the rest fills the array
            ends = ends.reshape(-1)[: int(end.reshape(-1)[0])]
        view.cu_seqlens, view.claimed_by = _flat_boundaries(ends, shape), name
    else:
        for name in LENGTHS:
            lengths = entries.array(name)
            if lengths is not None and _fill_rows(lengths, shape):
                entries.used.add(name)
                ends = np.concatenate(([0], lengths[lengths > 0].cumsum())).astype(np.int32)
                view.cu_seqlens, view.claimed_by = ends, name
                break
    if view.cu_seqlens is None:
        return
    _, of_keys = entries.first(OF_KEYS)
    of_keys = view.cu_seqlens if of_keys is None else _flat_boundaries(of_keys, shape)
    for names, of_names in ((LONGEST, view.cu_seqlens), (LONGEST_OF_KEYS, of_keys)):
        _, longest = entries.first(names)
        if longest is not None:
            view.longest += ((int(longest.max()), of_names),)


def _fill_rows(lengths: NDArray[Any], shape: tuple[int, ...]) -> bool:
    """Return True for lengths that add up to each row, or to all of them."""
    if lengths.dtype.kind not in "iu" or (lengths < 0).any():
        return False
    by_row = lengths.ndim == 2 and len(lengths) == shape[0]
    if by_row:
        return bool((lengths.sum(axis=1) == shape[1]).all())
    return lengths.ndim == 1 and bool(lengths.sum() == shape[0] * shape[1])


def _segments_of(ends: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.int64]:
    size = shape[0] * shape[1]
    inner = np.unique(ends[(ends > 0) & (ends < size)])
    return np.searchsorted(inner, np.arange(size), side="right").reshape(shape)


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
    rows: NDArray[Any] = array.reshape(-1, array.shape[-1])  # also of microbatches in one array
    return rows


def _shaped(array: Any, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    full = array.size == shape[0] * shape[1]
    if (
        not full and array.ndim == 3 and array.shape[0] in (3, 4)
    ):  # positions of text, height, width
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
