"""Documents in blocks: token ids, texts or conversations, and the fields that travel with them.

Knows arrays and what their values mean; it does not know where documents come from, nor rows.
"""

from streampack.documents.blocks import Documents, Texts, make_origin, offsets_of

__all__ = ["Documents", "Texts", "make_origin", "offsets_of"]
