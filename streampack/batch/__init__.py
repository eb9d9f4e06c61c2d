"""The batch, and every form that a kernel, a trainer or a person takes it in.

`packed_batch` has the class, `tensors` what it holds and how that moves. Each form is a function,
and a method of the class. Nothing here knows where batches come
from, or in which order.
"""

from streampack.batch.packed_batch import BatchGroup, Item, PackedBatch

__all__ = ["BatchGroup", "Item", "PackedBatch"]
