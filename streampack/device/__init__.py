"""Batches on their way to a device: one buffer, copied while the loop computes.

Knows tensors and streams of a device; it does not know what the tensors mean.
"""
