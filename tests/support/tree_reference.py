"""Trees of sequences by an obvious implementation, and strategies that draw groups of sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from streampack import pack

Group = Sequence[Sequence[int]]


def reference(group: Group) -> tuple[list[int], list[int], list[int], list[list[int]]]:
    """Ids, depths and `tout` of the slots, and the slots of each sequence, from nested dicts."""
    root: dict[int, Any] = {}
    for sequence in group:
        here = root
        for token in sequence:
            here = here.setdefault(token, {})
    ids: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    slot_of: dict[int, int] = {}

    def visit(children: dict[int, Any], depth: int) -> None:
        for token, below in children.items():
            slot = slot_of[id(below)] = len(ids)
            ids.append(token)
            depths.append(depth)
            ends.append(0)
            visit(below, depth + 1)
            ends[slot] = len(ids)

    visit(root, 0)
    slots = []
    for sequence in group:
        here, own = root, []
        for token in sequence:
            here = here[token]
            own.append(slot_of[id(here)])
        slots.append(own)
    return ids, depths, ends, slots


@st.composite
def groups(draw: st.DrawFn, *, empty: bool = True, vocabulary: int = 4) -> list[list[int]]:
    """A group: sequences that go on from beginnings of others, or repeat them, or share nothing."""
    token = st.integers(0, vocabulary - 1)
    made: list[list[int]] = []
    for _ in range(draw(st.integers(1, 7))):
        begin = draw(st.sampled_from(made)) if made else []
        begin = begin[: draw(st.integers(0, len(begin)))]
        made.append([*begin, *draw(st.lists(token, max_size=6))])
    if not empty:
        made = [sequence or [draw(token)] for sequence in made]
    return made


def branching(documents: Iterable[Any], most: int) -> list[dict[str, Any]]:
    """Records with the ids of the documents as slots, each once and in their order.

    Documents are cut to `most` ids. Of each there are three sequences: its first third, and that
    with either of the others. Its ids must differ from one another.
    """
    made = []
    for document in documents:
        for at in range(0, len(document), most):
            ids = document[at : at + most].tolist()
            first, second = -(-len(ids) // 3), -(-2 * len(ids) // 3)
            both = ids[:second], ids[:first] + ids[second:]
            made.append({"tokens": [*both, ids[:first]]})
    return made


def flat(groups: Sequence[Group]) -> tuple[Any, Any, Any]:
    """Ids, ends of sequences and groups, as `plant` takes them."""
    sequences = [sequence for group in groups for sequence in group]
    ends = np.cumsum([0, *map(len, sequences)])
    ids = np.array([token for sequence in sequences for token in sequence], dtype=np.uint16)
    return ids, ends, np.cumsum([0, *map(len, groups)])


def plan_of(found: list[Group], **options: Any) -> tuple[Any, list[list[int]], list[int]]:
    """The plan of groups, their sequences, and the group of each."""
    ids = [list(sequence) for group in found for sequence in group]
    own = [number for number, group in enumerate(found) for _ in group]
    lengths = [len(each) for each in ids]
    return pack(lengths, groups=own, layout="tree", ids=ids, **options), ids, own
