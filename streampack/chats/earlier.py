"""The records that revision 1 read otherwise, for runs that it began.

It read the marks "weight", "train" and "loss" in messages and false labels beside them, and refused
some forms that are read now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from streampack.chats.fields import SPEAKERS
from streampack.chats.marks import MARKS, excluding_field, is_learnt
from streampack.sources.records import BrokenDocumentError

_KNOWN = ("weight", "train", "loss")
_NEW = ("chosen_messages", "rejected_messages", "rejected_response")


def read_otherwise(record: Mapping[str, Any], declared: Collection[str]) -> str | None:
    """Return the name of a field that revision 1 read otherwise or not at all; None without one."""
    return next(_read_otherwise(record, declared), None)


def _read_otherwise(record: Mapping[str, Any], declared: Collection[str]) -> Iterator[str]:
    yield from (name for name in _NEW if record.get(name) is not None)
    yield from (name for name in ("chosen", "rejected") if isinstance(record.get(name), Mapping))
    if record.get("instruction") is not None and record.get("chosen") is not None:
        yield "chosen"
    for name in ("tools", "functions"):
        if isinstance(record.get(name), list) and any(isinstance(t, str) for t in record[name]):
            yield name
    excluding = excluding_field(record, declared)
    if excluding is not None and not (excluding == "label" and record["label"] is False):
        yield excluding
    for value in record.values():
        for message in value if isinstance(value, list) else ():
            if isinstance(message, Mapping):
                yield from _in_message(message)


def _in_message(message: Mapping[str, Any]) -> Iterator[str]:
    role = message.get("role") or SPEAKERS.get(str(message.get("from")))
    parts = message.get("content")
    for marked in (message, *(parts if isinstance(parts, list) else ())):
        if isinstance(marked, Mapping):
            new = {name: marked[name] for name in MARKS.intersection(marked) - {*_KNOWN}}
            if new and _changes(new, str(role)):
                yield next(iter(new))
    if isinstance(parts, list):
        yield from ("content" for part in parts if isinstance(part, Mapping) and "text" not in part)
    if message.get("from") is not None and message.get("value") is None and parts is not None:
        yield "content"
    if message.get("role") is not None and parts is None and message.get("value") is not None:
        yield "value"


def _changes(marks: Mapping[str, Any], role: str) -> bool:
    """Return True if the marks exclude a turn of the assistant, or are refused."""
    try:
        return not is_learnt(marks, role, "") and role == "assistant"
    except BrokenDocumentError:
        return True
