"""What kernels and trainers take, made from a packed batch."""

from streampack.consumers.adapters import BatchAdapters

__all__ = ["BatchAdapters"]
