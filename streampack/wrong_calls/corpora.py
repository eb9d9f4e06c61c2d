"""Errors for objects that hold no corpus, and for records with unknown documents."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from streampack.arguments import with_article
from streampack.errors import ConfigError
from streampack.sources import recognise
from streampack.sources.items import kind_name

#: Calls that return the rows of lazy objects, by the beginnings of the classes' names.
_CALLS = (
    ("polars.lazyframe.", "collect"),
    ("pyarrow._dataset.", "to_table"),
    ("pyarrow.parquet.", "read"),
    ("pyarrow.", "read_all"),
    ("lance.", "to_table"),
    ("deltalake.", "to_pyarrow_table"),
)


_OF_CHATS = ("messages", "conversations", "completion", "chosen")


def refuse_no_corpus(data: Any, *, is_table: bool = False) -> None:
    """Raise `ConfigError` for an object without documents, or without rows in memory.

    Args:
        data: the object.
        is_table: True to accept tables.
    """
    kind = kind_name(data)
    for prefix, call in _CALLS:
        if kind.startswith(prefix) and hasattr(data, call):
            files = "its files, data.files, or " if hasattr(data, "files") else ""
            raise ConfigError(
                f"data must have its rows in memory, got {with_article(kind)}.",
                f"Pass {files}its rows, sources.Table(data.{call}()).",
                setting="data",
            )
    array = kind.startswith("pyarrow.") and not recognise.is_table(data)
    if is_table or array:
        return
    keys = ", ".join(repr(key) for key in list(data)[:10]) if isinstance(data, Mapping) else ""
    remedy = (
        "Pass one corpus: paths, or a list of texts, token ids or records; a table to "
        "sources.Table, several corpora in a sources.Mixture."
    )
    if kind.startswith("datasets.") and keys:
        remedy = f"Pass one of its splits, such as data[{next(iter(data))!r}]."
    raise ConfigError(
        f"data must be a corpus, got {with_article(kind)}{keys and f' with the keys {keys}'}.",
        remedy,
        setting="data",
    )


def unknown_document(fits: Sequence[str], kinds: Mapping[str, str], where: str) -> ConfigError:
    """Return the error for records of these fields, where several or none may be the documents.

    The advice names a field only if no other may be meant: the first of many texts is often a key.
    """
    fields = ", ".join(f'"{name}"' for name in list(kinds)[:30]) or "(none)"
    chats = chat_fields(kinds)
    held = fits or [name for name, kind in kinds.items() if kind in ("text", "tokens", "several")]
    given = "text= with the field of the texts, or tokens= with the field of the ids"
    if fits or len(held) == 1:
        words = ["tokens" if kinds[name] in ("tokens", "several") else "text" for name in held]
        given = " or ".join(f"{word}={name!r}" for word, name in zip(words, held, strict=True))
    remedy = f"{given} (--text, --tokens)."
    if chats and not fits:
        remedy = f"sources.Chat(path) for conversations (--chat), or {remedy}"
    which = f", and {' and '.join(map(repr, fits))} may be the documents" if fits else ""
    fact = f"{where} has the fields {fields}{which}."
    return ConfigError(fact, f"Pass {remedy}", setting="text")


def chat_fields(names: Collection[str]) -> list[str]:
    """Return the fields among `names` that hold conversations, as `sources.Chat` reads them."""
    known = (*_OF_CHATS, "output") if "instruction" in names else _OF_CHATS
    return [name for name in known if name in names]
