"""What kernels and trainers take, made from a packed batch."""

from streampack.consumers.adapters import BatchAdapters
from streampack.consumers.misuse import refuse_collating

__all__ = ["BatchAdapters", "refuse_collating"]
