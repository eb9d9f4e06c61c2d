"""The public names of `streampack.images`."""

from streampack.images import ImageModel, Images, MediaModel

__all__ = ["ImageModel", "Images", "MediaModel"]
