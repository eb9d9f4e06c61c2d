"""Tokenization of texts and conversations into blocks of ids, and BOS and EOS tokens.

This package handles tokenizers and chat templates. It is independent of lanes and rows.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
