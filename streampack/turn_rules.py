"""TurnRules: which parts of a conversation are learnt, and in how many documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streampack.errors import ConfigError

#: What a turn of the assistant can consist of.
PARTS = ("thinking", "content", "tool_calls")
TURNS = ("whole", "each")
THOUGHTS = ("keep", "mask", "strip-history")


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
            if value not in known:
                raise ConfigError(
                    f"{name} is {value!r}.",
                    "It decides what is learnt of a conversation.",
                    f"Use one of {', '.join(repr(word) for word in known)}.",
                )
        named = [learn] if isinstance(learn, str) else list(learn)
        if not named or not set(named) <= set(PARTS):
            raise ConfigError(
                f"learn is {learn!r}.",
                "It names the parts of the assistant's turns that carry loss.",
                f"Use some of {', '.join(repr(word) for word in PARTS)}, as a tuple.",
            )
        if thoughts == "strip-history" and turns != "each":
            raise ConfigError(
                'thoughts="strip-history" is given with turns="whole".',
                "In one document every turn but the last would lose its thoughts, and none of "
                "these would be learnt.",
                'Pass turns="each" too.',
            )
        if thoughts == "mask":
            named = [part for part in named if part != "thinking"]
            if not named:
                raise ConfigError(
                    'thoughts="mask" is given with learn=("thinking",).',
                    "Nothing would be learnt.",
                    "Leave one of them out.",
                )
        return cls(turns, thoughts, tuple(part for part in PARTS if part in named))

    def describe(self) -> dict[str, Any]:
        """JSON-able: what differs from the default."""
        default = TurnRules()
        own = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in own.items() if value != getattr(default, name)}
