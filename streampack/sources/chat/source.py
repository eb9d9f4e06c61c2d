"""Chat: conversations in files or in memory, of which only the assistant's turns are learnt.

The source reads and checks records. `streampack.tokenization.chat` renders and tokenizes them, and
decides which tokens carry loss.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.conversations import PARTS, TurnRules
from streampack.errors import ConfigError
from streampack.fields import FieldTypes
from streampack.packing.overflow import Overflow
from streampack.reading.base import Block, Source
from streampack.reading.fields import Fields
from streampack.reading.manifest import Manifest
from streampack.reading.options import Reading
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources.chat.blocks import block_of, field_names, holds_ids, record_size
from streampack.sources.chat.records import SHAPES
from streampack.sources.chat.rows import ChatItems, ChatLines, ChatRows, ChatTable
from streampack.sources.iterable.hf import HFStream
from streampack.sources.iterable.item_source import ItemSource
from streampack.sources.iterable.objects import is_random_access, kind_name
from streampack.sources.iterable.recognise import is_by_columns, is_hf_stream, refuse_no_corpus
from streampack.sources.iterable.source import Iterable
from streampack.sources.parquet.source import Parquet
from streampack.storage.patterns import has_ending, named_paths
from streampack.storage.storage import Storage
from streampack.unknown_arguments import explained


class Chat(Source):
    """Instruction and chat data: one conversation per line of JSON, row of a table, or item.

    A record has one of these shapes, known by its fields:

    - "messages": ``{"messages": [{"role": ..., "content": ...}, ...]}``;
    - "sharegpt": ``{"conversations": [{"from": ..., "value": ...}, ...]}``;
    - "alpaca": ``{"instruction": text, "output": text}``, optionally with ``"input"``;
    - "completion": ``{"prompt": [messages], "completion": [messages]}``, of which the completion's
      turns are learnt; or two texts, joined as they are and ended by EOS, or, where `template` is
      given, a user's and an assistant's turn;
    - "preference": ``{"prompt": ..., "chosen": ..., "rejected": ...}`` of texts or messages; the
      prompt may be left out where both sides begin with it. It makes two documents, the chosen one
      first, whose document fields "group" and "chosen" say which belong together;
    - ``{"input_ids": [...]}`` with ``"labels"`` (a token's own id, or -100), or with a mask in
      ``"loss_mask"``, ``"assistant_masks"`` or ``"completion_mask"``; of several, all must say so.

    Beside messages there may be ``"tools"`` and ``"system"``. Content may be text or a list of
    parts of text. Every token of an assistant's turn carries loss, with the token that ends it, and
    no other token does; a turn whose message has ``"weight": 0``, ``"train": false`` or
    ``"loss": false`` carries none. Conversations longer than a row are dropped, counted and named,
    unless the packer that is passed does something else.

    Args:
        data: files, directories, globs or brace expansions, local or any fsspec URL, read as
            Parquet if all names end so, otherwise as JSON lines (plain or compressed). Or records
            in memory: a list of them, a dataset of Hugging Face, a table of pyarrow, pandas or
            polars, and whatever else `Iterable` takes. Lists and tables are cut among any number
            of lanes; of what comes one by one there are as many as `Iterable` and `HFStream` give.
        template: a Jinja chat template, or the path of one. None is the tokenizer's.
        template_kwargs: what the template can use besides, by name, such as
            ``{"enable_thinking": False}``; values are what JSON has. "strftime_now" is the date
            that a template asks for, in ISO format: ``{"strftime_now": "2025-07-26"}``.
        turns: "whole" makes one document of a conversation. "each" makes one of every turn that is
            learnt, with what comes before it as context, rendered as for generating that turn.
        thoughts: "keep" leaves them to the template; "mask" renders them without loss;
            "strip-history" takes them out of earlier turns, which goes with ``turns="each"``.
        learn: the parts of a turn that carry loss. One that a message has and the template leaves
            out makes the conversation broken.
        shape: of all records; None tells it by each record's fields.
        reading: how a lane reads the data.
        storage: how files are reached and cached; for files.

    Raises:
        ConfigError: no such template, arguments that do not go together, or data whose fields hold
            no conversations.
    """

    overflow: Overflow = "drop"

    own_groups = "group"

    kind = "Chat"

    def __new__(cls, data: Any = None, **_: Any) -> Chat:
        """One of the two below, by how the data can be read."""
        if cls is not Chat:  # made already, and copied or sent to another process
            return super().__new__(cls)
        return super().__new__(ChatInShards if _in_shards(data) else ChatStream)

    @explained
    def __init__(
        self,
        data: Any,
        *,
        template: str | Path | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        turns: str = "whole",
        thoughts: str = "keep",
        learn: Sequence[str] = PARTS,
        shape: str | None = None,
        reading: Reading | None = None,
        storage: Storage | None = None,
    ) -> None:
        if storage is not None and not _names_files(data):
            raise ConfigError(
                f"storage was given, and data is {kind_name(data)}.",
                "It says how files are reached.",
                "Leave storage out.",
            )
        self.template = None if template is None else _read_template(template)
        self.template_kwargs = _checked_kwargs(template_kwargs or {})
        self.rules = TurnRules.of(turns, thoughts, learn)
        self.shape = _checked_shape(shape)
        self._open(data, reading, storage)

    @abstractmethod
    def _open(self, data: Any, reading: Reading | None, storage: Storage | None) -> None:
        """Take the data."""

    def described_rules(self) -> dict[str, Any]:
        """The form of the records, the template that was given, and what is learnt."""
        template = self.template
        described = {
            "tokenized": self.tokenized,
            "template": template and hashlib.blake2b(template.encode(), digest_size=8).hexdigest(),
            **self.rules.describe(),
        }
        chosen = {"template_kwargs": self.template_kwargs, "shape": self.shape}
        return described | {name: value for name, value in chosen.items() if value}


class ChatInShards(Chat, ShardedSource):
    """Conversations in files, or in memory where any record can be asked for: of any lanes."""

    def _open(self, data: Any, reading: Reading | None, storage: Storage | None) -> None:
        ShardedSource.__init__(self, reading=reading, storage=storage)
        self._rows = self._reader(data)
        self._rows.shape = self.shape
        self.paths = self._rows.paths
        self.position_unit = self._rows.position_unit

    def _reader(self, data: Any) -> ChatLines | ChatRows:
        if is_by_columns(data):
            return ChatTable(data, reading=self.reading)
        if not _names_files(data):
            return ChatItems(data, reading=self.reading)
        names = named_paths(data)
        if all(has_ending(name, Parquet.endings) for name in names):
            return ChatRows(names, reading=self.reading, storage=self.storage)
        return ChatLines(names, reading=self.reading, storage=self.storage)

    def __repr__(self) -> str:
        rows = self._rows
        if not isinstance(rows, ChatTable):
            return super().__repr__()
        return f"Chat({len(rows.data):,} {rows.words[0]}s)"

    @property
    def tokenized(self) -> bool:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if the records hold ids; lists the files on first use."""
        _ = self.manifest
        return self._rows.tokenized

    def with_fields(self, types: FieldTypes) -> ChatInShards:
        made = copy.copy(self)
        made._rows = self._rows.with_fields(types)  # type: ignore[assignment]
        return made

    def list_shards(self) -> Manifest:
        return self._rows.manifest

    def will_read(self, shards: Sequence[int]) -> None:
        self._rows.will_read(shards)

    def describe(self) -> dict[str, Any]:
        return {**ShardedSource.describe(self), **self.described_rules()}

    def estimate_tokens(self) -> int:
        return self._rows.estimate_tokens()

    def reader_bytes(self) -> int:
        return self._rows.reader_bytes()

    def document_name(self, origin: np.void) -> str:
        return self._rows.document_name(origin)

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: Skips
    ) -> Iterator[tuple[Block, int, int]]:
        yield from self._rows.read_shard(shard, low, high, position, skips)


