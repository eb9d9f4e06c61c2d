"""What a run will be, from a sample of lengths: packing, sizes, batches, the best strategy.

Knows lengths and plans of a sample; it does not know the run that follows.
"""
