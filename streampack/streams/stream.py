"""The document stream of one lane: source, tokenizer and hooks, across epochs.

Blocks come out as token blocks, ready for the window, and their documents are numbered. The stream
remembers the cursor of the source at the start of recent blocks, so that a lane can say from where
to read again to get any document that the window still holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.dealing.dealer import Dealer
from streampack.documents import GROUP, Conversations, Documents, Texts
from streampack.errors import ConfigError
from streampack.fields import FieldTypes
from streampack.hooks import Hook, apply_filter, apply_map, document_seeds
from streampack.metrics import LaneTimes
from streampack.ordering import DocumentOrder
from streampack.reading.base import Block, Source
from streampack.reading.cursor import cursor_field, damaged_cursor
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.streams.base import BEGINNING, LaneStream, Mark, Outlook
from streampack.streams.groups import (
    group_sizes,
    joined,
    numbered,
    whole_groups,
    with_numbers,
)
from streampack.streams.supply import DealtParts, EqualParts, Part, Supply
from streampack.tokenization import ChatTokenizer, EosRule, Tokenizer, apply_eos

__all__ = ["DocumentStream", "Preparation", "StreamConfig"]

#: Texts are tokenized in slices of at most so many documents or characters, so that the first
#: window waits for little more than it needs.
CHUNK_DOCUMENTS = 64
CHUNK_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Preparation:
    """What happens to a block between the source and the window.

    Attributes:
        tokenizers: for every source of a mixture, or the only one: of texts or conversations;
            None for those that are tokenized.
        eos: rule for documents that are tokenized already.
        eos_id: the id it adds.
        vocab_size: ids must be below it; None checks only that none is negative.
        filter, map: the user's hooks; the filter sees documents first.
        fields: what travels with tokens and documents.
        group: the document field that documents of a group have in common; None: no groups.
    """

    tokenizers: tuple[Tokenizer | ChatTokenizer | None, ...] = (None,)
    eos: EosRule = "as-is"
    eos_id: int | None = None
    vocab_size: int | None = None
    filter: Hook | None = None
    map: Hook | None = None
    fields: FieldTypes = field(default_factory=FieldTypes)
    group: str | None = None

    @property
    def any_tokenizer(self) -> Any:
        """That of the first source that has one; None if all are tokenized."""
        found = next((own for own in self.tokenizers if own is not None), None)
        return getattr(found, "tokenizer", found)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Everything that determines the documents of a run's lanes.

    Attributes:
        source: prepared.
        lanes: how many lanes it is split into.
        preparation: tokenizer, EOS rule and hooks.
        seed: of the run.
        shuffle: True if the source shuffles.
        epochs: how often the source is read; None is for ever.
        on_error, skip_limit: see `Skips`.
        order: orders documents before they come into the window; None leaves them as they are.
    """

    source: Source
    lanes: int
    preparation: Preparation
    seed: int = 0
    shuffle: bool = True
    epochs: int | None = 1
    on_error: Any = "raise"
    skip_limit: int = 1000
    order: DocumentOrder | None = None


