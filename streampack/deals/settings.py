"""Settings of dealing: the sources that are dealt to lanes, and the parameters of the rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streampack.deals.rule import FRACTION, ONE, SETTINGS, UNENDING, DealRule, Line
from streampack.sources.base import Source
from streampack.sources.sharded import ShardedSource

RUNS = -1  # placeholder for the run's number of epochs


class _Dealable(NamedTuple):
    """A source of a run: its shards, its epochs (None for an endless one), its share of tokens."""

    source: Source
    epochs: int | None
    share: int  # share of the tokens, in units of 1 / `ONE`


@dataclass(frozen=True, slots=True, kw_only=True)
class DealSettings:
    """Settings of a run that determine its deals.

    Finite sharded sources are dealt if there are several lanes, unless documents are ordered by
    similarity first, because the windows of the order would depend on the deals.

    Attributes:
        source: prepared source; epochs: epochs of the run.
        lanes: number of lanes.
        batch_tokens, window_tokens: tokens of a lane's batch and of its window.
        window_share: see `DealRule.of`.
        ordered: True if documents are ordered by similarity.
    """

    source: Source
    epochs: int | None
    lanes: int
    batch_tokens: int
    window_tokens: int
    window_share: int
    ordered: bool

    def rule(self) -> DealRule | None:
        """Return the rule by which sources are dealt, or None if no source is."""
        return self._rule({}, ())

    def keep(self, rule: DealRule | None) -> bool:
        """Return True if a saved rule remains valid for these settings of batches and epochs."""
        if rule is None:
            return True
        now = self._rule(rule.lines, self._sources())
        assert now is not None
        return rule.batch_tokens == self.batch_tokens and all(
            line.epochs == rule.lines[name].epochs for name, line in now.lines.items()
        )

    def rule_after(
        self, rule: DealRule | None, before: DealSettings, delivered: int
    ) -> DealRule | None:
        """Return the rule by these settings for a run that continues from another rule.

        Args:
            rule: rule of the run so far; before: its settings.
            delivered: number of batches that every lane has delivered.
        """
        if rule is None:
            return None
        now = self._rule(rule.lines, before._sources())
        return now and now.after(rule, delivered)

    def epochs_by(self, rule: DealRule | None) -> int | None:
        """Return the epochs of a run with this rule, if the rule determines them."""
        lines = {} if rule is None else rule.lines
        names = [name for name, each in self._sources(RUNS).items() if each.epochs == RUNS]
        known = {lines[name].epochs for name in names if name in lines}
        if not known:
            return self.epochs
        return None if UNENDING in known else max(known)

    def _rule(self, dealt: Mapping[str, Line], known: Collection[str]) -> DealRule | None:
        """Return the rule for these settings.

        Args:
            dealt: lines dealt in the run so far; they are kept.
            known: names of sources that the run had before; of these only `dealt` ones are dealt.
        """
        if not self._may_be_dealt:
            return None
        lines, run_tokens, run_share = dict(dealt), 0, 0
        sources = self._sources()
        # A finite source that is not dealt may end at any time; others then share its weight.
        lasting = sum(
            each.share
            for each in sources.values()
            if isinstance(each.source, ShardedSource) or each.epochs is None
        )
        for name, (source, epochs, share) in sources.items():
            fresh = epochs is not None and name not in known
            if not isinstance(source, ShardedSource) or not (fresh or name in dealt):
                continue
            tokens = source.estimate_tokens() or 0
            lines[name] = Line(
                weight=source.manifest.weight,
                epochs=UNENDING if epochs is None else epochs,
                rate=max((tokens << FRACTION) // source.manifest.weight, 1),
                share=max(share * ONE // lasting, 1),
            )
            run_tokens, run_share = run_tokens + tokens, run_share + share
        if not lines:
            return None
        return DealRule.of(
            lines,
            lanes=self.lanes,
            batch_tokens=self.batch_tokens,
            window_tokens=self.window_tokens,
            window_share=self.window_share,
            run_tokens=run_tokens * ONE // max(run_share, 1),
        )

    def saved_rule(self, saved: Mapping[str, Any] | None) -> DealRule | None:
        """Rebuild a rule from the output of `DealRule.describe`."""
        if saved is None or not self._may_be_dealt:
            return None
        return DealRule(
            lanes=self.lanes,
            **{name: saved[name] for name in SETTINGS},
            lines={name: Line(*values) for name, values in saved["lines"].items()},
            before=self.saved_rule(saved["before"]),
        )

    @property
    def _may_be_dealt(self) -> bool:
        return self.lanes > 1 and not self.ordered

    def _sources(self, run_epochs: int | None = None) -> dict[str, _Dealable]:
        """Return every source by name, with `run_epochs` in place of the run's epochs."""
        portions = self.source._portions(self.epochs if run_epochs is None else run_epochs)
        return {
            name: _Dealable(source, epochs, max(share * ONE // whole, 1))
            for name, (source, epochs, share, whole) in portions.items()
        }
