"""A run: its plan, a rank's batches in order up to the common end, its state and its length.

The package handles lanes by index and state, and the ranks of the job. It depends neither on how a
lane makes batches nor on how a worker sends them.
"""
