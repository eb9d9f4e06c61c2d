"""JSON lines, plain or compressed.

Knows lines and fields; it does not know lanes or tokenizers.
"""

from streampack.sources.jsonl.source import JSONL

__all__ = ["JSONL"]
