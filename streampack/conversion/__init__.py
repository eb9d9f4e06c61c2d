"""Rewriting a corpus as shards, restartable.

Knows sources, tokenizers and the writers of formats; it does not know rows, batches or training.
"""

from streampack.conversion.convert import Conversion, Progress, convert_source
from streampack.conversion.destination import Destination

__all__ = ["Conversion", "Destination", "Progress", "convert_source"]
