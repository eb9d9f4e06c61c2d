"""The ledger of a run: the batches in which documents were or will be."""
