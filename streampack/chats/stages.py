"""Block stages for sources of conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streampack.chats.conversations import Conversations
from streampack.chats.source import Chat
from streampack.chats.tokenizer import ChatTokenizer
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.sources.base import Source
from streampack.stages.base import BlockStage, Place
from streampack.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe


@dataclass(frozen=True, slots=True)
class SidesTold:
    """Refuse preference pairs unless the field "chosen" marks their rejected side."""

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
class RenderedChats:
    """Render conversations with a chat template and encode them."""

    tokenizer: ChatTokenizer

    def describe(self) -> Mapping[str, Any]:
        return {"tokenizer": self.tokenizer.fingerprint}

    def __call__(self, block: Conversations, place: Place) -> Documents:
        return self.tokenizer.encode(block, place.skips)


def chat_tokenizer(source: Chat, tokenizer: Tokenizer, template: Any) -> ChatTokenizer:
    """Return the tokenizer of a source's conversations, which a template renders.

    Args:
        source: source of conversations, with its rules.
        tokenizer: tokenizer of texts.
        template: template of the source, or a form of it; None is the tokenizer's own.
    """
    return ChatTokenizer(
        tokenizer,
        template,
        source.document_name,
        source.rules,
        source.template_kwargs,
        source.reading.most_text_bytes,
    )


def stages_of(recipe: Recipe, source: Source, tokenizer: Tokenizer) -> list[BlockStage]:
    """Return the stages for a source of conversations."""
    assert isinstance(source, Chat)
    chats = chat_tokenizer(source, tokenizer, recipe.with_margins(source.template))
    rendered: BlockStage = RenderedChats(chats)
    if source.by_turns:
        from streampack.chats.long_chats import LongChats, RenderedInParts

        rendered = RenderedInParts(LongChats(chats, source.rules, recipe.given["turns"]))
    return [rendered] if "chosen" in recipe.fields.document else [SidesTold(), rendered]
