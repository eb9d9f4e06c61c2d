"""The public names of `streampack.images`, `streampack.films` and `streampack.sounds`."""

from streampack._lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
