"""The document stream of one lane: source, tokenizer and hooks, across epochs.

The stream yields token blocks, ready for the window, with numbered documents. It remembers the
cursor of the source at the start of recent blocks, so that a lane's state can name the position to
reread any document that the window still holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streampack.deals.dealer import Dealer
from streampack.deals.spans import DealtSpans, EqualParts, LanePart, Parts
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.sources.base import Block, Source
from streampack.stages.base import Place, passed_through
from streampack.stages.preparation import Preparation
from streampack.streams.base import BEGINNING, LaneStream, Opening, Remaining, StreamPosition

if TYPE_CHECKING:
    from streampack.ordering import DocumentOrder

#: Limits of a slice of texts tokenized at once, in documents and characters, so that the first
#: window waits for little more than its contents.
CHUNK_DOCUMENTS = 64
CHUNK_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Everything that determines the documents of a run's lanes.

    Attributes:
        source: prepared source.
        lanes: number of lanes that it is split into.
        preparation: tokenizer, EOS rule and hooks.
        seed: seed of the run.
        shuffle: True if the source shuffles.
        epochs: passes over the source; None is endless.
        on_error: policy for broken content; see `ErrorPolicy`.
        order: orders documents before they enter the window; None keeps the stream's order.
        beside: values of leaves in the state of the run, by key.
    """

    source: Source
    lanes: int
    preparation: Preparation
    seed: int = 0
    shuffle: bool = True
    epochs: int | None = 1
    on_error: Any = "raise"
    order: DocumentOrder | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)


class DocumentStream(LaneStream):
    """The documents of one source.

    Args:
        opening: `config.order` is not used here.
        number: index of the source in a mixture, stored in the origin of documents.
        line: name of the source among the lines of the dealer's rule.
    """

    def __init__(self, opening: Opening, number: int = 0, line: str = "") -> None:
        super().__init__(opening)
        self._config = config = opening.config
        self._lane = opening.lane
        self._number = number
        self._times, position = opening.times, opening.position
        self.epoch = 0  # epoch of the next documents
        cursor = position.cursor if position else BEGINNING
        first, start = cursor["part"], cursor["at"]
        self._stages = config.preparation.of(number)
        self._parts: Parts = _parts_of(config, self._lane, opening.dealer, line, cursor)
        self._empty_parts = 0  # consecutive parts without documents
        # Positions after and before the current block, and the fraction of its documents that is
        # not prepared yet.
        self._after = self._before = (first, start)
        self._unprepared = 0.0
        self._tokens = cursor["tokens"]  # tokens prepared so far
        # Tokens before this part.
        self._tokens_before = cursor["before"]
        self._positions: deque[StreamPosition] = deque([position or StreamPosition(0, BEGINNING)])
        self._blocks = self._read(first, start)

    def _next_documents(self) -> Documents | None:
        return next(self._blocks, None)

    def position_before(self, serial: int) -> StreamPosition:
        while len(self._positions) > 1 and self._positions[1].serial <= serial:
            self._positions.popleft()
        return self._positions[0]

    def begin_round(self, step: int, *, again: bool = False) -> None:
        self._parts.begin_round(step)

    @property
    def ended(self) -> bool:
        return self._parts.ended

    def remaining(self) -> list[Remaining]:
        parts = self._parts
        assert isinstance(parts, DealtSpans)
        ahead = 0 if self._pending is None else self._pending.num_tokens
        tokens = self._tokens - ahead
        before, size, unread = parts.weights(*self._after)
        if self._unprepared:
            unread += int(self._unprepared * (parts.weights(*self._before)[2] - unread))
        if unread == size:  # the part has no estimate before its first document
            return [Remaining(self._number, before, ahead, tokens)]
        ahead += unread * (self._tokens - self._tokens_before) // (size - unread)
        return [Remaining(self._number, before + size, ahead, tokens)]

    def _remember(self, number: int, part: LanePart | None, at: Any) -> None:
        # Called only when everything read so far is consumed, so `serial` is the next document. A
        # position without documents after it (a filter may refuse a whole corpus) is not needed.
        if self._positions and self._positions[-1].serial == self.serial:
            self._positions.pop()
        cursor = {"part": number, "epoch": self.epoch, "at": at, **self._parts.entries(number)}
        cursor |= {"tokens": self._tokens, "before": self._tokens_before}
        if part is not None:  # otherwise the position is between two parts
            cursor["epoch"] = part.epoch
            if part.span is not None:
                cursor["span"] = [part.span.low, part.span.high]
        self._positions.append(StreamPosition(self.serial, cursor))

    def _read(self, number: int, start: Any) -> Iterator[Documents | None]:
        config = self._config
        while True:
            part = self._parts.part(number)
            if part is None:
                if self._parts.ended:
                    return
                yield None
                continue
            has_documents = start is not None
            place = Place(config.source, self._number, config.seed, part.epoch, self.skips)
            blocks = part.reader.read(start, self.skips)
            while True:
                with self._times.reading():
                    item = next(blocks, None)
                if item is None:
                    break
                block, cursor = item
                self._remember(number, part, start)
                self._before, self._after = (number, start), (number, cursor)
                prepared = 0
                for chunk in _chunks(block):
                    with self._times.measure("prepare_s"):
                        documents = passed_through(self._stages, chunk, place)
                    prepared += len(chunk)
                    self._unprepared = 1 - prepared / len(block)
                    if len(documents):
                        self._tokens += documents.num_tokens
                        has_documents, self.skips.in_a_row = True, 0
                        self.epoch = part.epoch
                        yield documents
                start = cursor
                self._remember(number, part, start)
            self._empty_parts = 0 if has_documents else self._empty_parts + 1
            if not has_documents and config.epochs is None:
                self._read_another_share(number, part.epoch)
            number, start = number + 1, None
            self._before = self._after = (number, None)
            self._tokens_before = self._tokens
            self._remember(number, None, None)

    def _read_another_share(self, number: int, epoch: int) -> None:
        """Continue after an empty part of an endless source.

        Raises:
            ConfigError: the parts of all lanes were empty.
        """
        config = self._config
        if self._parts.read_another(number, self._empty_parts):
            return
        titles = config.preparation.titles()
        named = ", ".join(f'"{name}"' for _, name in titles)
        raise ConfigError(
            f"Lane {self._lane} of {config.lanes} found no document in any part of the corpus, up "
            f"to epoch {epoch}.",
            "Check that the filter and on_error keep part of the corpus"
            + (f" (hooks: {named})." if named else "."),
            setting=titles[0][0] if titles else "source",
        )


def _parts_of(
    config: StreamConfig, lane: int, dealer: Dealer | None, line: str, cursor: Mapping[str, Any]
) -> Any:
    inner: Any = config.source._inner
    if dealer is None or line not in dealer.rule.lines:
        rules = config.seed, config.shuffle, config.epochs, cursor.get("shift", 0)
        return inner._parts_after(EqualParts(config.source, lane, config.lanes, *rules), cursor)
    return DealtSpans(inner, lane, config.seed, config.shuffle, dealer, line)


def _chunks(block: Block) -> Iterator[Block]:
    """Yield a token block unchanged; other blocks in slices small enough to tokenize at once."""
    if isinstance(block, Documents):
        yield block
        return
    start = 0
    characters = 0
    for i, size in enumerate(block.num_characters):
        characters += size
        if i + 1 - start >= CHUNK_DOCUMENTS or characters >= CHUNK_CHARACTERS:
            yield block[start : i + 1]
            start, characters = i + 1, 0
    if start < len(block):
        yield block[start:]
