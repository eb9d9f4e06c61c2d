"""MDS shards, as mosaicml-streaming writes them.

Knows `index.json` and the layout of `.mds` files; it does not know lanes or tokenizers.
"""
