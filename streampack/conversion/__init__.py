"""Writing a corpus anew as shards, restartable."""

from streampack.conversion.convert import Conversion, Progress, convert_source
from streampack.conversion.destination import Destination
from streampack.conversion.text_files import TextFiles

__all__ = ["Conversion", "Destination", "Progress", "TextFiles", "convert_source"]
