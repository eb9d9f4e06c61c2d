"""images_of: the places of a batch's images in its rows."""

from __future__ import annotations

from typing import Any


def images_of(batch: Any) -> Any:
    """Return the `BatchMedia` of a batch without its arrays; None for datasets without images."""
    return getattr(batch, "_attached", {}).get("media")
