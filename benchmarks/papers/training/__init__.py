"""A training experiment for one GPU: real source text, five ways to make rows, equal tokens."""
