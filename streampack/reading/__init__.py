"""What the formats share: shards and the lanes they are split into, cursors, skipped documents.

Knows shards, cursors and blocks of documents; it does not know any format.
"""
