"""Buckets: rows of several lengths, and the schedule that says which one is due.

Knows lengths and shares; it does not know tokens, lanes or ranks.
"""

from streampack.packing.buckets.decomposition import Decomposition
from streampack.packing.buckets.packer import Buckets
from streampack.packing.buckets.schedule import Curriculum

__all__ = ["Buckets", "Curriculum", "Decomposition"]
