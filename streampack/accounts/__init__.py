"""The ledger of a run in its state: a digest of its batches, and tokens by values of fields."""
