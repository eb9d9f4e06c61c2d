"""The look-ahead window: documents that wait, the rows that a packer chooses, batches gathered.

Knows documents, plans and tokens; it does not know sources, states or the classes of packers.
Pure: numpy and compiled kernels, no I/O and no torch.
"""
