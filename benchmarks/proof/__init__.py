"""The worth of packing on one GPU: `python -m benchmarks.gpu --proof`, in ten minutes."""
