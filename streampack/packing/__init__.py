"""Packing, pure: document lengths in, plans out; numpy and numba only.

Knows lengths, rows and what a window asks for; it does not know tokens, sources or lanes.
"""

from streampack.packing.balancing import Balance
from streampack.packing.buckets import Buckets
from streampack.packing.concat import Concat
from streampack.packing.cost import Cost
from streampack.packing.crop import BestFitCrop
from streampack.packing.curriculum import Curriculum
from streampack.packing.decreasing import BestFitDecreasing, FirstFitDecreasing
from streampack.packing.overflow import Overflow
from streampack.packing.packer import Packer
from streampack.packing.pad import Pad
from streampack.packing.plan import Composition, Plan, check_plan
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.seamless import Seamless
from streampack.packing.selection import all_rows, first_rows, fullest_rows, rows_in_order

__all__ = [
    "Balance",
    "BestFitCrop",
    "BestFitDecreasing",
    "Buckets",
    "Composition",
    "Concat",
    "Cost",
    "Curriculum",
    "FirstFitDecreasing",
    "Overflow",
    "Packer",
    "Pad",
    "Plan",
    "Seamless",
    "Selection",
    "WindowRequest",
    "all_rows",
    "check_plan",
    "first_rows",
    "fullest_rows",
    "rows_in_order",
]
