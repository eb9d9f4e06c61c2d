"""Records of several sequences as trees: what they begin with alike is laid out once.

Knows ids and the sequences of a record; it does not know rows, packers or tensors. Only runs with
``layout="tree"`` import it.
"""
