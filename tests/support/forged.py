"""States that somebody changed, with the checksums of what they say now."""

from __future__ import annotations

from typing import Any

from streampack.lane.state import checksum

__all__ = ["sign"]


def sign(state: dict[str, Any]) -> dict[str, Any]:
    """Give a state and its lanes the checksums that fit what they say; the state."""
    for lane in state["lanes"].values():
        if isinstance(lane, dict):
            own = {name: lane[name] for name in lane if name not in ("emitted", "checksum")}
            lane["checksum"] = checksum(own)
    head = {name: state[name] for name in state if name not in ("checksum", "lanes")}
    state["checksum"] = checksum(head)
    return state
