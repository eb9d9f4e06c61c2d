"""The tensors of a packed batch, and their way to a device, all in one buffer."""
