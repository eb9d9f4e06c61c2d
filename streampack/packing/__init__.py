"""Packing, pure: document lengths in, plans out; numpy and numba only.

Knows lengths, rows and what a window asks for; it does not know tokens, sources or lanes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    "balancing": ['Balance'],
    "buckets": ['Buckets'],
    "concat": ['Concat'],
    "cost": ['Cost'],
    "crop": ['BestFitCrop'],
    "curriculum": ['Curriculum'],
    "decreasing": ['BestFitDecreasing', 'FirstFitDecreasing'],
    "overflow": ['Overflow'],
    "packer": ['Packer'],
    "pad": ['Pad'],
    "plan": ['Composition', 'Plan', 'check_plan'],
    "request": ['Selection', 'WindowRequest'],
    "seamless": ['Seamless'],
    "selection": ['all_rows', 'first_rows', 'fullest_rows', 'rows_in_order'],
})  # fmt: skip
