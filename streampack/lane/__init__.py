"""A lane: makes batches from documents, with a state that reproduces them.

The package combines stream, window and packer, independent of the rank or worker that runs a lane.
"""