class DocumentStream(LaneStream):
    """The documents of one source.

    Args:
        config: source and preparation; `order` is not used here.
        lane: which part of the source this is.
        skips: what to do with broken content.
        times: where reading and preparing add up their seconds.
        mark: where to start; None is the beginning.
        number: of the source in a mixture; documents carry it in their origin.
        dealer: deals the lanes their parts; None divides every epoch equally.
        line: the source's name among the lines of the dealer's rule.
    """

    empty_documents = 0

    def __init__(
        self,
        config: StreamConfig,
        lane: int,
        *,
        skips: Skips,
        times: LaneTimes,
        mark: Mark | None = None,
        number: int = 0,
        dealer: Dealer | None = None,
        line: str = "",
    ) -> None:
        super().__init__(skips, mark)
        self._config = config
        self._source = config.source
        self._preparation = config.preparation
        self._lane = lane
        self._number = number
        self._times = times
        self.epoch = 0  # of the documents that come next
        first = cursor_field(mark.cursor, "part", int) if mark else 0
        if mark and first < 0:
            raise damaged_cursor(mark.cursor)
        start = cursor_field(mark.cursor, "at", dict, type(None)) if mark else None
        self._supply = _supply(config, lane, dealer, line)
        # The place after the block at hand, and of the block the place before it and the share of
        # its documents that are not prepared yet.
        self._after = self._before = (first, start)
        self._unprepared = 0.0
        self._tokens = cursor_field(mark.cursor, "tokens", int) if mark else 0  # prepared
        self._tokens_before = cursor_field(mark.cursor, "before", int) if mark else 0  # this part
        self._marks: deque[Mark] = deque([mark or Mark(0, BEGINNING)])
        self._blocks = self._read(first, start)

    def _next_documents(self) -> Documents | None:
        return next(self._blocks, None)

    def mark_before(self, serial: int) -> Mark:
        while len(self._marks) > 1 and self._marks[1].serial <= serial:
            self._marks.popleft()
        return self._marks[0]

    def skipped_since(self, mark: Mark) -> list[list[Any]]:
        return self.skips.since(mark.skipped[0])

    def allow(self, step: int) -> None:
        self._supply.allow(step)

    @property
    def ended(self) -> bool:
        return self._supply.ended

    def outlooks(self) -> list[Outlook]:
        supply = self._supply
        assert isinstance(supply, DealtParts)
        ahead = 0 if self._pending is None else self._pending.num_tokens
        tokens = self._tokens - ahead
        before, size, unread = supply.weights(*self._after)
        if self._unprepared:
            unread += int(self._unprepared * (supply.weights(*self._before)[2] - unread))
        if unread == size:  # nothing is known of this part
            return [Outlook(self._number, before, ahead, tokens)]
        ahead += unread * (self._tokens - self._tokens_before) // (size - unread)
        return [Outlook(self._number, before + size, ahead, tokens)]

    def _mark(self, number: int, part: Part | None, at: Any, skipped: int) -> None:
        # Called only when everything read so far is consumed, so `serial` is what comes next. A
        # mark without documents after it (a filter may refuse a whole corpus) is not needed.
        if self._marks and self._marks[-1].serial == self.serial:
            self._marks.pop()
        if part is not None:
            epoch = part.epoch
        else:  # between two parts
            epoch = number if isinstance(self._supply, EqualParts) else self.epoch
        cursor = {"part": number, "epoch": epoch, "at": at}
        cursor |= {"tokens": self._tokens, "before": self._tokens_before}
        if part is not None and part.span is not None:
            cursor["span"] = [part.span.low, part.span.high]
        self._marks.append(Mark(self.serial, cursor, (skipped,)))

    def _read(self, number: int, start: Any) -> Iterator[Documents | None]:
        config = self._config
        while True:
            part = self._supply.part(number)
            if part is None:
                if self._supply.ended:
                    return
                yield None
                continue
            found = start is not None
            skipped = len(self.skips.records)
            blocks = part.reader.read(start, self.skips)
            while True:
                with self._times.measure("read_s"):
                    item = next(blocks, None)
                if item is None:
                    break
                block, cursor = item
                self._mark(number, part, start, skipped)
                self._before, self._after = (number, start), (number, cursor)
                prepared = 0
                for chunk in _chunks(block):
                    with self._times.measure("prepare_s"), self.skips.after_shuffle():
                        documents = self._prepare(chunk, part.epoch)
                    prepared += len(chunk)
                    self._unprepared = 1 - prepared / len(block)
                    if len(documents):
                        self._tokens += documents.num_tokens
                        found = True
                        self.epoch = part.epoch
                        yield documents
                start = cursor
                skipped = len(self.skips.records)
                self._mark(number, part, start, skipped)
            if not found and config.epochs is None:
                hooks = (config.preparation.filter, config.preparation.map)
                named = ", ".join(f'"{hook.name}"' for hook in hooks if hook is not None)
                where = f' of source "{self.skips.name}"' if self.skips.name else ""
                raise ConfigError(
                    f"Lane {self._lane} of {config.lanes}{where} found no document in epoch "
                    f"{part.epoch}.",
                    "With endless epochs it would search for ever.",
                    "Use fewer lanes, or check what the filter and on_error leave of the corpus"
                    + (f" (hooks: {named})." if named else "."),
                )
            number, start = number + 1, None
            self._before = self._after = (number, None)
            self._tokens_before = self._tokens
            self._mark(number, None, None, len(self.skips.records))

    def _prepare(self, block: Block, epoch: int) -> Documents:
        """Tokenize, check, drop empty documents, filter and map."""
        preparation = self._preparation
        if self._number and len(block):  # before hooks, whose seeds depend on it
            origin = block.origin.copy()
            origin["source"] = self._number
            block = replace(block, origin=origin)
        tokenized = isinstance(block, Documents)
        if isinstance(block, Documents):
            documents = self._checked(block)
        else:
            documents = _with_fields_of(block, self._encoded(block))
        sizes = None
        if preparation.group is not None:
            documents = numbered(documents, preparation.group)
            sizes = group_sizes(documents)
        documents = self._without_empty(documents, sizes)
        if tokenized:
            documents = apply_eos(documents, preparation.eos, preparation.eos_id)
        if len(documents) and preparation.filter is not None:
            seeds = document_seeds(self._config.seed, epoch, documents.origin)
            documents = apply_filter(preparation.filter, documents, seeds, self._name)
            if sizes is not None:
                documents = whole_groups(documents, sizes)
        if len(documents) and preparation.map is not None:
            seeds = document_seeds(self._config.seed, epoch, documents.origin)
            given = documents
            documents = apply_map(
                preparation.map, documents, seeds, preparation.vocab_size, self._name
            )
            if sizes is not None:  # a map keeps the documents, and need not know of groups
                documents = with_numbers(documents, given.document_fields[GROUP])
            documents = self._without_empty(documents, sizes)
        number = documents.document_fields.get(GROUP)
        if preparation.fields or documents.token_fields or documents.document_fields:
            documents = self._fielded(documents)
        if documents.tokens.dtype == np.int32:  # checked: no id is negative
            documents = replace(documents, tokens=documents.tokens.view(np.uint32))
        return documents if sizes is None else joined(documents, number)

    def _name(self, origin: np.void) -> str:
        of = f' of source "{self.skips.name}"' if self.skips.name else ""
        return self._source.document_name(origin) + of

    def _encoded(self, block: Texts | Conversations) -> Documents:
        tokenizer = self._preparation.tokenizers[self._number]
        if isinstance(block, Texts) and isinstance(tokenizer, Tokenizer):
            return tokenizer.encode(block, self.skips)
        if isinstance(block, Conversations) and isinstance(tokenizer, ChatTokenizer):
            return tokenizer.encode(block, self.skips)
        raise ConfigError(
            f"{type(self._source).__name__} yields texts, and there is no tokenizer.",
            "Only token ids can be packed.",
            "Pass tokenizer= (a path to tokenizer.json, or a tokenizers or transformers "
            "tokenizer).",
        )

    def _fielded(self, documents: Documents) -> Documents:
        """The documents with the fields of the run; `skips` gets those whose values do not fit."""
        documents, problems = self._preparation.fields.cast(documents)
        if not problems:
            return documents
        broken: dict[tuple[int, int], str] = {}  # all documents of a record are skipped together
        for i, problem in problems.items():
            origin = documents.origin[i]
            broken.setdefault((int(origin["shard"]), int(origin["index"])), problem)
        for (shard, index), problem in broken.items():
            self.skips.handle(self._source.broken_document(shard, index, problem))
        return documents.take(
            np.flatnonzero(~np.isin(documents.origin, documents.origin[[*problems]]))
        )

    def _without_empty(self, documents: Documents, sizes: NDArray[np.int64] | None) -> Documents:
        """The documents that are not empty, and whose groups of `sizes` (G,) have no empty one."""
        lengths = documents.lengths
        if len(lengths) == 0 or lengths.min() > 0:
            return documents
        kept = documents.take(np.flatnonzero(lengths > 0))
        if sizes is not None:
            kept = whole_groups(kept, sizes)
        self.empty_documents += len(documents) - len(kept)
        return kept

    def _checked(self, documents: Documents) -> Documents:
        """The documents whose ids are all in the vocabulary; `skips` gets the others."""
        preparation = self._preparation
        low, high = int(documents.offsets[0]), int(documents.offsets[-1])
        if low == high:
            return documents
        tokens: NDArray[Any] = documents.tokens[low:high]
        highest = int(np.iinfo(tokens.dtype).max)
        limit = highest + 1 if preparation.vocab_size is None else preparation.vocab_size
        # What the dtype excludes is not looked for: a look at every token is a pass over memory.
        if (limit > highest or int(tokens.max()) < limit) and (
            tokens.dtype.kind == "u" or int(tokens.min()) >= 0
        ):
            return documents
        bad = (tokens < 0) | (tokens >= limit)
        where = np.searchsorted(documents.offsets, np.flatnonzero(bad) + low, side="right") - 1
        wrong = np.unique(where)
        for i in wrong.tolist():
            ids: NDArray[Any] = documents.document(i)
            origin = documents.origin[i]
            outside = int(ids[(ids < 0) | (ids >= limit)][0])
            what = f"and the vocabulary has {limit}" if outside >= 0 else "which is negative"
            self.skips.handle(
                self._source.broken_document(
                    int(origin["shard"]),
                    int(origin["index"]),
                    f"holds the token id {outside}, {what}",
                    "The model has no embedding for it.",
                    "Tokenize the corpus with this tokenizer, pass the right vocab_size, or use "
                    'on_error="skip".',
                )
            )
        keep = np.ones(len(documents), dtype=np.bool_)
        keep[wrong] = False
        return documents.take(np.flatnonzero(keep))


