"""Several sources by weights.

Knows weights, and which source is due; it does not know how a member reads.
"""

from streampack.sources.mixture.source import Mixture

__all__ = ["Mixture"]
