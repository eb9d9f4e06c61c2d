"""A run: its plan, a rank's batches in order to the common end, its state, its length.

Knows lanes by their numbers and states, and the ranks of the job; it does not know how a lane makes
its batches, nor how a worker sends them.
"""
