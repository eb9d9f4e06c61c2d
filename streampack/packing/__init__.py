"""Packing, pure: document lengths in, plans out; numpy and numba only."""

from streampack.packing.buckets.packer import Buckets, MultiBucket
from streampack.packing.buckets.schedule import Curriculum
from streampack.packing.composition import Composition
from streampack.packing.concat import Concat
from streampack.packing.crop import BestFitCrop
from streampack.packing.decreasing import BestFitDecreasing, FirstFitDecreasing
from streampack.packing.packer import Online, Overflow, Packer
from streampack.packing.pad import Pad
from streampack.packing.plan import Plan, check_plan
from streampack.packing.seamless import Seamless

__all__ = [
    "BestFitCrop",
    "BestFitDecreasing",
    "Buckets",
    "Composition",
    "Concat",
    "Curriculum",
    "FirstFitDecreasing",
    "MultiBucket",
    "Online",
    "Overflow",
    "Packer",
    "Pad",
    "Plan",
    "Seamless",
    "check_plan",
]
