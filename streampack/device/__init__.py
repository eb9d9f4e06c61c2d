"""Batches on their way to a device: all tensors of one in one buffer.

Knows tensors and streams of a device; it does not know what the tensors mean.
"""
