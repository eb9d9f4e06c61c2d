"""Prefix trees: the sequences of a record share the slots of their common prefixes.

They see ids and the sequences of a record, no packers or tensors. Only runs with ``layout="tree"``
import this package.
"""
