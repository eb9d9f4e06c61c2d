"""Batches of several lanes in rotation, made in this process or by worker processes."""
