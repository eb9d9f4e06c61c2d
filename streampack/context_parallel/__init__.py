"""Ranks that share a batch: groups of ranks, and the run of their common lanes."""
