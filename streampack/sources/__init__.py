"""Sources of documents: a file or folder per format, and the parts that formats share.

Knows formats, and which of them a path has; it does not know tokenizers, rows or batches.
"""

from streampack._lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
