"""The look-ahead window: holds documents, has a packer select rows, and gathers batches.

It depends on documents, plans and tokens, not on sources, states or particular packers. Pure: numpy
and compiled kernels, no I/O and no torch.
"""
