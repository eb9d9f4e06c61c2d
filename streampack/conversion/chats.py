"""Conversations as documents of shards: rendered, tokenized and masked as in training."""

from __future__ import annotations

from streampack.chats.conversations import Conversations
from streampack.chats.source import Chat
from streampack.chats.stages import chat_tokenizer
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization.tokenizer import Tokenizer


class Chats:
    """Encoder of a source's conversations.

    Args:
        source: source of conversations.
        tokenizer: tokenizer, with the template of a source that has none.

    Attributes:
        fingerprint: see `ChatTokenizer`.

    Raises:
        ConfigError: see `ChatTokenizer`; or conversations longer than a row shall begin at a turn,
            which depends on the row.
    """

    def __init__(self, source: Chat, tokenizer: Tokenizer) -> None:
        if source.by_turns:
            raise ConfigError(
                'Conversations are cut for rows of one length, got overflow="turns".',
                "Leave out overflow=, and cut them in training.",
                setting="overflow",
            )
        self._chats = chat_tokenizer(source, tokenizer, source.template)
        self._name = source.document_name
        self.fingerprint = self._chats.fingerprint

    def encode(self, block: Conversations, skips: ErrorPolicy) -> Documents:
        """Return the documents of a block with their loss masks.

        Raises:
            ConfigError: a record is a preference pair.
            ContentError: a conversation is broken, with on_error="raise".
        """
        pair = next((i for i, c in enumerate(block.conversations) if c.rejected is not None), None)
        if pair is not None:
            name = self._name(block.origin[pair])
            raise ConfigError(
                f"Shards hold single documents, but {name} has a chosen and a rejected answer.",
                "Pass the files to PackedDataset unchanged; they need no shards.",
                setting="source",
                document=name,
            )
        return self._chats.encode(block, skips)
