"""Documents as the only source of their facts: the corpus of the recall experiment.

A fact is a key with a random value. A document states it once ("key value") and asks for it once,
later ("? key", and the value is the answer), among fillers. Keys and values are drawn anew for
every document, so only the document contains the answer.

Two kinds of documents have more. A document of an event names the event and, `EVENT_DISTANCE`
tokens later, its date: a pair that is the same in all documents, so that it can only be learnt by
heart; for half of the events the end of a row of 256 lies between the two, if a document is cut
where its rows end. Documents of a group share a table of facts: each states half of it and asks
also for facts that it does not state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EOS",
    "EVENTS",
    "FIRST_DATE",
    "FIRST_VALUE",
    "VALUES",
    "VOCABULARY",
    "Document",
    "Kind",
    "event_document",
    "event_prompts",
    "facts_corpus",
    "facts_document",
    "group_documents",
    "groups_corpus",
    "settings",
]

EOS, ASK, EVENT = range(3)
KEYS, VALUES, FILLERS, EVENTS = 64, 64, 16, 8
FIRST_KEY = 3
FIRST_VALUE = FIRST_KEY + KEYS
FIRST_FILLER = FIRST_VALUE + VALUES
FIRST_EVENT = FIRST_FILLER + FILLERS
FIRST_DATE = FIRST_EVENT + EVENTS
VOCABULARY = FIRST_DATE + EVENTS

SHORTEST, LONGEST = 64, 512  # tokens with EOS, uniform in the logarithm
TOKENS_PER_FACT = 8
EVENT_SHARE, EVENT_LENGTH, EVENT_DISTANCE = 0.15, 456, 40
GROUP, TABLE, STATED, ASKED_OF_OTHERS = 4, 12, 6, 4
GROUP_LENGTHS = (64, 96)


class Kind(IntEnum):
    """Kind of a token as an answer; all kinds but NOTHING are learnt and measured."""

    NOTHING = 0
    OWN = 1  # a fact that its document states
    OTHERS = 2  # a fact that only other documents of the group state
    EVENT_CUT = 3  # date of an event that the end of a row parts from its name
    EVENT_KEPT = 4


@dataclass(frozen=True)
class Document:
    """Tokens with EOS.

    Attributes:
        tokens: (L,) uint16.
        kind: (L,) uint8, the `Kind` of every token.
        distance: (L,) int32, of an answer: tokens back to where it was stated; 0 elsewhere.
        group: number of its group.
    """

    tokens: NDArray[np.uint16]
    kind: NDArray[np.uint8]
    distance: NDArray[np.int32]
    group: int = 0


def _among_fillers(
    rng: np.random.Generator, length: int, fact: NDArray[np.int64], asked: NDArray[np.bool_],
    keys: NDArray[np.int64], values: NDArray[np.int64], kind: NDArray[np.uint8],
) -> Document:  # fmt: skip
    """(length,) tokens with these mentions of facts in this order, and fillers between.

    Args:
        fact, asked, kind: of each mention: (M,) which fact, a question or a statement, its `Kind`.
        keys, values: of each fact.
    """
    size = np.where(asked, 3, 2)
    spare = length - int(size.sum())
    gaps = np.bincount(rng.integers(0, len(fact) + 1, spare), minlength=len(fact) + 1)
    last = np.cumsum(gaps[:-1] + size) - 1  # where the value is
    tokens = (FIRST_FILLER + rng.integers(0, FILLERS, length)).astype(np.uint16)
    tokens[last] = FIRST_VALUE + values[fact]
    tokens[last - 1] = FIRST_KEY + keys[fact]
    tokens[last[asked] - 2] = ASK
    kinds, distance = np.zeros(length, dtype=np.uint8), np.zeros(length, dtype=np.int32)
    kinds[last[asked]] = kind[asked]
    stated = np.full(len(keys), -1)
    stated[fact[~asked]] = last[~asked]
    own = asked & (kind == Kind.OWN)
    distance[last[own]] = last[own] - stated[fact[own]]
    return Document(tokens, kinds, distance)


def _facts(rng: np.random.Generator, length: int, keys: NDArray[np.int64]) -> Document:
    """Facts of these keys, each stated and asked for once, in random order."""
    count = len(keys)
    fact = rng.permutation(np.repeat(np.arange(count), 2))
    asked = np.ones(2 * count, dtype=np.bool_)
    asked[np.unique(fact, return_index=True)[1]] = False
    values = rng.integers(0, VALUES, count)
    kind = np.full(2 * count, Kind.OWN, dtype=np.uint8)
    return _among_fillers(rng, length, fact, asked, keys, values, kind)


def _joined(*parts: Document, group: int = 0) -> Document:
    """One document of all parts, with an EOS."""
    end = Document(np.array([EOS], np.uint16), np.zeros(1, np.uint8), np.zeros(1, np.int32))
    all_parts = (*parts, end)
    return Document(
        np.concatenate([part.tokens for part in all_parts]),
        np.concatenate([part.kind for part in all_parts]),
        np.concatenate([part.distance for part in all_parts]),
        group,
    )


def facts_document(rng: np.random.Generator, length: int) -> Document:
    """A fact for every eight tokens."""
    return _joined(
        _facts(rng, length - 1, rng.permutation(KEYS)[: (length - 1) // TOKENS_PER_FACT])
    )


def event_document(
    rng: np.random.Generator, event: int, length: int = EVENT_LENGTH, named: int | None = None
) -> Document:
    """Facts, and an event with its date.

    Args:
        event: below `EVENTS`; events below half of that are cut.
        length: tokens with EOS.
        named: where the name is; None draws it: in front of the end of the first row of 256, so
            that the date is behind it, or well inside that row.
    """
    cut = event < EVENTS // 2
    if named is None:
        named = int(rng.integers(226, 250)) if cut else int(rng.integers(100, 150))
    kind = Kind.EVENT_CUT if cut else Kind.EVENT_KEPT
    keys = rng.permutation(KEYS)
    sizes = (named - 1, EVENT_DISTANCE - 2, length - named - EVENT_DISTANCE - 2)
    parts = []
    for size in sizes:
        count = size // TOKENS_PER_FACT
        parts.append(_facts(rng, size, keys[:count]))
        keys = keys[count:]
    none = np.zeros(2, dtype=np.uint8)
    name = Document(np.array([EVENT, FIRST_EVENT + event], np.uint16), none, none.astype(np.int32))
    date = Document(
        np.array([EVENT, FIRST_DATE + event], np.uint16),
        np.array([0, kind], np.uint8),
        np.array([0, EVENT_DISTANCE], np.int32),
    )
    return _joined(parts[0], name, parts[1], date, parts[2])


def event_prompts(rng: np.random.Generator, contexts: int) -> list[Document]:
    """Every event in so many new documents of 128 tokens, the same place for all events."""
    return [
        event_document(rng, event, length=128, named=40)
        for event in range(EVENTS)
        for _ in range(contexts)
    ]


def facts_corpus(rng: np.random.Generator, tokens: int) -> list[Document]:
    """Documents of facts, some of them of events, until they have so many tokens."""
    documents: list[Document] = []
    total = 0
    while total < tokens:
        if rng.random() < EVENT_SHARE:
            made = event_document(rng, int(rng.integers(EVENTS)))
        else:
            bounds = np.log([SHORTEST, LONGEST + 1])
            made = facts_document(rng, int(np.exp(rng.uniform(*bounds))))
        documents.append(made)
        total += len(made.tokens)
    return documents


def group_documents(
    rng: np.random.Generator, group: int, halves: list[NDArray[np.int64]], lengths: list[int]
) -> list[Document]:
    """Documents that share a table of `TABLE` facts.

    Args:
        halves: (STATED,) facts of the table that each document states.
        lengths: of each document, with EOS.
    """
    keys, values = rng.permutation(KEYS)[:TABLE], rng.integers(0, VALUES, TABLE)
    documents = []
    for stated, length in zip(halves, lengths, strict=True):
        others = rng.permutation(np.setdiff1d(np.arange(TABLE), stated))[:ASKED_OF_OTHERS]
        fact = rng.permutation(np.concatenate((stated, stated, others)))
        first = np.zeros(len(fact), dtype=np.bool_)
        first[np.unique(fact, return_index=True)[1]] = True
        of_others = np.isin(fact, others)
        kind = np.where(of_others, Kind.OTHERS, Kind.OWN).astype(np.uint8)
        asked = ~first | of_others
        body = _among_fillers(rng, length - 1, fact, asked, keys, values, kind)
        documents.append(_joined(body, group=group))
    return documents


def groups_corpus(rng: np.random.Generator, tokens: int) -> list[Document]:
    """Groups of `GROUP` documents until they have so many tokens; documents in random order."""
    documents: list[Document] = []
    total = 0
    low, high = GROUP_LENGTHS
    while total < tokens:
        halves = [rng.permutation(TABLE)[:STATED] for _ in range(GROUP)]
        lengths = [int(length) for length in rng.integers(low, high + 1, GROUP)]
        documents += group_documents(rng, len(documents) // GROUP, halves, lengths)
        total += sum(lengths)
    return [documents[k] for k in rng.permutation(len(documents))]


def settings() -> dict[str, object]:
    """Every size here, by name."""
    return {name: value for name, value in sorted(globals().items()) if name.isupper()}
