"""Hints of the parts of remote files that lanes were dealt, so that they are fetched early."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from streampack.deals.dealer import Dealer
from streampack.files.file_source import FileSource
from streampack.mixtures.source import source_seed
from streampack.sources.base import Source

_SOON = 4 << 20  # of the weight of a part, about as many bytes
_MOST_PIECES = 16


class Hints:
    """Tell sources of files the parts that the lanes of a process will read.

    Args:
        source: source of the run.
        seed, shuffle: settings of the run.
        dealer: dealer of this process.
        states: start states of the lanes of this process; parts dealt before them are not told.
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
        self._deals = -1 if any(states.values()) else 0

    def __call__(self, step: int) -> None:
        """Make the deals with reports up to batch `step` of the lanes, and tell new parts."""
        dealer, before = self._dealer, self._deals
        while dealer.rule.step(made := dealer.made) <= step and not dealer.is_over:
            if dealer.exchange.needed(made):
                break
            dealer.make(made + 1)
        if made == before:
            return
        self._deals = made
        for name, source, seed in self._lines:
            for lane, told in self._told[name].items():
                spans = self._dealer.spans(name, lane, made)
                if before >= 0:
                    for epoch, low, high in spans[told:]:
                        rules: Any = {"seed": seed, "epoch": epoch, "shuffle": self._shuffle}
                        reader = source._span(low, min(high, low + _SOON), **rules)
                        source._will_read(list(islice(reader.pieces, _MOST_PIECES)))
                self._told[name][lane] = len(spans)
