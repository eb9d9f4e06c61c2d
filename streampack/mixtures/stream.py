"""The document stream of one lane of a mixture.

Every source has its own `DocumentStream`, so tokens are counted as they enter the window: after
tokenizer, filter and map. Documents are drawn in quanta: some dozen documents of one source, up to
`QUANTUM_TOKENS` and no further than the end of its current block. `Credits` chooses the source.

A place is the start of a quantum: for each source a position of its stream at or before it, the
number of documents between the two, and its credit. The same quanta follow from there, because the
choice depends on credits alone. A resumed source is not read until it is chosen.

A dealt source may have no documents yet when it is chosen. Then the lane waits, so that the order
of draws does not depend on the time at which deals are known.

If a run continues with another mixture (`changed_cursor`) or with other weights (`begin_round`),
documents that were read before the change are reread by the rules of that time: cursors hold these
rules until they are after the change. Weights change with the quantum after the one of the
next document, because a state does not record whether that document is drawn already.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from streampack.documents.blocks import Documents
from streampack.errors import StateError
from streampack.mixtures.cursors import MixtureCursor, Rules, SourceCursor
from streampack.mixtures.shortfall import Shortfall
from streampack.mixtures.source import Mixture, named_in_errors, source_seed
from streampack.mixtures.source_counts import CountedSources, with_passes
from streampack.mixtures.token_shares import (
    Credits,
    WeightChange,
    change_at,
    changes_of,
    mean_change,
)
from streampack.mixtures.weight_channel import WeightChannel
from streampack.streams.base import LaneStream, Opening, Remaining, StreamPosition
from streampack.streams.stream import DocumentStream
from streampack.window.packed_rows import PackedRows

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe


#: A quantum ends with the document that makes it as long as this. Otherwise 32 long documents could
#: fill several windows.
QUANTUM_TOKENS = 1 << 15


@dataclass(slots=True, eq=False)
class _Member:
    """A source of the mixture: its stream and position."""

    name: str
    stream: DocumentStream
    place: SourceCursor
    unread: int  # documents after the position that are still to be skipped
    at_end: bool  # True once the source had no further documents

    def peek(self) -> Documents | None:
        """Return the next documents; None if there are none, or not yet."""
        with named_in_errors(self.name):
            self.settle()
            return self.stream.peek()

    def settle(self) -> None:
        """Step over documents that were drawn before the state was saved."""
        if not self.unread:
            return
        counts = self.stream.skips.counts
        counted = asdict(counts)
        self.unread = self.stream.step_over(self.unread)
        if self.unread:
            raise StateError(
                f'Source "{self.name}" was read again from its saved place and ended '
                f"{self.unread} documents too early.",
                "Resume with the same data and code, or start a new run.",
            )
        vars(counts).update(counted)

    def arrive(self, tokens: int) -> None:
        """Set `place` to the end of a quantum of `tokens` tokens."""
        stream = self.stream
        position = stream.position_before(stream.serial)
        offset = stream.serial - position.serial
        self.place = SourceCursor(position, offset, self.place.tokens + tokens, stream.epoch)


class MixedStream(LaneStream):
    """The documents of a mixture.

    Args:
        opening: its source is a `Mixture`. Sources missing from the position start at their
            beginning, with a credit of 0.

    Raises:
        StateError: the position has a source that the mixture lacks and that had not ended.
    """

    def __init__(self, opening: Opening) -> None:
        config, lane, dealer = opening.config, opening.lane, opening.dealer
        assert isinstance(config.source, Mixture)
        super().__init__(opening)
        self._mixture = mixture = config.source
        self._epochs = mixture.source_epochs(config.epochs)
        self._endless = config.epochs is None
        start = MixtureCursor.read(opening.position, mixture)
        self._members = []
        for number, (name, source) in enumerate(mixture.sources.items()):
            place = start.cursors[number]
            epochs = self._epochs[number]
            if place.ended and place.position.cursor.get("epoch") != epochs:
                raise StateError(
                    f'Source "{name}" ended after {place.position.cursor.get("epoch")} epochs, '
                    f"but now has {'no end' if epochs is None else epochs}.",
                    "Resume with the same number of epochs, or start a new run.",
                    setting="epochs",
                )
            seed = source_seed(config.seed, number)
            member_config = replace(config, source=source, epochs=epochs, seed=seed)
            skips = opening.skips.of_source(name)
            opened = replace(opening, config=member_config, skips=skips, position=place.position)
            stream = DocumentStream(opened, number, line=name)
            self._members.append(_Member(name, stream, place, place.offset, place.ended))
        self._dealt = () if dealer is None else tuple(dealer.rule.lines)
        self._lane, self._lanes = lane, config.lanes
        self._values = config.beside
        self._asked: tuple[int, WeightChange | None] | None = None  # last batch, and its change
        self._waits = False  # True while waiting for a deal
        self._shortfall = None if lane else Shortfall(config.lanes)  # one lane warns for all
        for member in self._members:
            if self._shortfall is not None and member.place.ended:
                self._shortfall.end(member.name, start.tokens)
        self._rules = start.before
        if not self._rules or self._rules[-1].until is not None:
            self._rules = (*self._rules, Rules.of(mixture))
        self._credits = self._credits_of(start.tokens, start.quantum, list(start.credits))
        self._current = 0
        self._drawn = 0  # tokens of the current quantum that are consumed
        self._starts: deque[MixtureCursor] = deque([self._start()])

    @property
    def epoch(self) -> int:
        """Sum of the sources' epochs, which changes when a source begins its next epoch."""
        total = sum(member.place.epoch for member in self._members)
        if self._pending is not None:  # the next documents may be the first of an epoch
            member = self._members[self._current]
            total += member.stream.epoch - member.place.epoch
        return total

    def begin_round(self, step: int, *, again: bool = False) -> None:
        for member in self._members:
            member.stream.begin_round(step)
        if not again and (change := self.change_for(step)) is not None:
            self.draw_by(change, self.serial + (step > 0))

    def change_for(self, step: int) -> WeightChange | None:
        """Return the change of weights for documents that are read from batch `step` on."""
        batch, values = step * self._lanes + self._lane, self._values
        channel = values if isinstance(values, WeightChannel) else None
        changes = changes_of(values) if channel is None else channel.changes(batch)
        if self._asked is not None:
            asked, found = self._asked
            if (change_at(changes, asked) or found) != found:
                raise AssertionError("A change of weights came late, which must not happen.")
        self._asked = batch, change_at(changes, batch)
        return mean_change(changes, self._rules[-1].batch, batch, self._lanes)

    def draw_by(self, change: tuple[int, dict[str, float]], until: int) -> None:
        """Draw by a `WeightChange` from the quantum of document `until` on, if it is a new one."""
        last, new = self._rules[-1], WeightChange(*change)
        if new.batch == last.batch:
            return
        changed = (replace(last, until=until), Rules.of(self._mixture, new))
        self._rules = (*self._rules[:-1], *changed)
        for number, place in enumerate(self._starts):
            before = place.before[:-1] if last.batch is not None else place.before
            self._starts[number] = replace(place, before=(*before, *changed))

    @property
    def ended(self) -> bool:
        return not self._waits

    def remaining(self) -> list[Remaining]:
        members = {member.name: member for member in self._members}
        remaining: list[Remaining] = []
        for name in self._dealt:
            if name in members:
                members[name].settle()
                remaining += members[name].stream.remaining()
            else:  # the source had ended in every lane, and was left out
                remaining.append(Remaining(len(members), 0, 0, 0))
        return remaining

    def completed(self, batches: list[PackedRows]) -> list[PackedRows]:
        passes = [
            epochs if member.at_end and epochs is not None
            else max(member.place.epoch, member.stream.epoch)
            for member, epochs in zip(self._members, self._epochs, strict=True)
        ]  # fmt: skip
        return [with_passes(rows, passes) for rows in batches]

    def consume(self, count: int) -> None:
        """Step over the next `count` documents that `peek` returned."""
        if not count:
            return
        assert self._pending is not None
        member = self._members[self._current]
        self._drawn += self._pending[:count].num_tokens
        member.stream.consume(count)
        super().consume(count)
        if not len(self._pending):
            self._credits.draw(self._current, self._drawn)
            member.arrive(self._drawn)
            self._pending, self._drawn = None, 0
            self._starts.append(self._start())
            if self._shortfall is not None:
                drawn = {each.name: each.place.tokens for each in self._members}
                self._shortfall.warn(self._rules[0].shares, self._credits.tokens, drawn)

    def position_before(self, serial: int) -> StreamPosition:
        """Return the start of the quantum of document `serial`; drop earlier positions."""
        while len(self._starts) > 1 and self._starts[1].serial <= serial:
            self._starts.popleft()
        return self._starts[0].position([member.name for member in self._members])

    def _start(self) -> MixtureCursor:
        credits = self._credits
        return MixtureCursor(
            self.serial,
            credits.tokens,
            credits.quantum,
            tuple(credits.amounts),
            tuple(member.place for member in self._members),
            self._rules if self._rules[-1].batch is not None else self._rules[:-1],
        )

    def _next_documents(self) -> Documents | None:
        """Return the next quantum: documents of the chosen source."""
        self._waits = False
        while self._rules[0].until is not None and self.serial >= self._rules[0].until:
            self._rules = self._rules[1:]
            credits = self._credits
            self._credits = self._credits_of(credits.tokens, credits.quantum, credits.amounts)
            self._starts[-1] = self._start()
        while not self._finished():
            chosen = self._credits.choose()
            if chosen is None:
                break
            documents = self._members[chosen].peek()
            if documents is not None:
                documents = documents[: self._rules[0].quantum_documents]
                ends = documents.offsets[1:] - documents.offsets[0]
                enough = int(np.searchsorted(ends, QUANTUM_TOKENS)) + 1
                self._current = chosen
                return documents[:enough]
            member = self._members[chosen]
            stream = member.stream
            self._waits = not stream.ended
            member.at_end = not self._waits
            if self._waits or self._mixture.at_end == "stop":
                break
            position = stream.position_before(stream.serial)
            position = replace(position, cursor={**position.cursor, "epoch": self._epochs[chosen]})
            member.place = replace(member.place, position=position, offset=0, ended=True)
            self._credits.end(chosen)
            if self._shortfall is not None:
                self._shortfall.end(member.name, self._credits.tokens)
        return None

    def _credits_of(self, tokens: int, quantum: int, amounts: list[int]) -> Credits:
        """Return credits under the rules in force, which leave out sources added later."""
        rules = self._rules[0]
        return Credits(
            rules.shares,
            self._lanes,
            tokens=tokens,
            quantum=quantum,
            amounts=amounts,
            active=[
                member.name in rules.known and not member.place.ended for member in self._members
            ],
        )

    def _finished(self) -> bool:
        """Return True if only endless sources remain in a finite run, or no source at all."""
        active = self._credits.active
        if self._endless:
            return not any(active)
        finite = [on for on, epochs in zip(active, self._epochs, strict=True) if epochs is not None]
        return not any(finite) if finite else not any(active)


def add(recipe: Recipe, value: object) -> None:
    """Add the stage that counts the tokens of each source in a row."""
    recipe.described["eos"] = [recipe.eos, recipe.eos_id]
    if not recipe.has_rows("counts"):
        counts = CountedSources(len(recipe.source._parts), whole=recipe.whole)
        recipe.add_rows("counts", counts)
