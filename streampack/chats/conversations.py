"""Conversations before a chat template renders them, and rules for the parts that carry loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import one_of
from streampack.documents.blocks import Fields, part_of
from streampack.errors import ConfigError

#: Parts of an assistant's turn.
PARTS = ("thinking", "content", "tool_calls")
#: Placeholders of images, films and sounds in the text of a message: private-use characters
#: without a meaning.
IMAGE_PART, VIDEO_PART, AUDIO_PART = (f"\ue0f3{kind}\ue0f3" for kind in "\ue0f4\ue0f5\ue0f6")
#: Types of the parts in messages that they stand for.
MEDIA_PARTS = {IMAGE_PART: "image", VIDEO_PART: "video", AUDIO_PART: "audio"}
#: Names of the message field for thoughts in different models.
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
TURNS = ("whole", "each", "prompt")
THOUGHTS = ("keep", "mask", "strip-history")


def thoughts_in_fields(message: Mapping[str, Any]) -> list[str]:
    """Return the names of a message's fields that hold thoughts."""
    names = [name for name in THOUGHT_FIELDS if name in message]
    return [name for name in names if isinstance(message[name], str) and message[name].strip()]


@dataclass(frozen=True, slots=True)
class TurnRules:
    """Rules for the documents made from a conversation and the tokens that carry loss.

    Attributes:
        turns: "whole" makes one document of a conversation. "each" makes a document of every
            learnt turn, with the earlier messages as context, rendered as for generating that turn.
            "prompt" makes a document without loss of messages that wait for an answer.
        thoughts: "keep" leaves them to the template; "mask" renders them without loss;
            "strip-history" removes them from earlier turns and requires `turns="each"`.
        learn: parts of a turn that carry loss, a subset of `PARTS`. If a message has such a part
            and the rendered text lacks it, the conversation is refused.
    """

    turns: str = "whole"
    thoughts: str = "keep"
    learn: tuple[str, ...] = PARTS

    @classmethod
    def of(cls, turns: str, thoughts: str, learn: Sequence[str]) -> TurnRules:
        """Validate a source's arguments and return them as rules.

        Raises:
            ConfigError: an argument has an unknown value, or two of them exclude each other.
        """
        for name, value, known in (("turns", turns, TURNS), ("thoughts", thoughts, THOUGHTS)):
            one_of(name, value, known)
        named = [learn] if isinstance(learn, str) else list(learn)
        if not named or not set(named) <= set(PARTS):
            raise ConfigError(
                f"learn must be a tuple of parts of a turn, got {learn!r}.",
                f"Use some of {', '.join(repr(word) for word in PARTS)}.",
                setting="learn",
            )
        if thoughts == "strip-history" and turns != "each":
            raise ConfigError(
                'thoughts="strip-history" requires turns="each", got turns="whole".',
                'Pass turns="each" too.',
                setting="thoughts",
            )
        if thoughts == "mask":
            named = [part for part in named if part != "thinking"]
            if not named:
                raise ConfigError(
                    'thoughts="mask" cannot be combined with learn=("thinking",).',
                    "Leave one of them out.",
                    setting="thoughts",
                )
        return cls(turns, thoughts, tuple(part for part in PARTS if part in named))

    def describe(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, JSON-compatible."""
        default = TurnRules()
        settings = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in settings.items() if value != getattr(default, name)}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation of a record.

    Attributes:
        messages: at least one, each with "role" and "content" (text, or None beside tool calls or
            thoughts), and any other keys that a chat template reads.
        first_learnt: index of the first message that may carry loss; 0, or the length of a prompt
            that is itself a list of messages.
        tools: descriptions of the functions that the assistant may call, or None.
        plain: True for a prompt and a completion as text, which need no template.
        left_out: indices of assistant messages after `first_learnt` that carry no loss.
        rejected: the rejected conversation of a preference pair, of which this is the chosen one;
            else None.
        in_parts: True if the chat template takes content as a list of parts, as templates for
            images do.
    """

    messages: Sequence[Mapping[str, Any]]
    first_learnt: int = 0
    tools: Sequence[Any] | None = None
    plain: bool = False
    left_out: frozenset[int] = frozenset()
    rejected: Conversation | None = None
    in_parts: bool = False

    def learns(self, number: int) -> bool:
        """Return True if the turn of the message with index `number` carries loss."""
        if number < self.first_learnt or number in self.left_out:
            return False
        return bool(self.messages[number]["role"] == "assistant")

    @property
    def num_characters(self) -> int:
        """Number of characters of the messages' contents, in both sides of a pair."""
        characters = sum(len(message["content"] or "") for message in self.messages)
        return characters + (self.rejected.num_characters if self.rejected else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Conversations:
    """A block of N conversations that are not rendered yet.

    Attributes:
        conversations: N conversations.
        origin: (N,) of dtype `ORIGIN`.
        document_fields: values (N,) of the conversations by field name.
    """

    conversations: Sequence[Conversation]
    origin: NDArray[np.void]
    document_fields: Fields = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.conversations)

    @property
    def num_characters(self) -> list[int]:
        """Number of characters of each conversation."""
        return [conversation.num_characters for conversation in self.conversations]

    def __getitem__(self, index: slice) -> Conversations:
        fields = part_of(self.document_fields, index)
        return Conversations(self.conversations[index], self.origin[index], fields)

    def take(self, order: NDArray[np.int64]) -> Conversations:
        """Return the conversations `order` (M,), in that order."""
        conversations = [self.conversations[i] for i in order.tolist()]
        fields = part_of(self.document_fields, order)
        return Conversations(conversations, self.origin[order], fields)
