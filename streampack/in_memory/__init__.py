"""Packing of documents in memory: from lengths to each rank's micro-batches and their batches.

This package handles lengths, costs and the caller's arrays. It is independent of files, lanes and
states.
"""
