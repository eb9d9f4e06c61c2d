"""A run: its plan, a rank's batches in order to the common end, the state of what was taken.

Knows lanes by their numbers and states, and the ranks of the job; it does not know how a lane makes
its batches, nor how a worker sends them.
"""
