"""Prompts in the order of a source, each with its serial, and positions to reread them from."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.changes.fields import first_difference
from streampack.dataset import PackedDataset
from streampack.documents.text_keys import text_of_key
from streampack.errors import ConfigError, StateError
from streampack.run.fingerprint import fingerprint_of
from streampack.sources.error_policy import ErrorPolicy
from streampack.stages.token_rules import TokenRules
from streampack.streams.base import LaneStream, Opening, StreamPosition
from streampack.streams.lane_stream import open_stream

_ROW = 1 << 24  # slots of a row that holds any prompt; prompts are not packed
#: Parts of a run's fingerprint that its documents and their order do not depend on.
_OF_ROWS = ("packer", "attention", "balance", "window", "batch_tokens", "lanes", "dealing")


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A prompt of the stream.

    Attributes:
        ids: (T,) int64 token ids.
        fields: values of the declared `document_fields` by name; texts are `str`.
    """

    ids: NDArray[np.int64]
    fields: Mapping[str, Any]

    @property
    def digest(self) -> int:
        """32 bits by which a resumed run detects another prompt with the same serial."""
        return zlib.crc32(self.ids.tobytes())


class Prompts:
    """The prompts of any source or mixture, in its order, numbered from 0.

    They are read in one lane, by the process that owns the queue. No end-of-document id is added.
    Chats are sources of ``sources.Chat(data, turns="prompt")``: their ids equal the result of
    transformers' ``apply_chat_template(messages, add_generation_prompt=True)``.

    Args:
        source: see `PackedDataset`.
        epochs: passes over the source; None is endless, and repeats prompts under new serials.
        token_rules: see `PackedDataset`.
        settings: further arguments of `PackedDataset` that choose, tokenize and order documents:
            `tokenizer`, `text`, `tokens`, `filter`, `map`, `document_fields`, `seed`, `shuffle`,
            `on_error`.

    Raises:
        ConfigError: see `PackedDataset`.
    """

    def __init__(
        self,
        source: Any,
        *,
        epochs: int | None = None,
        token_rules: TokenRules | None = None,
        **settings: Any,
    ) -> None:
        rules = token_rules or TokenRules()
        rules = replace(rules, eos=rules.eos or "as-is")
        settings |= {"epochs": epochs, "token_rules": rules, "lanes": 1}
        dataset = PackedDataset(source, seq_len=_ROW, batch_size=1, **settings)
        self._config = dataset._config
        parts: list[Any] = [*self._config.source._parts.values()]
        for part in parts:
            if getattr(part, "renders", False) and part.rules.turns != "prompt":
                raise ConfigError(
                    f"Prompts must be chats that wait for an answer, got {part!r:.100}.",
                    'Pass sources.Chat(data, turns="prompt"); for images, the rendered prompts.',
                    setting="source",
                )
        declared = self._fingerprint()["fields"] or {"document": {}}
        self._texts = {name for name, kind in declared["document"].items() if kind == "text"}
        self._stream: LaneStream | None = None
        self._error: Exception | None = None
        self._start(StreamPosition(0, {}), 0)

    def has(self, serial: int) -> bool:
        """Return whether the stream has a prompt with this serial; step over earlier ones.

        Raises:
            StreampackError: a document cannot be read; later calls raise the same error.
        """
        if self._error is not None:
            raise self._error
        try:
            stream = self._stream or self._open()
            return not stream.step_over(serial - stream.serial) and stream.peek() is not None
        except Exception as error:
            self._error = error
            raise

    def read(self, serial: int) -> Prompt:
        """Return a prompt; serials must increase from call to call.

        Raises:
            StateError: the stream ends before it.
            ConfigError: a record holds several documents.
        """
        if not self.has(serial):
            raise StateError(
                f"Prompt {serial} was in flight when the state was saved, and the source now ends "
                "before it.",
                "Resume with the same data and code, or start a new run.",
            )
        assert self._stream is not None
        block = self._stream.peek()
        assert block is not None
        if block.members is not None:
            raise ConfigError(
                "A record must hold one prompt, got one of several documents.",
                "Pass records with one text or one list of ids.",
                setting="source",
            )
        fields = {
            name: text_of_key(int(values[0])) if name in self._texts else values[0].item()
            for name, values in block.document_fields.items()
        }
        self._stream.consume(1)
        return Prompt(block.document(0).astype(np.int64), fields)

    def state(self, oldest: int) -> dict[str, Any]:
        """Return the JSON-able position from which prompts from serial `oldest` on are reread."""
        position = self._position if self._stream is None else self._stream.position_before(oldest)
        skipped = self._skips.counts.skipped
        return {
            "fingerprint": self._fingerprint(),
            "serial": position.serial,
            "cursor": position.cursor,
            "skipped": skipped,
        }

    def forget_before(self, oldest: int) -> None:
        """Forget positions from which only prompts before serial `oldest` are reread."""
        if self._stream is not None:
            self._stream.position_before(oldest)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position.

        Raises:
            StateError: the state was saved with another source or settings.
        """
        saved = state["fingerprint"]
        source = self._config.source._as_saved(saved["source"])
        self._config = replace(self._config, source=source)
        current = self._fingerprint()
        if saved != current:
            name, before, now = first_difference(saved, current)
            raise StateError(
                f"`{name}` of the prompts was {before} when the state was saved and is {now} now.",
                "Restore the old setting, or start a new run.",
                setting=name,
            )
        self._start(StreamPosition(state["serial"], state["cursor"]), state["skipped"])

    def _start(self, position: StreamPosition, skipped: int) -> None:
        self._position = position
        self._stream = self._error = None
        self._skips = ErrorPolicy(self._config.on_error)
        self._skips.counts.skipped = skipped

    def _open(self) -> LaneStream:
        position = self._position if self._position.cursor else None
        self._stream = open_stream(Opening(self._config, 0, self._skips, position=position))
        return self._stream

    def _fingerprint(self) -> dict[str, Any]:
        described = fingerprint_of(self._config)
        return {name: value for name, value in described.items() if name not in _OF_ROWS}
