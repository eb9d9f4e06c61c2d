"""Stop and restart any training command, and compare its batches, losses and states."""
