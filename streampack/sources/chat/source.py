"""Chat: conversations in JSON lines or Parquet, of which only the assistant's turns are learnt.

The source reads and checks records. `streampack.tokenization.chat` renders and tokenizes them, and
decides which tokens carry loss.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streampack.errors import ConfigError
from streampack.fields import FieldTypes
from streampack.packing.overflow import Overflow
from streampack.reading.base import Block
from streampack.reading.manifest import Manifest
from streampack.reading.options import Reading
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources.chat.rows import ChatLines, ChatRows
from streampack.sources.parquet.source import Parquet
from streampack.storage.patterns import has_ending
from streampack.storage.storage import Storage

__all__ = ["Chat"]


class Chat(ShardedSource):
    """Instruction and chat data: one conversation per line of JSON or row of Parquet.

    A record is one of

    - ``{"messages": [{"role": ..., "content": ...}, ...]}``, and optionally ``"tools"``;
    - ``{"prompt": [messages], "completion": [messages]}``: the completion's turns are learnt;
    - ``{"prompt": text, "completion": text}``: joined as they are and ended by EOS, or, where
      `template` is given, a user's and an assistant's turn;
    - ``{"input_ids": [...]}`` with ``"labels"`` (a token's own id, or -100) or ``"loss_mask"``.

    Content may be text or a list of parts of text. Every token of an assistant's turn carries
    loss, with the token that ends it, and no other token does; a turn whose message has
    ``"weight": 0`` or ``"train": false`` carries none. Conversations longer than a row
    are dropped, counted and named, unless the packer that is passed does something else.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL. They are
            read as Parquet if all names end so, otherwise as JSON lines (plain or compressed).
        template: a Jinja chat template, or the path of one. None is the tokenizer's.
        reading: how a lane reads the files.
        storage: how files are reached and cached.

    Raises:
        ConfigError: no such template, or files whose fields hold no conversations.
    """

    overflow: Overflow = "drop"

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        template: str | Path | None = None,
        reading: Reading | None = None,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(reading=reading, storage=storage)
        self.paths = paths
        self.template = None if template is None else _read_template(template)
        names = [paths] if isinstance(paths, (str, Path)) else list(paths)
        self._rows: ChatLines | ChatRows
        if names and all(has_ending(str(name), Parquet.endings) for name in names):
            self._rows = ChatRows(paths, reading=self.reading, storage=self.storage)
        else:
            self._rows = ChatLines(paths, reading=self.reading, storage=self.storage)
        self.position_unit = self._rows.position_unit

    @property
    def tokenized(self) -> bool:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if the records hold ids; lists the files on first use."""
        _ = self.manifest
        return self._rows.tokenized

    def with_fields(self, types: FieldTypes) -> Chat:
        made = copy.copy(self)
        made._rows = self._rows.with_fields(types)  # type: ignore[assignment]
        return made

    def list_shards(self) -> Manifest:
        return self._rows.manifest

    def describe(self) -> dict[str, Any]:
        """Adds the form of the records and the template that was given."""
        template = self.template
        return {
            **super().describe(),
            "tokenized": self.tokenized,
            "template": template and hashlib.blake2b(template.encode(), digest_size=8).hexdigest(),
        }

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
