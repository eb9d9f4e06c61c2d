"""What a run will be, from a sample of lengths: packing, sizes, batches, the best strategy."""
