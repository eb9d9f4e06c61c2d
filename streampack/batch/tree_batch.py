"""The public names of `streampack.trees.batch`."""

from streampack.trees.batch import TreeBatch

__all__ = ["TreeBatch"]
