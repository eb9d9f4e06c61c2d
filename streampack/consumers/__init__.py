"""What kernels and trainers take, made from a packed batch."""
