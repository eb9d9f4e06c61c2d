"""Processes of a job: the topology of ranks, their collectives, and a shared listing of shards.

They see ranks, counts and batch indices, not the contents of batches or shards.
"""
