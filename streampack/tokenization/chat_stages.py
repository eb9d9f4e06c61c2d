"""Stages of sources of conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streampack.documents.blocks import Documents
from streampack.documents.conversations import Conversations
from streampack.errors import ConfigError
from streampack.stages.base import Place
from streampack.tokenization.chat import ChatTokenizer


@dataclass(frozen=True, slots=True)
class SidesTold:
    """Pairs are refused of which nothing would tell the rejected side."""

    def describe(self) -> Mapping[str, Any]:
        return {}

    def __call__(self, block: Conversations, place: Place) -> Conversations:
        pair = next((i for i, c in enumerate(block.conversations) if c.rejected is not None), None)
        if pair is not None:
            name = place.name(block.origin[pair])
            raise ConfigError(
                f"{name[0].upper()}{name[1:]} has a chosen and a rejected answer, and no "
                'field "chosen" is declared.',
                'Pass document_fields={"chosen": "bool"}, and for chosen answers alone a filter= '
                'that returns documents.document_fields["chosen"].',
                setting="document_fields",
                document=name,
            )
        return block


@dataclass(frozen=True, slots=True)
class Rendered:
    """Conversations become documents, by a chat template."""

    tokenizer: ChatTokenizer

    def describe(self) -> Mapping[str, Any]:
        return {"tokenizer": self.tokenizer.fingerprint}

    def __call__(self, block: Conversations, place: Place) -> Documents:
        return self.tokenizer.encode(block, place.skips)
