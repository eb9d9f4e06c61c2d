"""States that a test changed, with the checksum of the new content."""

from __future__ import annotations

from typing import Any

from streampack.run.state import checksum

__all__ = ["sign"]


def sign(state: dict[str, Any]) -> dict[str, Any]:
    """Give a state the checksum of its content; return the state."""
    state["checksum"] = checksum(state)
    return state
