"""Sources of documents: a file or folder per format, and the parts that formats share.

Knows formats, and which of them a path has; it does not know tokenizers, rows or batches.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
