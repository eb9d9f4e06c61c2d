"""Which sources of a run are dealt to its lanes, and by which numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from streampack.deals.rule import FRACTION, ONE, REVISION, SETTINGS, UNENDING, DealRule, Line
from streampack.errors import StateError
from streampack.lane.config import LaneConfig
from streampack.sources.credits import ONE as WHOLE
from streampack.sources.mixture import Mixture
from streampack.sources.sharded import ShardedSource

RUNS = -1  # stands for the epochs of the run


def with_dealing(config: LaneConfig) -> LaneConfig:
    """`config` with the rule by which its lanes are dealt their sources, if they are.

    They are dealt finite sources in shards, where there are several lanes, unless documents are
    ordered by similarity first, whose windows would depend on the deals.
    """
    return replace(config, dealing=_rule(config, {}, ()))


def as_dealt(config: LaneConfig, fingerprint: Mapping[str, Any]) -> LaneConfig:
    """`config` with the rule of a saved fingerprint.

    Raises:
        StateError: it was dealt by another revision of the rule.
    """
    saved = fingerprint.get("dealing")
    if saved is None or not _may_be_dealt(config):
        return replace(config, dealing=None)
    if saved.get("revision") != REVISION:
        raise StateError(
            f"The state's lanes were dealt by revision {saved.get('revision', 1)!r:.20} of the "
            f"rule, and this streampack deals by revision {REVISION}.",
            "Go on with the version of streampack that saved the state, or start a new run.",
        )
    return replace(config, dealing=_saved_rule(saved, config))


def goes_on(config: LaneConfig) -> bool:
    """Whether lanes go on by the rule by which they were dealt: for batches and epochs of now."""
    rule = config.dealing
    if rule is None:
        return True
    now = _rule(config, rule.lines, _sources(config))
    assert now is not None
    return rule.batch_tokens == config.batch_tokens and all(
        line.epochs == rule.lines[name].epochs for name, line in now.lines.items()
    )


def dealt_anew(config: LaneConfig, before: LaneConfig, given: int) -> LaneConfig:
    """`config`, dealt by its own settings once every lane has given so many batches by `before`."""
    if before.dealing is None:
        return config
    rule = _rule(config, before.dealing.lines, _sources(before))
    return replace(config, dealing=rule and rule.after(before.dealing, given))


def epochs_before(config: LaneConfig) -> int | None:
    """The epochs of the run whose rule `config` has, as far as that says them."""
    lines = {} if config.dealing is None else config.dealing.lines
    names = [name for name, (_, epochs, _) in _sources(config, RUNS).items() if epochs == RUNS]
    found = {lines[name].epochs for name in names if name in lines}
    if not found:
        return config.epochs
    return None if UNENDING in found else max(found)


def _rule(config: LaneConfig, dealt: Mapping[str, Line], known: Collection[str]) -> DealRule | None:
    """The rule for the settings of a run.

    Args:
        config: its settings.
        dealt: lines by which it was dealt before; they stay.
        known: names of sources that it had before; of these no other is dealt.
    """
    if not _may_be_dealt(config):
        return None
    lines, run_tokens, run_share = dict(dealt), 0, 0
    found = _sources(config)
    # What is finite and not dealt may end at any time, and others share its weight from then on.
    lasting = sum(
        share
        for source, epochs, share in found.values()
        if isinstance(source, ShardedSource) or epochs is None
    )
    for name, (source, epochs, share) in found.items():
        fresh = epochs is not None and name not in known
        if not isinstance(source, ShardedSource) or not (fresh or name in dealt):
            continue
        tokens = source.estimate_tokens() or 0
        lines[name] = Line(
            weight=source.weight,
            epochs=UNENDING if epochs is None else epochs,
            rate=max((tokens << FRACTION) // source.weight, 1),
            share=max(share * ONE // lasting, 1),
        )
        run_tokens, run_share = run_tokens + tokens, run_share + share
    if not lines:
        return None
    return DealRule.of(
        lines,
        lanes=config.lanes,
        batch_tokens=config.batch_tokens,
        window_tokens=config.window.tokens(config.packer),
        run_tokens=run_tokens * ONE // max(run_share, 1),
    )


def _saved_rule(saved: Mapping[str, Any], config: LaneConfig) -> DealRule:
    """The rule that `DealRule.describe` gave, for the weights that sources have now."""
    sources, before = _sources(config), saved.get("before")
    return DealRule(
        lanes=config.lanes,
        **{name: int(saved.get(name, 0)) for name in SETTINGS},
        lines={
            name: Line(
                # What had ended is left out.
                weight=sources[name][0].weight if name in sources else int(weight),
                epochs=int(epochs),
                rate=int(rate),
                share=int(share),
            )
            for name, (weight, epochs, rate, share) in saved["lines"].items()
        },
        before=None if before is None else _saved_rule(before, config),
    )


def _may_be_dealt(config: LaneConfig) -> bool:
    """False for one lane, and for ordered documents, whose windows would depend on the deals."""
    return config.lanes > 1 and config.order is None


def _sources(
    config: LaneConfig, run_epochs: int | None = None
) -> dict[str, tuple[Any, int | None, int]]:
    """By name, the inner source of every source, its epochs, and its share of tokens up to `ONE`.

    With `run_epochs` in the place of the run's epochs.
    """
    source, run_epochs = config.source, config.epochs if run_epochs is None else run_epochs
    if not isinstance(source, Mixture):
        return {"": (source.inner, run_epochs, ONE)}
    knots = [shares for _, shares in source.shares.knots]
    most = [max(shares) for shares in zip(*knots, strict=True)]
    found = zip(source.sources.items(), source.source_epochs(run_epochs), most, strict=True)
    total = max(sum(most), WHOLE)
    return {
        name: (part.inner, epochs, max(share * ONE // total, 1))
        for (name, part), epochs, share in found
    }