class ChatStream(Chat, ItemSource):
    """Conversations that come one by one, as the source of `items` gives them."""

    def _open(self, data: Any, reading: Reading | None, storage: Storage | None) -> None:
        ItemSource.__init__(self, reading)
        self.items: ItemSource = Iterable(data, text="messages", reading=reading)
        first = self.items.first_item()
        if is_hf_stream(data):
            self.items = HFStream(data, text=next(iter(first), None), reading=reading)
        tokenized = holds_ids(field_names([first]), "The first item of data", self.shape)
        self.tokenized = tokenized
        self.fields = Fields(tokenized, "input_ids" if tokenized else "messages")
        self.once = self.items.once
        self._from = kind_name(data)

    def __repr__(self) -> str:
        return f"Chat({self._from} of records)"

    def describe(self) -> dict[str, Any]:
        return {**self.items.describe(), **ItemSource.describe(self), **self.described_rules()}

    def max_lanes(self) -> int | None:
        return self.items.max_lanes()

    def open_lane(self, lane: int, lanes: int, epoch: int, shuffle: bool, resume: bool) -> Any:
        return self.items.open_lane(lane, lanes, epoch, shuffle, resume)

    def item_size(self, item: Any) -> int:
        return record_size(item)

    def item_block(
        self, items: Sequence[Any], origin: NDArray[np.void]
    ) -> tuple[Block, dict[int, str]]:
        return block_of(items, origin, self.tokenized, self.shape, self.field_types)

    def more_lanes(self, most: int) -> str:
        return self.items.more_lanes(most)


