"""Fingerprints: all settings that determine the batches of a run."""

from __future__ import annotations

from typing import Any

from streampack.lane.config import LaneConfig

#: Values in states saved before stages existed, where a stage is absent.
_NONE: dict[str, Any] = {
    **dict.fromkeys(("tokenizer", "eos", "filter", "map", "fields", "media")),
    "grouped": False,
    "layout": "documents",
}


def fingerprint_of(config: LaneConfig) -> dict[str, Any]:
    """Return the JSON-able identity of a run: all settings that assign tokens to batches."""
    source = config.source
    stages, described = {**_NONE, **config.preparation.describe()}, source.describe()
    if "sources" in described:  # with its source, so that one may be added with another template
        for number, part in enumerate(described["sources"].values()):
            part["tokenizer"] = config.preparation.described_by(number).get("tokenizer")
        stages["tokenizer"] = None
    return {
        "source": described,
        **stages,
        "order": config.order.describe() if config.order else None,
        "packer": config.packer.describe(),
        "attention": "row" if config.row_format.attention_by_row else "document",
        "balance": config.choice.describe(),
        "window": config.window.describe(),
        "batch_tokens": config.batch_tokens,
        "seed": config.seed,
        "shuffle": config.shuffle,
        "lanes": config.lanes,
        "dealing": config.dealing.describe() if config.dealing else None,
    }