def _supply(config: StreamConfig, lane: int, dealer: Dealer | None, line: str) -> Supply:
    source = config.source
    if dealer is None or line not in dealer.rule.lines:
        return EqualParts(source, lane, config.lanes, config.seed, config.shuffle, config.epochs)
    assert isinstance(source, ShardedSource)
    return DealtParts(source, lane, config.seed, config.shuffle, dealer, line)


def _chunks(block: Block) -> Iterator[Block]:
    """A token block as it is; others in slices small enough to tokenize one at a time."""
    if isinstance(block, Documents):
        yield block
        return
    start = 0
    characters = 0
    group = block.document_fields.get(GROUP)
    for i, size in enumerate(block.num_characters):
        characters += size
        full = i + 1 - start >= CHUNK_DOCUMENTS or characters >= CHUNK_CHARACTERS
        goes_on = group is not None and i + 1 < len(block) and group[i + 1] == group[i]
        if full and not goes_on:
            yield block[start : i + 1]
            start, characters = i + 1, 0
    if start < len(block):
        yield block[start:]


def _with_fields_of(block: Block, documents: Documents) -> Documents:
    """Documents with the fields of the texts that they were encoded from; some may be left out."""
    if not isinstance(block, Texts) or not block.document_fields:
        return documents
    kept = np.isin(block.origin["index"], documents.origin["index"])
    fields = {name: values[kept] for name, values in block.document_fields.items()}
    return replace(documents, document_fields=fields)