def _names_files(data: Any) -> bool:
    """True for a path, or a list of them."""
    one = data[0] if isinstance(data, Sequence) and len(data) else data
    return isinstance(one, (str, os.PathLike))


def _in_shards(data: Any) -> bool:
    """True for files, and what is in memory and can be asked for any record."""
    if _names_files(data):
        return True
    refuse_no_corpus(data)
    return is_by_columns(data) or is_random_access(data)


def _read_template(template: str | Path) -> str:
    """The template itself, from its file if that is what is named."""
    if isinstance(template, str) and "{" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"template is {str(template)!r:.200}: {error}.",
            "It is neither a Jinja template, which would have braces, nor a file that holds one.",
            "Pass the template, its path, or a tokenizer that has one.",
        ) from error


def _checked_shape(shape: str | None) -> str | None:
    if shape is not None and shape not in SHAPES:
        raise ConfigError(
            f"shape is {shape!r}.",
            "It says how records hold a conversation.",
            f"Use one of {', '.join(map(repr, SHAPES))}, or leave it out.",
        )
    return shape


#: Variables of a template that the conversation gives.
_OF_CONVERSATIONS = ("messages", "tools", "documents", "add_generation_prompt")


def _checked_kwargs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Copied by way of JSON, so that a fingerprint can tell them apart."""
    taken = [name for name in given if name in _OF_CONVERSATIONS or not isinstance(name, str)]
    if taken:
        raise ConfigError(
            f"template_kwargs has {taken[0]!r}.",
            "That is given by the conversation, or is no name.",
            "Leave it out.",
        )
    try:
        kwargs: dict[str, Any] = json.loads(json.dumps(dict(given), sort_keys=True))
        if "strftime_now" in kwargs:
            datetime.fromisoformat(kwargs["strftime_now"])
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"template_kwargs is {dict(given)!r:.200}: {error}.",
            "A resumed run must render the same texts, so its values are plain, and a date is "
            "fixed.",
            "Use what JSON has: texts, numbers, true and false, lists and objects; and a date as "
            '"2025-07-26".',
        ) from error
    return kwargs
