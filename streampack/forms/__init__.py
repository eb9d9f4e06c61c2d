"""Forms of a batch for kernels, models, devices and people; methods of `PackedBatch`."""
