"""Flat files of token ids: `.npy`, raw `.bin`, and the `.ds` of datatrove with its index.

Knows where their documents begin: after an end token, or where the index says; it does not know
tokenizers.
"""
