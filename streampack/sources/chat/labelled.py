"""Token ids with labels or a loss mask, of a chat record that is tokenized already.

A record that holds none raises `BrokenDocumentError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.reading.loss_masks import mask_of, mask_of_labels
from streampack.reading.records import BrokenDocumentError, ids_of, numbers_of, require_field

__all__ = ["labelled_ids_of"]


def labelled_ids_of(record: Mapping[str, Any]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """(T,) "input_ids" and (T,) where they count, by "loss_mask" or by "labels"."""
    require_field(record, "input_ids")
    ids = ids_of(record, "input_ids")
    if record.get("loss_mask") is not None:
        mask = mask_of(numbers_of(record, "loss_mask", len(ids), "mask values"), ids, "loss_mask")
    elif record.get("labels") is not None:
        mask = mask_of_labels(numbers_of(record, "labels", len(ids), "labels"), ids)
    else:
        raise BrokenDocumentError('has neither "labels" nor "loss_mask" beside "input_ids"')
    if not mask.any():
        raise BrokenDocumentError("has no token that carries loss")
    return ids, mask
