"""Conversations longer than a row, as documents that begin at a turn.

A conversation with a document longer than a row becomes *parts*: conversations of some of its
messages, each rendered by the template. A part has the instructions of the system, turns before as
context without loss, and the turns that it learns. Every learnt turn is learnt in one part.

Steps, for the first turn that is not learnt yet:
  1. The part learns this turn, and further ones as long as all of them fill half a row, by an
     estimate from their characters.
  2. As many of the turns before as fit come before them, at the beginnings of `turn_starts`. If
     they fit with none, the part learns the first turn alone.
  3. If room is left, since the turn before is long, further turns are learnt.
  4. If they do not fit with the question, the tokens before them are cut, so that the turns and the
     tokens before them fill whole rows. The packer cuts turns longer than a row, like a text.

So a turn has at least half a row of history, or all of it, unless it is longer than half a row; and
the parts have at most about twice the tokens of the conversation. With turns="each" a part learns
one turn, with as many of the turns before as fit.

Cost: about ten renderings and encodings of a row for each part; nothing for shorter conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampack.chats.conversations import Conversations, TurnRules
from streampack.chats.templates.script import RenderError
from streampack.chats.templates.turn_starts import Start, Starts
from streampack.chats.templates.turns import learnt_turns, rendered_part
from streampack.chats.tokenizer import ChatTokenizer
from streampack.documents.blocks import Documents, Texts, offsets_of
from streampack.errors import ConfigError
from streampack.sources.error_policy import ErrorPolicy
from streampack.stages.base import Place

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe


class LongChats:
    """Encode blocks of conversations, long ones in parts. Picklable.

    Args:
        tokenizer: renders and encodes conversations.
        rules: choice of the parts of a conversation that carry loss.
        row_tokens: tokens of a row.
    """

    def __init__(self, tokenizer: ChatTokenizer, rules: TurnRules, row_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.rules = rules
        self.row_tokens = row_tokens

    def encode(self, block: Conversations, skips: ErrorPolicy) -> Documents:
        """Encode a block, conversations longer than a row in parts; see `ChatTokenizer.encode`.

        Args:
            block: N conversations.
            skips: gets a `ContentError` for each conversation that cannot be rendered or tokenized,
                whole or in parts.
        """
        rendered, record = self.tokenizer.rendered_of(block, skips)
        documents, which = self.tokenizer.documents_of(block, rendered, record, skips)
        long = np.unique(which[documents.lengths > self.row_tokens])
        if not len(long):
            return documents
        edges = np.searchsorted(which, [long, long + 1])
        blocks: list[Documents] = []
        end = 0
        for i, start, stop in zip(long.tolist(), *edges.tolist(), strict=True):
            blocks += [
                documents[end:start],
                self._parts(block[i : i + 1], documents[start:stop], skips),
            ]
            end = stop
        return Documents.joined(
            [part for part in [*blocks, documents[end:]] if len(part)] or blocks[:1]
        )

    def _parts(self, block: Conversations, whole: Documents, skips: ErrorPolicy) -> Documents:
        """Return the parts of the only conversation of `block`, which has the documents `whole`."""
        (conversation,) = block.conversations
        if self.tokenizer.is_plain(conversation):
            return self._last_rows(whole, skips)
        parts = _Parts(self.tokenizer, self.rules, self.row_tokens, block, whole)
        try:
            documents = [*parts.made()]
        except RenderError as error:
            self.tokenizer.refuse(block.origin[0], error, skips)
            return whole[:0]
        return Documents.joined([self._last_rows(part, skips) for part in documents])

    def _last_rows(self, document: Documents, skips: ErrorPolicy) -> Documents:
        """Return a document without the tokens that do not fit before its learnt ones; count them.

        Its learnt tokens, and one before them, fill the fewest rows; what fits before them is kept.
        """
        start, stop = document.offsets.tolist()
        learnt = int(np.argmax(document.loss_mask_or_ones[start:stop]))
        rows = -(-(stop - start - learnt + 1) // self.row_tokens)
        cut = max(stop - start - rows * self.row_tokens, 0)
        skips.counts.context_dropped += cut
        return replace(document, offsets=document.offsets + np.array([cut, 0])) if cut else document


class _Parts:
    """The parts of one conversation.

    Args:
        tokenizer, rules, row_tokens: as in `LongChats`.
        block: the conversation.
        whole: its documents, one or, with turns="each", one for each learnt turn.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        rules: TurnRules,
        row_tokens: int,
        block: Conversations,
        whole: Documents,
    ) -> None:
        self._tokenizer, self._rules, self._row_tokens = tokenizer, rules, row_tokens
        self._block, self._whole = block, whole
        (conversation,) = block.conversations
        self._template = tokenizer.template_of(conversation)
        self._script, self._conversation = self._template.bound(conversation)
        self._learnt = learnt_turns(self._conversation, rules)
        self._starts = Starts(self._conversation.messages)
        sizes = [len(repr(message)) for message in self._conversation.messages]
        self._ends = offsets_of(np.array(sizes, dtype=np.int64))  # offsets in characters
        self._refused: RenderError | None = None

    def made(self) -> Iterator[Documents]:
        """Yield a document for each part.

        Raises:
            RenderError: the template refuses every part that would learn some turn.
        """
        done = 0
        while done < len(self._learnt):
            if self._rules.turns == "each" and self._whole.lengths[done] <= self._row_tokens:
                document, turns = self._whole[done : done + 1], 1
            else:
                document, turns = self._next(done)
            done += turns
            yield document

    def _next(self, done: int) -> tuple[Documents, int]:
        """Return the part that learns turn `done`, and the number of turns that it learns."""
        starts, half = self._starts.before(self._learnt[done]), self._filling_half(done)
        tries = sorted({1, half}, reverse=True)
        for turns in tries:
            for level in starts:
                if (longest := self._longest(level, done, turns)) is not None:
                    return longest
        for turns in tries:
            for level in starts:
                if level and (document := self._document(level[0], done, turns)) is not None:
                    return document, turns
        assert self._refused is not None
        raise self._refused

    def _filling_half(self, done: int) -> int:
        """Return the number of turns from `done` on that fill half a row, by an estimate."""
        if self._rules.turns == "each":
            return 1
        ends = self._ends
        begin = ends[self._learnt[done - 1] + 1] if done else 0
        half = ends[-1] * self._row_tokens // (2 * self._whole.num_tokens)
        turns = np.searchsorted(ends[np.array(self._learnt[done:]) + 1], begin + half, "right")
        return max(int(turns), 1)

    def _longest(
        self, level: Sequence[Start], done: int, turns: int
    ) -> tuple[Documents, int] | None:
        """Return the longest part from a start of `level`, and its turns; None if none fits."""
        first = _largest(len(level), lambda k: self._fits(level[k], done, turns))
        if first is None:
            return None
        more = 0
        if self._rules.turns == "whole":
            left = len(self._learnt) - done - turns
            more = _largest(left + 1, lambda k: self._fits(level[first], done, turns + k)) or 0
        tries = [(first, turns + k) for k in range(more, 0, -1)]
        for k, learnt in [*tries, *((k, turns) for k in range(first, -1, -1))]:
            document = self._document(level[k], done, learnt)
            if document is not None and document.num_tokens <= self._row_tokens:
                return document, learnt
        return None

    def _fits(self, start: Start, done: int, turns: int) -> bool:
        """Return True if a part fits a row, but perhaps for a token that ends it."""
        if self._rules.turns == "each":
            document = self._document(start, done, turns)
            return document is not None and document.num_tokens <= self._row_tokens
        indices = start.up_to(self._learnt[done + turns - 1])
        try:
            self._template.begin(self._conversation)
            text, _ = self._script.render([self._conversation.messages[i] for i in indices], False)
        except RenderError as error:
            self._refused = error
            return False
        texts = Texts([text], self._block.origin)
        documents, _ = self._tokenizer.tokenizer.encode_spans(texts, [[]], ErrorPolicy())
        return documents.num_tokens <= self._row_tokens

    def _document(self, start: Start, done: int, turns: int) -> Documents | None:
        """Return the document of a part; None if the template refuses it."""
        conversation, last = self._conversation, self._learnt[done + turns - 1]
        indices = start.up_to(last)
        part = replace(
            conversation,
            messages=[conversation.messages[i] for i in indices],
            first_learnt=indices.index(self._learnt[done]),
            left_out=frozenset(k for k, i in enumerate(indices) if i in conversation.left_out),
        )
        following = conversation.messages[last + 1 : last + 2]
        try:
            self._template.begin(conversation)
            rendered = rendered_part(self._script, part, following, self._rules)
        except RenderError as error:
            self._refused = error
            return None
        return self._tokenizer.documents_of(self._block, [rendered], [0], ErrorPolicy())[0]


