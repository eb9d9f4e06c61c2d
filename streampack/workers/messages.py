"""Messages of workers: the items of lanes as bytes.

Most of the cost of a batch between processes is pickling its arrays and counts one by one. So they
are sent as their bytes, in a plain list.
"""

from __future__ import annotations

import pickle
from operator import attrgetter
from typing import Any

import numpy as np

from streampack.lane.state import LaneBatch, LaneEnd, SavedStart
from streampack.packing.plan import PackingStats
from streampack.window.packed_rows import PackedRows

#: Message of a worker that has sent all of its items.
END = b""
_SENT = SavedStart({})  # placeholder for a start, which is sent with its first item
_counts = attrgetter(*PackingStats.__slots__)


def encode(item: LaneBatch | LaneEnd, state: dict[str, Any] | None, send_s: float) -> bytes:
    """Return the message of an item.

    Args:
        item: the item.
        state: state at its start, if no item with this start was sent.
        send_s: seconds that encoding the item before took.
    """
    values: Any = item._replace(start=_SENT)
    if isinstance(item, LaneBatch):
        values = [*values._replace(rows=tuple(map(_flat, item.rows)))]
    return pickle.dumps((values, state, send_s), protocol=5)


def decode(item: Any) -> LaneBatch | LaneEnd:
    """Return the item of a message, with arrays that the loop may write."""
    if isinstance(item, LaneEnd):
        return item
    lane_batch = LaneBatch(*item)
    return lane_batch._replace(rows=PackedRows(*map(_whole, lane_batch.rows)))


def _flat(value: Any) -> Any:
    """Return a pair of the bytes of an array and its dtype, or of counts and None."""
    if type(value) is np.ndarray:
        if value.ndim == 1 and value.size and value.dtype.isbuiltin and value.flags.contiguous:
            return pickle.PickleBuffer(value), value.dtype.str  # type: ignore[arg-type]
    elif isinstance(value, PackingStats):
        return _counts(value), None
    return value


def _whole(value: Any) -> Any:
    if type(value) is not tuple:
        return value
    content, dtype = value
    return PackingStats(*content) if dtype is None else np.frombuffer(content, dtype)
