"""What all formats share: shards dealt to lanes, the manifest, cursors, skipped documents.

Knows shards, cursors and blocks of documents; it does not know any format.
"""
