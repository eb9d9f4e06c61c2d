"""Documents that are taken out of a run: rows that a table deleted, and documents by key."""
