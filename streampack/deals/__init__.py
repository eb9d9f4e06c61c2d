"""How the lanes of a finite run share a source: dealt as they need it, so that they end together.

Which sources are dealt, what lanes report, and which parts each lane reads. It does not know
documents, batches or windows.
"""
