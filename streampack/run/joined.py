"""A run that began with one source, and goes on with a mixture of it and others.

A mixture of one source gives its documents as the source alone does: the first source of a mixture
has the run's own seed and the number 0. So what was saved of the source alone is read as what a
mixture of it would have saved, and the others join that one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streampack.lane.config import LaneConfig
from streampack.lane.state import damaged
from streampack.reading.base import Source
from streampack.reading.cursor import cursor_field
from streampack.run.fingerprint import fingerprint_of
from streampack.sources.mixture.source import Mixture


def as_mixture(saved: Mapping[str, Any], config: LaneConfig) -> Mapping[str, Any]:
    """The fingerprint that a mixture of the saved source would have.

    Args:
        saved: a fingerprint.
        config: of a run whose source is a mixture that begins with that of `saved`; for any other,
            `saved` itself is returned.

    Raises:
        StateError: a run of one source cannot have been dealt as `saved` says.
    """
    mixture = config.source
    if not isinstance(mixture, Mixture) or saved["source"].get("kind") == "Mixture":
        return saved
    current = json.loads(json.dumps(fingerprint_of(config)))
    name, now = next(iter(current["source"]["sources"].items()))
    then = {**saved["source"], "tokenizer": saved.get("tokenizer")}
    then |= {"number": now["number"], "epochs": now["epochs"]}
    if json.loads(json.dumps(then)) != now:
        return saved
    one = mixture_of(name, mixture.sources[name], mixture)
    described = {**one.describe(), "sources": {name: then}}
    changed: dict[str, Any] = {"source": described, "tokenizer": None}
    if saved.get("eos") is None:  # of text; the tokenizer's fingerprint says it
        changed["eos"] = current["eos"]
    if dealing := saved.get("dealing"):
        try:
            (line,) = dealing["lines"].values()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(f"The state's fingerprint has dealing {dealing!r:.200}.") from error
        changed["dealing"] = {**dealing, "lines": {name: line}}
    return {**saved, **changed}


def alone(config: LaneConfig) -> LaneConfig:
    """The configuration of the only source of a mixture without the mixture."""
    assert isinstance(config.source, Mixture)
    (source,) = config.source.sources.values()
    tokenizers = config.preparation.tokenizers[:1]
    dealing = config.dealing
    if dealing is not None:
        (line,) = dealing.lines.values()
        dealing = replace(dealing, lines={"": line})
    return replace(
        config,
        source=source,
        epochs=config.source.source_epochs(config.epochs)[0],
        preparation=replace(config.preparation, tokenizers=tokenizers),
        dealing=dealing,
    )


def mixture_of(name: str, source: Source, like: Mixture) -> Mixture:
    """A mixture of one source."""
    return Mixture(
        {name: source},
        weights={name: 1},
        at_end=like.at_end,
        quantum_documents=like.quantum_documents,
    )


def mixed_cursor(cursor: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The cursor of a source in a stream of a mixture of it alone."""
    tokens = cursor_field(cursor, "tokens", int)
    place = {"at": dict(cursor), "offset": 0, "tokens": tokens, "credit": 0, "ended": False}
    place["epoch"] = cursor_field(cursor, "epoch", int)
    return {"tokens": tokens, "quantum": 0, "before": [], "sources": {name: place}}
