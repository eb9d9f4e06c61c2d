"""Shares of their loss tokens that long chats lose, by overflow, on a sample.

Some hundred conversations are read twice from the beginning of the corpus: whole, and in the
documents of ``sources.Chat(overflow="turns")``. Conversations that a filter drops or that cannot be
rendered are in neither.

Cost: about ten renderings of a row for each document of a long conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streampack.chats.long_chats import LongChats, RenderedInParts
from streampack.chats.source import Chat
from streampack.chats.stages import RenderedChats
from streampack.documents.blocks import Documents
from streampack.exclusion.leaf import with_masks_of
from streampack.exclusion.mask import mask_of
from streampack.lane.config import LaneConfig
from streampack.mixtures.source import sources_of
from streampack.sources.error_policy import ErrorPolicy
from streampack.stages.base import BlockStage
from streampack.streams.base import Opening
from streampack.streams.lane_stream import open_stream

CONVERSATIONS = 256  # conversations of each source in the sample


class LongChatLosses(NamedTuple):
    """Shares of the loss tokens of sampled conversations, 0 to 1.

    Attributes:
        chosen: the overflow of the run, "turns" or a packer's.
        rows: tokens of a row; conversations: number of conversations.
        truncate, drop, turns: share that is in no row, by overflow; None where "turns" does not
            apply, as with preference pairs. The overflow "split" loses none.
        without_context: share that is in later pieces with "split", without the text before.
    """

    chosen: str
    rows: int
    conversations: int
    truncate: float
    drop: float
    turns: float | None
    without_context: float

    def __str__(self) -> str:
        shares = {"truncate": self.truncate, "drop": self.drop, "turns": self.turns}
        named = ", ".join(
            f'{share:.2%} by "{way}"{" (this run)" * (way == self.chosen)}'
            for way, share in shares.items()
            if share is not None
        )
        return (
            f"loss tokens of {self.conversations:,} chats that rows of {self.rows:,} lose, by "
            f'overflow: {named}; "split"{" (this run)" * (self.chosen == "split")} loses none, but '
            f"learns {self.without_context:.2%} without the text before"
        )


def long_chat_losses(config: LaneConfig) -> LongChatLosses | None:
    """Return the shares for the conversations of a run; None without any that a template renders.

    Args:
        config: source, preparation and packer of the run.
    """
    rows, chosen = config.packer.seq_lens[-1], str(config.packer.overflow)
    learnt = beginnings = short = by_turns = count = 0
    turns_apply = True
    for number, source in enumerate(sources_of(config.source)):
        masked = with_masks_of(config, number)
        stages = masked.preparation.of(number)
        place = next((i for i, s in enumerate(stages) if type(s) in _RENDERING), None)
        if place is None or source.once or not isinstance(source, Chat):
            continue
        rendering: Any = stages[place]
        chats = rendering.tokenizer
        if type(rendering) is RenderedInParts:
            chosen = "turns"
        alone = replace(masked, source=source, lanes=1, epochs=1, order=None)
        origins = set()
        for document in _documents(alone, stages, place, RenderedChats(chats)):
            origins.add(document.origin.tobytes())
            labels = document.loss_mask_or_ones[1:]
            learnt += int(labels.sum())
            beginnings += int(labels[: rows - 1].sum())
            short += int(labels.sum()) if len(document.tokens) <= rows else 0
        count += len(origins)
        turns_apply &= not source.grouped
        if turns_apply:
            parts = RenderedInParts(LongChats(chats, source.rules, rows))
            for document in _documents(alone, stages, place, parts):
                if document.origin.tobytes() in origins:
                    by_turns += int(document.loss_mask_or_ones[1:].sum())
    if not learnt:
        return None
    later = 1 - beginnings / learnt
    turns = max(1 - by_turns / learnt, 0.0) if turns_apply else None
    return LongChatLosses(chosen, rows, count, later, 1 - short / learnt, turns, later)


_RENDERING = (RenderedChats, RenderedInParts)


def _documents(
    config: LaneConfig, stages: tuple[BlockStage, ...], place: int, rendering: BlockStage
) -> Iterator[Documents]:
    """Yield the documents of the first conversations of a source, one by one.

    Args:
        config: the source alone, in one lane.
        stages: its stages; the one at `place` is replaced by `rendering`.
    """
    changed = (*stages[:place], rendering, *stages[place + 1 :])
    config = replace(config, preparation=replace(config.preparation, stages=(changed,)))
    stream = mask_of(config)(open_stream(Opening(config, 0, ErrorPolicy("skip"))), None)
    count, last = 0, b""
    while (block := stream.peek()) is not None:
        for i in range(len(block)):
            document = block.take(np.array([i]))
            count += document.origin.tobytes() != last
            last = document.origin.tobytes()
            if count > CONVERSATIONS:
                return
            yield document
        stream.consume(len(block))
