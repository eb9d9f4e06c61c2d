"""Positions at which a part of a conversation may begin.

An *exchange* is what the user asks and everything up to the next question: answers, calls of tools
and their results. A part of a conversation begins with an exchange, or, inside a long one, with the
user's question and a later message of the assistant. It never begins between a call and its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from streampack.chats.templates.messages import Message

#: Roles of instructions, which every part keeps.
INSTRUCTIONS = ("system", "developer")
#: Roles of the results of tool calls.
RESULTS = ("tool", "function", "ipython", "environment")


class Start(NamedTuple):
    """A beginning of a part: the messages `kept` from before `begin`, and all from `begin` on."""

    kept: tuple[int, ...]
    begin: int

    def up_to(self, last: int) -> list[int]:
        """Return the indices of the part's messages up to message `last`."""
        return [*self.kept, *range(self.begin, last + 1)]


class Starts:
    """The beginnings of parts of a conversation.

    Args:
        messages: the messages of the conversation.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        roles = [message["role"] for message in messages]
        self._roles = roles
        self._instructions = [i for i, role in enumerate(roles) if role in INSTRUCTIONS]
        spoken = [i for i, role in enumerate(roles) if role not in INSTRUCTIONS]
        self._exchanges = [
            i
            for before, i in zip([None, *spoken], spoken, strict=False)
            if before is None or (roles[i] == "user" and roles[before] != "user")
        ]
        apart = _between_call_and_result(messages)
        self._whole = [i for i in self._exchanges if i not in apart]
        self._answers = [i for i in spoken if roles[i] == "assistant" and i not in apart]

    def before(self, turn: int) -> list[list[Start]]:
        """Return the beginnings of a part that learns message `turn`, in order of preference.

        Returns:
            Beginnings at an exchange, and beginnings at an answer with the question before it, each
            from the nearest to the farthest. A part without a question would be no conversation
            that templates know: some write the system's message into the first one.
        """
        asked = max(i for i in self._exchanges if i <= turn)
        answer = next(i for i in range(asked, turn + 1) if self._roles[i] == "assistant")
        question = [i for i in range(asked, answer) if self._roles[i] not in INSTRUCTIONS]
        answers = [i for i in reversed(self._answers) if answer <= i <= turn]
        return [
            [self._start(i) for i in reversed(self._whole) if i <= turn],
            [self._start(i, question) for i in answers if question and i > answer],
        ]

    def _start(self, begin: int, question: Sequence[int] = ()) -> Start:
        instructions = [i for i in self._instructions if i < begin]
        return Start(tuple(sorted([*instructions, *question])), begin)


def _between_call_and_result(messages: Sequence[Message]) -> set[int]:
    """Return the indices at which a part would have a result without its call."""
    indices: set[int] = set()
    call = 0
    calls: dict[Any, int] = {}
    for i, message in enumerate(messages):
        if message["role"] in RESULTS:
            indices.update(range(calls.get(message.get("tool_call_id"), call) + 1, i + 1))
        elif message["role"] == "assistant":
            call = i
            for tool_call in message.get("tool_calls") or ():
                name = tool_call.get("id")
                if isinstance(name, str):
                    calls[name] = i
    return indices
