"""Buckets: rows of several lengths, and the schedule that says which one is due.

Knows lengths and shares; it does not know tokens, lanes or ranks.
"""
