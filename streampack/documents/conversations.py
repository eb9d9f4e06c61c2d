"""Conversations before a chat template renders them, and which parts of them are learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import one_of
from streampack.documents.blocks import Fields, part_of
from streampack.errors import ConfigError

#: What a turn of the assistant can consist of.
PARTS = ("thinking", "content", "tool_calls")
#: What stands in the text of a message for a part that is an image: private characters, which mean
#: nothing.
IMAGE_PART = "\ue0f3\ue0f4\ue0f3"
#: Fields that hold thoughts, as different models name them.
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
TURNS = ("whole", "each")
THOUGHTS = ("keep", "mask", "strip-history")


def thoughts_in_fields(message: Mapping[str, Any]) -> list[str]:
    """The fields of a message that hold thoughts."""
    there = [name for name in THOUGHT_FIELDS if name in message]
    return [name for name in there if isinstance(message[name], str) and message[name].strip()]


@dataclass(frozen=True, slots=True)
class TurnRules:
    """What is learnt of a conversation.

    Attributes:
        turns: "whole" makes one document of a conversation. "each" makes one of every turn that is
            learnt, with what comes before it as context, rendered as for generating that turn.
        thoughts: "keep" leaves them to the template; "mask" renders them without loss;
            "strip-history" also takes them out of earlier turns, which goes with `turns="each"`.
        learn: the parts of a turn that carry loss, out of `PARTS`. A part that a message has and
            that is to be learnt must be in the text, or the conversation is refused.
    """

    turns: str = "whole"
    thoughts: str = "keep"
    learn: tuple[str, ...] = PARTS

    @classmethod
    def of(cls, turns: str, thoughts: str, learn: Sequence[str]) -> TurnRules:
        """The rules that a source's arguments name.

        Raises:
            ConfigError: an argument is none of the words, or they do not go together.
        """
        for name, value, known in (("turns", turns, TURNS), ("thoughts", thoughts, THOUGHTS)):
            one_of(name, value, known)
        named = [learn] if isinstance(learn, str) else list(learn)
        if not named or not set(named) <= set(PARTS):
            raise ConfigError(
                f"learn is {learn!r}.",
                f"Use some of {', '.join(repr(word) for word in PARTS)}, as a tuple.",
                setting="learn",
            )
        if thoughts == "strip-history" and turns != "each":
            raise ConfigError(
                'thoughts="strip-history" is given with turns="whole".',
                'Pass turns="each" too.',
                setting="thoughts",
            )
        if thoughts == "mask":
            named = [part for part in named if part != "thinking"]
            if not named:
                raise ConfigError(
                    'thoughts="mask" is given with learn=("thinking",).',
                    "Leave one of them out.",
                    setting="thoughts",
                )
        return cls(turns, thoughts, tuple(part for part in PARTS if part in named))

    def describe(self) -> dict[str, Any]:
        """JSON-able: what differs from the default."""
        default = TurnRules()
        own = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in own.items() if value != getattr(default, name)}


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation as a record has it.

    Attributes:
        messages: at least one, each with "role" and "content" (text, or None beside tool calls or
            thoughts), and whatever else a chat template may read.
        first_learnt: number of the first message whose turn may carry loss; 0, or the length of
            a prompt that is itself a list of messages.
        tools: descriptions of the functions the assistant may call, or None.
        plain: a prompt and a completion that are text, which need no template.
        left_out: numbers of the assistant's messages whose turns carry no loss all the same.
        rejected: of a preference pair, whose chosen side this is, the other one; else None.
        in_parts: the chat template takes content as a list of parts, as those for images do.
    """

    messages: Sequence[Mapping[str, Any]]
    first_learnt: int = 0
    tools: Sequence[Any] | None = None
    plain: bool = False
    left_out: frozenset[int] = frozenset()
    rejected: Conversation | None = None
    in_parts: bool = False

    def learns(self, number: int) -> bool:
        """True if the turn of this message carries loss."""
        if number < self.first_learnt or number in self.left_out:
            return False
        return bool(self.messages[number]["role"] == "assistant")

    @property
    def num_characters(self) -> int:
        """Characters of the messages' contents, of both sides of a pair."""
        own = sum(len(message["content"] or "") for message in self.messages)
        return own + (self.rejected.num_characters if self.rejected else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Conversations:
    """A block of N conversations that are not rendered yet.

    Attributes:
        conversations: N of them.
        origin: (N,) of dtype `ORIGIN`.
        document_fields: by name, (N,) values of the conversations.
    """

    conversations: Sequence[Conversation]
    origin: NDArray[np.void]
    document_fields: Fields = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.conversations)

    @property
    def num_characters(self) -> list[int]:
        """Characters of each conversation."""
        return [conversation.num_characters for conversation in self.conversations]

    def __getitem__(self, index: slice) -> Conversations:
        fields = part_of(self.document_fields, index)
        return Conversations(self.conversations[index], self.origin[index], fields)

    def take(self, order: NDArray[np.int64]) -> Conversations:
        """The conversations `order` (M,), in that order."""
        conversations = [self.conversations[i] for i in order.tolist()]
        fields = part_of(self.document_fields, order)
        return Conversations(conversations, self.origin[order], fields)
