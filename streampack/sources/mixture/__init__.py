"""Several sources, mixed by weights.

Knows weights, and which source gives the next documents; it does not know how a source reads.
"""
