"""Text and conversations to blocks of token ids, and the ids that begin and end documents.

Knows tokenizers and chat templates; it does not know sources, lanes or rows.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
