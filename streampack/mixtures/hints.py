"""Plans of the parts of remote files that lanes are dealt, made early enough to be fetched in time.

A part is planned when it is dealt, a few batches before its lane needs it. Its beginning is planned
before that: the next deal is computed from the reports that are known, as if lanes went on at their
rates. If it is small, as near the end of an epoch, the line behind it is planned too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from itertools import chain, zip_longest
from typing import Any

from streampack.deals.dealer import Dealer, remaining
from streampack.deals.rule import ONE, Cut, LinePosition, deal
from streampack.files.file_source import FileSource
from streampack.mixtures.source import source_seed
from streampack.sources.base import Source
from streampack.sources.span_reader import SpanReader
from streampack.storage.plans import FIRST_BLOCKS, Plans

_SOON = 4 << 20  # of the weight of a part that is expected, about as many bytes
_MOST_KEYS = 4096


class Hints:
    """Let the parts be fetched that the lanes of a process will read.

    Args:
        source: source of the run.
        seed, shuffle: settings of the run.
        dealer: dealer of this process.
        states: start states of the lanes of this process; lanes plan the parts dealt before these.
    """

    def __init__(
        self, source: Source, seed: int, shuffle: bool, dealer: Dealer, states: Mapping[int, Any]
    ) -> None:
        self._shuffle, self._dealer = shuffle, dealer
        self._lines = [
            (name, part._inner, source_seed(seed, number))
            for number, (name, part) in enumerate(source._parts.items())
            if name in dealer.rule.lines and isinstance(part._inner, FileSource)
        ]
        self._told = {name: dict.fromkeys(states, 0) for name, _, _ in self._lines}
        self._planned: deque[tuple[FileSource, Hashable]] = deque(maxlen=_MOST_KEYS)
        self._deals = -1 if any(states.values()) else 0
        # By line: the position from which a deal was foretold, and keys of the expected parts.
        self._foretold: dict[str, tuple[LinePosition, list[Hashable]]] = {}
        self._held: list[Plans] = []  # up to the first batch
        if not self._deals:
            remote = [source for _, source, _ in self._lines if source._hints]
            self._held += [source.storage.remote.fetcher.plans for source in remote]
            for plans in self._held:  # with a block of each source for the first lane
                plans.held_back = max(self._held.count(plans), FIRST_BLOCKS)
            self._tell(1)

    def __call__(self, step: int) -> None:
        """Make the deals with reports up to batch `step` of the lanes, and plan new parts."""
        while self._held:
            self._held.pop().go_on()
        dealer, before = self._dealer, self._deals
        while dealer.rule.step(made := dealer.made) <= step and not dealer.is_over:
            if dealer.exchange.needed(made):
                break
            dealer.make(made + 1)
        if made == before:
            return
        self._deals = made
        self._tell(made, plan=before >= 0)
        for name, source, seed in self._lines:
            if len(self._told[name]) == dealer.rule.lanes:
                self._foretell(name, source, seed)

    def _tell(self, deals: int, *, plan: bool = True) -> None:
        """Plan the parts of the first deals that are not planned yet, lane by lane in turns.

        Of each turn of a lane, the parts of all sources follow one another.
        """
        dealer, parts = self._dealer, list[list[tuple[Any, ...]]]()
        for name, source, seed in self._lines:
            if dealer.dealt[name].position.epoch + 1 < dealer.rule.lines[name].epochs:
                _keep(source)
            told, new = self._told[name], []
            for lane, count in told.items():
                spans = self._dealer.spans(name, lane, deals)
                new.append(spans[count:])
                told[lane] = len(spans)
            turns = filter(None, chain.from_iterable(zip_longest(*new)))
            parts.append([(source, seed, *span) for span in turns])
        for part in filter(None, chain.from_iterable(zip_longest(*parts)) if plan else ()):
            self._plan(*part)

    def _foretell(self, name: str, source: FileSource, seed: int) -> None:
        """Plan the beginnings of the parts of the next deal, and the line behind small ones."""
        position, keys = self._dealer.dealt[name].position, list[Hashable]()
        before, expected = self._foretold.get(name, (position, keys))
        if before != position:
            for key in expected:
                source._drop(key)
            del self._foretold[name]
        if name not in self._foretold and (cuts := _next_cuts(self._dealer, name)):
            for cut in cuts:
                for lane in self._told[name]:
                    low, high = int(cut.bounds[lane]), int(cut.bounds[lane + 1])
                    if low < high:
                        end = min(high, low + _SOON)
                        keys.append(self._plan(source, seed, cut.epoch, low, end))
            epoch, low = cuts[-1].epoch, int(cuts[-1].bounds[-1])
            dealt = sum(int(cut.bounds[-1] - cut.bounds[0]) for cut in cuts)
            end = min(low + len(self._told[name]) * _SOON - dealt, source.manifest.weight)
            for at in range(low, end, _SOON):
                keys.append(self._plan(source, seed, epoch, at, min(at + _SOON, end)))
            self._foretold[name] = position, keys

    def _plan(self, source: FileSource, seed: int, epoch: int, low: int, high: int) -> Hashable:
        reader: SpanReader = source._span(low, high, seed=seed, epoch=epoch, shuffle=self._shuffle)
        key = reader.plan(later=True)
        self._planned.append((source, key))
        return key

    def __del__(self) -> None:
        """Drop the plans of parts that no lane will read, as after a loop that was left."""
        for source, key in self._planned:
            source._drop(key)
        for plans in self._held:  # without a lock
            plans.held_back = 0


def _keep(source: FileSource) -> None:
    """Let shards stay in the cache for a later epoch."""
    if source._hints:
        manifest = source.manifest
        files = (source._stored(shard) for shard in range(len(manifest)))
        name = f"{manifest.digest}-{source._listed_shard(0).key}"
        source.storage.remote.keep(name, lambda: chain.from_iterable(files))


def _next_cuts(dealer: Dealer, name: str) -> list[Cut]:
    """Return the cuts of the next deal of a line, as known now; none without reports."""
    number = dealer.made
    rule = dealer.rule.of_deal(number)
    line, dealt = rule.lines[name], dealer.dealt[name]
    position = dealt.position
    if number < 2 or position.epoch >= line.epochs:
        return []
    reports = dealer.exchange.row(number - 1)[list(rule.lines).index(name)]
    if reports is None:
        return []
    left, rate, alike = remaining(dealt.weight, *reports)
    beyond = int(left.min()) - max(rule.reserve * line.share // ONE, 1)
    left = left - max(beyond + 1, 0)
    alike = alike and (dealt.alike or not position.epoch)
    return deal(rule, line, number, position, left, rate, alike=alike)[0]
