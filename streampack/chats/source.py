"""Chat: conversations in files or in memory; only the assistant's turns are learnt.

Another source reads the records, and `ChatReader` checks them. `streampack.chats.tokenizer`
renders and tokenizes them, and decides which tokens carry loss.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from streampack.arguments import explained, one_of
from streampack.chats.checked import REVISION
from streampack.chats.conversations import PARTS, TurnRules
from streampack.chats.reader import ChatReader
from streampack.chats.records import SHAPES
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.iterables.of_records import source_of_records
from streampack.packing.overflow import Overflow
from streampack.sources.base import Source
from streampack.sources.fields import RecordReader
from streampack.sources.reading import ReadOptions
from streampack.sources.sharded import ShardedSource
from streampack.storage.storage import Storage

if TYPE_CHECKING:
    from streampack.hooks.hook import Hook, RecordFunction
    from streampack.iterables.source import ItemSource


Method = TypeVar("Method", bound=Callable[..., Any])


def _of_records(method: Method) -> Method:
    """Return a method that calls the one of the same name of the source of the records."""

    @wraps(method, updated=())  # otherwise it would be abstract too
    def of_records(self: Chat, *arguments: Any, **named: Any) -> Any:
        return getattr(self._records, method.__name__)(*arguments, **named)

    return cast(Method, of_records)


class Chat(Source):
    """Instruction and chat data: one conversation per line of JSON, row of a table, or item.

    A record has one of these shapes, known by its fields:

    - "messages": ``{"messages": [{"role": ..., "content": ...}, ...]}``;
    - "sharegpt": ``{"conversations": [{"from": ..., "value": ...}, ...]}``;
    - "alpaca": ``{"instruction": text, "output": text}``, optionally with ``"input"``;
    - "completion": ``{"prompt": [messages], "completion": [messages]}``; only the completion's
      turns are learnt; or two texts, joined as they are and ended by EOS, or, if `template` is
      given, a user's and an assistant's turn;
    - "preference": ``{"prompt": ..., "chosen": ..., "rejected": ...}`` of texts or messages; the
      prompt may be left out where both sides begin with it. It makes two documents, the chosen one
      first; their document field "chosen" tells them apart;
    - ``{"input_ids": [...]}`` with ``"labels"`` (a token's own id, or -100), or with a mask in
      ``"loss_mask"``, ``"assistant_masks"`` or ``"completion_mask"``; with several, a token is
      learnt if it is learnt in all.

    Beside messages there may be ``"tools"`` and ``"system"``. Content may be text or a list of
    parts of text. Every token of an assistant's turn carries loss, with the token that ends it, and
    no other token does; a turn carries none if its message has ``"weight": 0``, ``"train": false``
    or another trainer's mark of this kind (``"loss_weight"``, ``"loss_mask"``, ``"masked": true``,
    ...). Conversations longer than a row are dropped, counted and named, unless the
    given packer has another policy.

    Args:
        data: files, directories, globs or brace expansions, local or any fsspec URL: Parquet, Arrow
            or JSON lines (plain or compressed), by the endings of their names. Or records in
            memory: a list of them, a dataset of Hugging Face, a table of pyarrow, pandas or polars,
            or any other input of `Iterable`. Lists and tables are cut among any number of lanes;
            streams and iterables have as many as `HFStream` and `Iterable` give.
        template: a Jinja chat template, or the path of one. None is the tokenizer's.
        template_kwargs: further variables of the template by name, such as
            ``{"enable_thinking": False}``, with JSON values. "strftime_now" is the date
            that a template asks for, in ISO format: ``{"strftime_now": "2025-07-26"}``.
        turns: "whole" makes one document of a conversation. "each" makes one of every learnt turn,
            with the messages before it as context, rendered as for generating that turn. "prompt"
            makes one without loss of the messages in "prompt", "messages" or "conversations", which
            end before the assistant's turn, with the generation prompt: for `rollouts.Prompts`.
        thoughts: "keep" leaves them to the template; "mask" renders them without loss;
            "strip-history" takes them out of earlier turns, and requires ``turns="each"``.
        learn: the parts of a turn that carry loss. A conversation with a part that the template
            leaves out counts as broken.
        overflow: "turns" makes documents that begin at a turn of a conversation longer than a row,
            each with the system's message, the tools, and turns before as context without loss; a
            turn longer than a row is cut like a text. None leaves such conversations to the packer.
        shape: shape of all records; None recognises it by each record's fields.
        records: function of a record (a dict with all of its fields, also of its file's path) that
            returns one of the shapes above, or None to leave the record out. A state
            identifies it by module and name; wrap a lambda in `Hook`.
        reading: limits of blocks and open shards.
        storage: access to files and their cache; only for files.

    Raises:
        ConfigError: there is no such template, the arguments exclude each other, or the fields of
            the data hold no conversations.
    """

    overflow: Overflow = "truncate"
    #: True if blocks are conversations, which a template renders.
    renders = True
    #: True if conversations longer than a row become documents that begin at a turn.
    by_turns = False
    _as_before = False  # True in a run that revision 1 of the reading of records began

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
        overflow: Literal["turns"] | None = None,
        shape: str | None = None,
        records: Hook | RecordFunction | None = None,
        reading: ReadOptions | None = None,
        storage: Storage | None = None,
    ) -> None:
        self._set(template, template_kwargs, TurnRules.of(turns, thoughts, learn), shape)
        if overflow is not None:
            one_of("overflow", overflow, ["turns"])
            one_of("turns", turns, ["whole", "each"])
        self.by_turns = overflow == "turns"
        if self.by_turns:  # a turn longer than a row is cut
            self.overflow = "split"
        elif turns == "each":  # a cut would take away the learnt turn, which is the last
            self.overflow = "drop"
        reader = ChatReader(self.shape, prompts=turns == "prompt")
        make = partial(source_of_records, data, reading=reading, storage=storage)
        self._records: Source = converted(records, make, reader) if records else make(reader)
        self.reading, self.once = self._records.reading, self._records.once

    def _set(
        self,
        template: str | Path | None,
        template_kwargs: Mapping[str, Any] | None,
        rules: TurnRules,
        shape: str | None,
    ) -> None:
        """Set the template, its variables and the rules for rendering conversations."""
        self.template = None if template is None else _read_template(template)
        self.template_kwargs = _checked_kwargs(template_kwargs or {})
        self.rules = rules
        if shape is not None:
            one_of("shape", shape, [*SHAPES])
        self.shape = shape

    def __repr__(self) -> str:
        return f"Chat({self._records!r})"

    @property
    def _inner(self) -> Source:
        """The source of the records."""
        return self._records

    @property
    def tokenized(self) -> bool:  # type: ignore[override]
        """True if the records hold ids; lists files to find out."""
        return self._records.tokenized

    @property
    def grouped(self) -> bool:
        """True if the two sides of a pair can be told apart."""
        return "chosen" in self.field_types.document

    @property
    def _several(self) -> bool:
        return self.grouped or self.rules.turns == "each"

    def _leaves(self) -> list[str]:
        return [*super()._leaves(), *(["turns"] if self.by_turns and not self.tokenized else [])]

    def _with_fields(self, types: FieldSpec) -> Chat:
        copied = cast(Chat, super()._with_fields(types))
        copied._records = self._records._with_fields(types)
        return copied

    prepare = _of_records(Source.prepare)
    lanes = _of_records(Source.lanes)
    max_lanes = _of_records(Source.max_lanes)
    estimate_tokens = _of_records(Source.estimate_tokens)
    document_name = _of_records(Source.document_name)
    _check_lanes = _of_records(Source._check_lanes)
    _reader_bytes = _of_records(Source._reader_bytes)
    _shard_name = _of_records(Source._shard_name)

    def describe(self) -> dict[str, Any]:
        """Add the shape of the records, the given template, and the rules on learnt turns."""
        template = self.template
        described = {
            **self._records.describe(),
            "kind": self._kind,
            "tokenized": self.tokenized,
            "template": template and hashlib.blake2b(template.encode(), digest_size=8).hexdigest(),
            **self.rules.describe(),
        }
        revision = None if self.tokenized or self._as_before else REVISION
        chosen = {
            "template_kwargs": self.template_kwargs,
            "shape": self.shape,
            "records": revision if self.renders else None,
        }
        return described | {name: value for name, value in chosen.items() if value}

    def _as_saved(self, described: Mapping[str, Any], how: str = "saved") -> Chat:
        records = self._records._as_saved(described, how)
        before = self.renders and "records" not in described
        if records is self._records and not before:
            return self
        copied = copy.copy(self)
        copied._records = records
        if before:
            copied._as_before = True
            copied._records = with_earlier_reading(cast("ShardedSource | ItemSource", records))
        return copied


def converted(
    function: Any, make: Callable[[RecordReader], Any], reader: RecordReader
) -> ShardedSource | ItemSource:
    """Return the source of the results of a function of records; see `record_function`."""
    from streampack.iterables.record_function import converting

    source: ShardedSource | ItemSource = converting(function, make, lambda kinds: reader)
    return source


def with_earlier_reading(
    records: ShardedSource | ItemSource,
) -> ShardedSource | ItemSource:
    """Return a source for a run of revision 1, which ends at a record that it read otherwise."""
    copied = copy.copy(records)
    reader = cast(Any, records.fields.records)
    if reader.function:  # of no run of revision 1
        return records
    reader = replace(reader, checked=replace(reader.checked, as_before=True))
    copied.fields = replace(records.fields, records=reader)
    return copied


def _read_template(template: str | Path) -> str:
    """Return the template's text, read from its file if `template` is a path."""
    if isinstance(template, str) and "{" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"template must be a chat template or its path, got {str(template)!r:.200}: {error}.",
            "Pass the template, its path, or a tokenizer that has one.",
            setting="template",
        ) from error


#: Variables of a template that come from the conversation.
_OF_CONVERSATIONS = ("messages", "tools", "documents", "add_generation_prompt")


def _checked_kwargs(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check and copy `template_kwargs` by way of JSON, so that fingerprints can compare them."""
    taken = [name for name in values if name in _OF_CONVERSATIONS or not isinstance(name, str)]
    if taken:
        raise ConfigError(
            f"template_kwargs must not set {taken[0]!r}, which comes from the conversation.",
            "Leave it out.",
            setting="template_kwargs",
        )
    try:
        kwargs: dict[str, Any] = json.loads(json.dumps(dict(values), sort_keys=True))
        if "strftime_now" in kwargs:
            datetime.fromisoformat(kwargs["strftime_now"])
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"template_kwargs must hold JSON values, got {dict(values)!r:.200}: {error}.",
            "Use JSON values: texts, numbers, true and false, lists and objects; and a date as "
            '"2025-07-26".',
            setting="template_kwargs",
        ) from error
    return kwargs
