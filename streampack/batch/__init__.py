"""Packed batches, and their forms for kernels, models, trainers and people.

`packed_batch` has the class, `tensors` its tensors and their copies to a device, `batch_group` the
batches of one step. Each form is a function here and a method of the class. This package is
independent of the pipeline that makes batches and of their order.
"""

from streampack.batch.batch_group import BatchGroup, Item
from streampack.batch.packed_batch import PackedBatch

__all__ = ["BatchGroup", "Item", "PackedBatch"]
