"""Which sources of a run are dealt to its lanes, and by which numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streampack.dealing.rule import FRACTION, MOST_TOKENS, ONE, REVISION, DealRule, Line
from streampack.errors import StateError
from streampack.lane.config import LaneConfig
from streampack.lane.state import damaged
from streampack.reading.cursor import is_count
from streampack.reading.sharded import ShardedSource
from streampack.sources.mixture.credits import ONE as WHOLE
from streampack.sources.mixture.source import Mixture

MOST_EPOCHS = 1 << 40  # of a source that was finite and has no end now
SETTINGS = ("batch_tokens", "every", "reserve")


def with_dealing(config: LaneConfig) -> LaneConfig:
    """`config` with the rule by which its lanes are dealt their sources, if they are.

    They are dealt finite sources in shards, where there are several lanes, unless documents are
    ordered by similarity first, whose windows would depend on the deals.
    """
    if not _may_be_dealt(config):
        return config
    lines, run_tokens, run_share = {}, 0, 0
    found = _sources(config)
    # What is finite and not dealt may end at any time, and others share its weight from then on.
    lasting = sum(
        share
        for source, epochs, share in found.values()
        if isinstance(source, ShardedSource) or epochs is None
    )
    for name, (source, epochs, share) in found.items():
        if isinstance(source, ShardedSource) and epochs is not None:
            tokens = source.estimate_tokens() or 0
            rate = max((tokens << FRACTION) // source.weight, 1)
            lines[name] = Line(
                weight=source.weight,
                epochs=epochs,
                planned=epochs,
                rate=rate,
                share=share * ONE // lasting,
            )
            run_tokens, run_share = run_tokens + tokens, run_share + share
    if not lines:
        return config
    rule = DealRule.of(
        lines,
        lanes=config.lanes,
        batch_tokens=config.batch_tokens,
        window_tokens=config.window.tokens(config.packer),
        run_tokens=run_tokens * ONE // run_share,
    )
    return replace(config, dealing=rule)


def as_dealt(config: LaneConfig, fingerprint: Mapping[str, Any]) -> LaneConfig:
    """`config` with the rule of a saved fingerprint, for the epochs that the run has now.

    Raises:
        StateError: it was dealt by another revision of the rule, or no run can have had its rule.
    """
    saved = fingerprint.get("dealing")
    if saved is None or not _may_be_dealt(config):
        return config
    if isinstance(saved, Mapping) and saved.get("revision") != REVISION:
        raise StateError(
            f"The state's lanes were dealt by revision {saved.get('revision', 1)!r:.20} of the "
            f"rule, and this streampack deals by revision {REVISION}.",
            "Lanes would get other documents than were to follow.",
            "Go on with the version of streampack that saved the state, or start a new run.",
        )
    sources, lines = _sources(config), {}
    try:
        for name, (weight, planned, rate, share) in saved["lines"].items():
            # One that had ended is left out.
            source, epochs, _ = sources.get(name, (None, planned, 0))
            if source is not None and not isinstance(source, ShardedSource):
                continue  # the fingerprint says what it was
            lines[name] = Line(
                weight=weight if source is None else source.weight,
                epochs=MOST_EPOCHS if epochs is None else epochs,
                planned=planned,
                rate=rate,
                share=share,
            )
        rule = DealRule(lanes=config.lanes, lines=lines, **{key: saved[key] for key in SETTINGS})
        numbers = [saved[key] for key in SETTINGS]
        numbers += [n for line in saved["lines"].values() for n in line]
        if not saved["lines"] or not all(is_count(n, 1) for n in numbers):
            raise ValueError
        if saved["reserve"] > MOST_TOKENS:
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(f"The state's fingerprint has dealing {saved!r:.200}.") from error
    return replace(config, dealing=rule if lines else None)


def _may_be_dealt(config: LaneConfig) -> bool:
    """False for one lane, and for ordered documents, whose windows would depend on the deals."""
    return config.lanes > 1 and config.order is None


def _sources(config: LaneConfig) -> dict[str, tuple[Any, int | None, int]]:
    """Of every source by name: itself, its epochs, and its share of the tokens, at most `ONE`."""
    source = config.source
    if not isinstance(source, Mixture):
        return {"": (source, config.epochs, ONE)}
    knots = [shares for _, shares in source.shares.knots]
    most = [max(shares) for shares in zip(*knots, strict=True)]
    found = zip(source.sources.items(), source.source_epochs(config.epochs), most, strict=True)
    total = max(sum(most), WHOLE)
    return {
        name: (part, epochs, max(share * ONE // total, 1)) for (name, part), epochs, share in found
    }
