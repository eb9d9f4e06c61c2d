"""Tokenization of texts and conversations into blocks of ids, and BOS and EOS tokens.

This package handles tokenizers and chat templates. It is independent of lanes and rows.
"""

from streampack._lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
