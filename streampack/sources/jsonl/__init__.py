"""JSON lines, plain or compressed.

Knows lines and fields; it does not know lanes or tokenizers.
"""
