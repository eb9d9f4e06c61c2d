"""Documents without a source: from lengths to micro-batches of each rank, and to their batches.

Knows lengths, costs and what the caller has in memory; it does not know files, lanes or states.
"""
