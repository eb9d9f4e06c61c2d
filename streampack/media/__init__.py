"""Documents with images: attachments, which are spans of tokens, weights and references.

Knows what a processor of transformers makes of the size of an image before it is decoded, and
decodes what a batch holds once it is planned. Only runs with ``processor=`` import it.
"""

from streampack.media.own import ImageModel, MediaModel
from streampack.media.source import Images

__all__ = ["ImageModel", "Images", "MediaModel"]
