"""Packers beside best fit: buckets, concatenation, cropping, padding and others.

Pure functions from lengths to plans, as in `packing`.
"""
