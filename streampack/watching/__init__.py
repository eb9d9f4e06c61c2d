"""Watching a loop: how long it waits for batches, for which stage, and on which rank."""
