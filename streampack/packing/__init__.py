"""Packing, pure: document lengths in, plans out; numpy and numba only."""

from streampack.packing.composition import Composition
from streampack.packing.concat import Concat
from streampack.packing.decreasing import BestFitDecreasing, FirstFitDecreasing
from streampack.packing.packer import Overflow, Packer
from streampack.packing.pad import Pad
from streampack.packing.plan import Plan, check_plan

__all__ = [
    "BestFitDecreasing",
    "Composition",
    "Concat",
    "FirstFitDecreasing",
    "Overflow",
    "Packer",
    "Pad",
    "Plan",
    "check_plan",
]
