"""Documents in blocks: token ids, texts or conversations, and the fields that travel with them.

Defines arrays and the meaning of their values; it depends on neither sources nor rows.
"""

from streampack.documents.blocks import Documents, Texts, make_origin, offsets_of

__all__ = ["Documents", "Texts", "make_origin", "offsets_of"]
