"""Masks of queries and keys in one form, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError

#: Function from a row to its (slots, slots) bool mask, True where a query sees a key.
Mask = Callable[[int], NDArray[np.bool_]]


def read_mask(source: Any, shape: tuple[int, ...], *, hides_true: bool) -> Mask:
    """Return a mask of a batch as a function of the row.

    Args:
        source: an array, (rows, slots, slots) or (rows, 1, slots, slots), bool or additive; or a
            `BlockMask` of FlexAttention.
        shape: rows and slots of the batch.
        hides_true: True in a bool mask hides a key, as in Megatron-LM.

    Raises:
        ConfigError: the mask has another shape.
    """
    rows, slots = shape
    if hasattr(source, "mask_mod"):
        return _of_block_mask(source.mask_mod, slots)
    array = np.asarray(source)
    if array.ndim == 4:
        array = array[:, 0]
    if array.shape[-2:] != (slots, slots) or array.shape[0] not in (1, rows):
        raise ConfigError(
            f"attention_mask must be (rows, slots) or (rows, 1, slots, slots) for {rows} rows of "
            f"{slots} slots, got {np.shape(source)}.",
            "Pass batches with a mask of all slots.",
            setting="loader",
        )
    if array.dtype.kind == "f":
        array = array >= 0 if array.min() < 0 else array > 0
    elif hides_true:
        array = ~array.astype(bool)
    return lambda row: array[row % len(array)].astype(bool)


def _of_block_mask(mask_mod: Any, slots: int) -> Mask:
    def of_row(row: int) -> NDArray[np.bool_]:
        import torch

        zero = torch.tensor(0)
        position = torch.arange(slots)
        seen = mask_mod(torch.tensor(row), zero, position[:, None], position[None, :])
        expanded: NDArray[np.bool_] = seen.expand(slots, slots).numpy()
        return expanded

    return of_row