def _largest(count: int, holds: Callable[[int], bool]) -> int | None:
    """Return the largest k < count that holds, or None, if all below one that holds do, too."""
    if not count or not holds(0):
        return None
    low, step = 0, 1
    while low + step < count and holds(low + step):
        low, step = low + step, 2 * step
    high = min(low + step, count)  # upper bound, for which it does not hold
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class RenderedInParts:
    """Render conversations with a chat template, long ones in parts, and encode them."""

    chats: LongChats

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The tokenizer of conversations."""
        return self.chats.tokenizer

    def describe(self) -> Mapping[str, Any]:
        return {"tokenizer": self.tokenizer.fingerprint, "turns": self.chats.row_tokens}

    def __call__(self, block: Conversations, place: Place) -> Documents:
        return self.chats.encode(block, place.skips)


def add(recipe: Recipe, value: object) -> None:
    """Let long conversations become parts, and the default packer cut turns longer than a row.

    Raises:
        ConfigError: another argument keeps documents of a record together, or cuts documents.
    """
    arguments = recipe.given
    for wrong, setting, fact, remedy in _conflicts(recipe):
        if wrong:
            fact = f'Chat has overflow="turns", and {fact}.'
            raise ConfigError(fact, f"{remedy}.", setting=setting)
    arguments["turns"] = recipe.packer.seq_lens[-1]


def _conflicts(recipe: Recipe) -> Iterator[tuple[bool, str, str, str]]:
    """Yield arguments that conflict with parts: (is in conflict, setting, fact, remedy)."""
    arguments = recipe.given
    tree = arguments["layout"] is not None
    yield tree, "layout", 'the layout is "tree"', "Leave out one of them"
    yield (
        arguments["processor"] is not None,
        "processor",
        ("documents may have images, which stay with their conversation"),
        "Leave out one of them",
    )
    yield (
        arguments.get("groups") is not None,
        "document_fields",
        ("the two sides of a pair stay together"),
        'Leave out overflow="turns", or the field "chosen"',
    )
    packer = recipe.packer
    yield (
        not packer.keeps_whole,
        "packer",
        (f"{type(packer).__name__} cuts documents that fit a row"),
        f"Pass packer=BestFitDecreasing(seq_len={packer.seq_lens[-1]})",
    )
