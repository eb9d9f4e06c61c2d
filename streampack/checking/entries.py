"""The entries of a batch by name, whatever object it is: dictionaries, tuples, arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words

#: Names of token ids, the first that has integers.
TOKENS = ("input_ids", "tokens", "inputs", "input", "idx", "input_tokens", "text")
#: Views of one row, each shifted by one more token, that an array may have as its last dimension.
MOST_VIEWS = 8


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


def entries_of(batch: Any) -> Mapping[str, Any] | None:
    """Return the entries of a batch by name, or None for an object that is no batch."""
    if hasattr(batch, "make_fields"):
        return _of_packed_batch(batch)
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_asdict"):
        return _of_tuple(batch)
    named = _named(batch)
    if named is None:
        return _of_array(batch)
    entries = _without_nesting(named)
    return entries if tokens_of(entries) else None


def tokens_of(entries: Mapping[str, Any]) -> str:
    """Return the name of the token ids, or ""."""
    return next((name for name in TOKENS if _is_ids(entries.get(name))), "")


def in_words(batch: Any) -> str:
    """Return what a batch is, for errors: "a dictionary with chosen_ids and rejected_ids"."""
    named = None if isinstance(batch, (tuple, list)) else _named(batch)
    if named is not None:
        return f"a dictionary with {', '.join(map(str, named)) or 'nothing'}"
    if isinstance(batch, (tuple, list)) and batch:
        kind = type(batch).__name__
        return f"a {kind} of {len(batch)} items, the first {type_in_words(batch[0])}"
    shape = getattr(batch, "shape", None)
    return type_in_words(batch) + ("" if shape is None else f" of the shape {tuple(shape)}")


def _named(batch: Any) -> Mapping[str, Any] | None:
    """Return dictionaries and objects with names as a mapping, such as dataclasses."""
    if isinstance(batch, Mapping):
        return batch
    if hasattr(batch, "_asdict"):
        names: Mapping[str, Any] = batch._asdict()
        return names
    if is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in fields(batch)}
    if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        return {key: batch[key] for key in batch.keys()}  # noqa: SIM118, as a TensorDict
    return None


def _is_ids(value: Any) -> bool:
    if getattr(value, "is_nested", False):
        return True
    array = None if value is None else array_of(value)
    return array is not None and array.ndim > 0 and array.dtype.kind in "iu"


def _without_nesting(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return jagged tensors as their values in one row, with the boundaries of their rows."""
    nested = {key: value for key, value in entries.items() if getattr(value, "is_nested", False)}
    if not nested:
        return entries
    rows = {key: list(value.detach().unbind()) for key, value in nested.items()}
    first = next(iter(rows.values()))
    ends = np.cumsum([0, *(len(row) for row in first)]).astype(np.int32)
    joined = {key: [token for row in parts for token in row.tolist()]
              for key, parts in rows.items()}  # fmt: skip
    return {"cu_seqlens": ends, **entries, **joined}


def _of_array(batch: Any) -> Mapping[str, Any] | None:
    if getattr(batch, "is_nested", False):
        return _without_nesting({"idx": batch})
    array = array_of(batch) if hasattr(batch, "shape") else None
    if array is None or array.ndim < 2 or array.dtype.kind not in "iu":
        return None
    views = array.shape[-1]
    if array.ndim > 2 and 1 < views <= MOST_VIEWS:
        first, second = array[..., 0], array[..., 1]
        if np.array_equal(first[..., 1:], second[..., :-1]):
            more = {f"view {n} of the rows": array[..., n] for n in range(2, views)}
            return {"inputs": first, "targets": second, **more}
    return {"idx": array}


def _of_tuple(batch: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return inputs, targets and boundaries of a tuple; other items are named by their index."""
    if len(batch) < 2 or isinstance(batch[0], (list, tuple)):
        return None
    if _named(batch[1]) is not None and entries_of(batch[1]) is not None:
        return None  # batches of their own
    entries = entries_of(batch[0])
    if entries is None and _is_ids(batch[0]):
        entries = {"idx": batch[0]}
    if entries is None or hasattr(batch[0], "make_fields"):
        return None
    tokens = array_of(entries[tokens_of(entries)])
    assert tokens is not None
    items = {number: item for number, item in enumerate(batch[1:], 1) if item is not None}
    arrays = {number: array for number, item in items.items()
              if (array := array_of(item)) is not None}  # fmt: skip
    targets = next((number for number in arrays if _are_targets(arrays[number], tokens)), 0)
    if targets and "targets" not in entries:
        entries = {
            **({"inputs": tokens} if "idx" in entries else entries),
            "targets": items[targets],
        }
    elif _named(batch[0]) is None and tokens.ndim < 2:
        return None  # two rows, or loaders
    else:
        targets = len(batch)
    for number, item in items.items():
        if number == targets:
            continue
        array = arrays.get(number)
        name = "" if array is None else _name_of(array, tokens, behind=number > targets)
        entries = {
            **entries,
            f"item {number} of the tuple" if not name or name in entries else name: item,
        }
    return entries


def _name_of(array: NDArray[Any], tokens: NDArray[Any], *, behind: bool) -> str:
    """Return the name of an array beside ids and targets, or "": a mask, positions, boundaries.

    Args:
        array: the array.
        tokens: ids of the batch.
        behind: the array comes behind the targets, where Megatron-LM has the mask of the loss.
    """
    if array.size == tokens.size > 1:
        if ((array == 0) | (array == 1)).all():
            return "loss_mask" if behind else "attention_mask"
        rows = array.reshape(-1, array.shape[-1])
        counts = (rows[:, 1:] == rows[:, :-1] + 1) | (rows[:, 1:] == 0)
        return "position_ids" if array.dtype.kind in "iu" and counts.all() else ""
    if array.ndim == 4 and array.shape[-2:] == (tokens.shape[-1],) * 2:
        return "attention_mask"
    return "cu_seqlens" if _are_boundaries(array, tokens.size) else ""


def _are_targets(array: Any, tokens: NDArray[Any]) -> bool:
    """Return True for ids of the same number as the tokens; a mask of ones and zeros is none."""
    if array.size != tokens.size or array.dtype.kind not in "iu":
        return False
    return bool(((array != 0) & (array != 1)).any() or tokens.max(initial=0) <= 1)


def _are_boundaries(ends: Any, size: int) -> bool:
    if ends.ndim != 1 or len(ends) < 2 or ends.dtype.kind not in "iu":
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
