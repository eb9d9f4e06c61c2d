"""Token ids with labels or a loss mask, of a chat record that is tokenized already.

A record that holds none raises `BrokenDocumentError`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.reading.records import BrokenDocumentError, flags_of, ids_of, require_field

__all__ = ["labelled_ids_of"]

#: The label of a token without loss, as `torch.nn.CrossEntropyLoss` has it.
IGNORED = -100


def labelled_ids_of(record: Mapping[str, Any]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """(T,) "input_ids" and (T,) where they count, by "loss_mask" or by "labels"."""
    require_field(record, "input_ids")
    ids = ids_of(record, "input_ids")
    if record.get("loss_mask") is not None:
        mask = flags_of(record, "loss_mask", len(ids))
    elif record.get("labels") is not None:
        mask = _labels(record["labels"], ids)
    else:
        raise BrokenDocumentError('has neither "labels" nor "loss_mask" beside "input_ids"')
    if not mask.any():
        raise BrokenDocumentError("has no token that carries loss")
    return ids, mask


def _labels(values: Any, ids: NDArray[np.uint32]) -> NDArray[np.bool_]:
    try:
        labels = np.frombuffer(array("q", values if isinstance(values, list) else ()), np.int64)
    except (TypeError, OverflowError) as error:
        raise BrokenDocumentError(f'has a wrong number in "labels" ({error})') from None
    if len(labels) != len(ids):
        raise BrokenDocumentError(f"has {len(ids)} ids and {len(labels)} labels")
    mask: NDArray[np.bool_] = labels != IGNORED
    if (labels[mask] != ids[mask]).any():
        place = int(np.flatnonzero(mask & (labels != ids))[0])
        raise BrokenDocumentError(
            f"has the label {labels[place]} at token {place}, whose id is {ids[place]}; a label is "
            f"the token's own id or {IGNORED} (it is the model that shifts)"
        )
    return mask
