"""plant: a common prefix of sequences has its slots once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streampack.documents.blocks import Documents, joined_groups
from streampack.trees.build import SLOT, plant, planted
from tests.support.drawn import drawn
from tests.support.tree_reference import Group, flat, groups, reference


@given(st.lists(groups(), max_size=4))
@example([[[1, 2], [1, 2], [1, 2]]])  # identical
@example([[[1, 2, 3], [1, 2], [1], []]])  # each a prefix of the one before
@example([[[], [1], [1, 2], [1, 2, 3]]])
@example([[[1, 2], [1, 3], [1, 2, 4], [1, 3, 5]]])  # a prefix of one token
@example([[[1], [2], [3]]])  # no common prefix
@example([[[1, 2, 3, 4], [1, 2, 5], [1, 6], [1, 2, 3, 7]]])  # a run divided repeatedly
@drawn(500)
def test_slots_match_the_reference(drawn: list[Group]) -> None:
    ids, ends, sizes = flat(drawn)
    trees = plant(ids, ends, sizes)
    for g, group in enumerate(drawn):
        own = slice(int(trees.offsets[g]), int(trees.offsets[g + 1]))
        expected, _, _, slots = reference(group)
        assert trees.tokens[own].tolist() == expected
        held = slice(int(ends[sizes[g]]), int(ends[sizes[g + 1]]))
        assert trees.slot[held].tolist() == [slot for each in slots for slot in each]
        new = np.array([len(each) for each in group]) - trees.shared[sizes[g] : sizes[g + 1]]
        assert new.sum() == len(expected)


@pytest.mark.parametrize("begin", [0, 3])
def test_sequences_may_lie_anywhere_in_their_array(begin: int) -> None:
    ids = np.array([9] * begin + [1, 2, 1, 3], dtype=np.uint32)
    trees = plant(ids, np.array([0, 2, 4]) + begin, np.array([0, 2]))
    assert trees.tokens.tolist() == [1, 2, 3]
    assert trees.slot.tolist() == [0, 1, 0, 2]


@given(st.lists(groups(empty=False), min_size=1, max_size=5), st.data())
@drawn(200)
def test_a_part_of_a_block_of_trees_is_as_if_made_alone(
    drawn: list[Group], data: st.DataObject
) -> None:
    sequences = [np.array(each, np.uint16) for group in drawn for each in group]
    field = np.arange(sum(map(len, sequences)))
    documents = Documents.from_arrays(sequences, token_fields={"field": field})
    sizes = np.cumsum([0, *map(len, drawn)])
    block, _ = planted(joined_groups(documents, sizes))
    order = data.draw(st.lists(st.integers(0, len(drawn) - 1), min_size=1, max_size=4))
    taken = block.take(np.array(order))
    ends = np.cumsum([0, *map(len, sequences)])
    for i, g in enumerate(order):
        expected, _, _, slots = reference(drawn[g])
        for found in (taken[i : i + 1], block[g : g + 1]):
            assert found.document(0).tolist() == expected
            assert found.members is not None
            low, high = found.members.offsets.tolist()
            members = found.members.documents[low:high]
            held = slice(int(members.offsets[0]), int(members.offsets[-1]))
            assert members.token_fields[SLOT][held].tolist() == [s for each in slots for s in each]
            where = slice(int(ends[sizes[g]]), int(ends[sizes[g + 1]]))
            assert members.token_fields["field"][held].tolist() == field[where].tolist()
