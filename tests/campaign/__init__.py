"""Attacks on the whole library: damaged shards and states, hostile values, kills, broken loops.

``python -m tests.campaign --seed 7 --seconds 600`` tries other cases than last time and prints a
table of them; what it finds becomes a test in the folder of its room.
"""
