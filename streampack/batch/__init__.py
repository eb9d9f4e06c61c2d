"""The batch, and every form that a kernel, a trainer or a person takes it in.

`packed_batch` has the class, `tensors` and `staging` what it holds and how that moves. Each form is
a function in a file of its own, and a method of the class. Nothing here knows where batches come
from, or in which order.
"""

from streampack.batch.group import BatchGroup
from streampack.batch.packed_batch import PackedBatch

__all__ = ["BatchGroup", "PackedBatch"]
