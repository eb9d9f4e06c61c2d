"""Documents with images: attachments, which are spans of tokens, weights and references.

An image's tokens are computed from its size before it is decoded, as a processor of transformers
would; the images of a batch are decoded once the batch is planned. Only runs with ``processor=``
import this package.
"""

from streampack.images.own import ImageModel, MediaModel
from streampack.images.source import Images

__all__ = ["ImageModel", "Images", "MediaModel"]
