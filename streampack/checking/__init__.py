"""Check the batches of any loader for the faults of packing."""
