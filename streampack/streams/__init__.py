"""The documents of one lane as they come: read, tokenized, hooked, mixed, put in order.

Knows sources and tokenizers; it does not know rows, packers or batches.
"""
