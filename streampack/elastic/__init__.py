"""Training on ranks that come and go: batches belong to lanes, and lanes to whoever lives.

This package knows steps, lanes and the ranks that take them. Who is alive, and when a step counts,
is decided elsewhere: by torchft's quorum, by Ray, by the training loop.
"""

from streampack._lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
