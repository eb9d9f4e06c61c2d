"""Groups are whole and in one block, whatever blocks and parts they are read in."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack.documents.blocks import GROUP
from streampack.errors import ConfigError, StateError
from streampack.reading.base import Cursor, LaneReader
from streampack.reading.grouped import GroupedReader
from streampack.reading.skips import Skips
from tests.support.grouped_source import GroupedSource

VALUES = st.lists(st.integers(0, 2), min_size=1, max_size=25)  # runs of one value are groups
SHARDS = st.lists(VALUES, min_size=1, max_size=3)


def read(reader: LaneReader, cursor: Cursor | None = None) -> list[tuple[list[list[int]], Cursor]]:
    """Blocks as lists of groups, with their cursors."""
    blocks = []
    for block, after in reader.read(cursor, Skips()):
        groups: dict[int, list[int]] = {}
        number, group = (block.document_fields[name].tolist() for name in ("number", GROUP))
        assert group == sorted(group)
        for one, of in zip(number, group, strict=True):
            groups.setdefault(of, []).append(one)
        blocks.append((list(groups.values()), json.loads(json.dumps(after))))
    return blocks


@given(SHARDS, st.integers(1, 7), st.lists(st.integers(0, 75), max_size=5), st.booleans())
@settings(max_examples=300, deadline=None)
def test_wherever_a_line_is_cut_every_group_is_in_one_part_and_whole(
    shards: list[list[int]], block_documents: int, cuts: list[int], shuffle: bool
) -> None:
    source = GroupedSource(shards, block_documents=block_documents).with_groups("group")
    source.prepare()
    bounds = sorted({0, source.weight, *(cut for cut in cuts if cut < source.weight)})
    found = []
    for low, high in pairwise(bounds):
        reader = source.span(low, high, seed=3, epoch=0, shuffle=shuffle)
        blocks = read(reader)
        assert read(reader) == blocks
        for k, (groups, cursor) in enumerate(blocks):
            found += groups
            assert read(reader, cursor) == blocks[k + 1 :]
            assert 0 <= reader.left(cursor) <= high - low
        assert reader.left(None) == high - low
    assert sorted(found) == source.whole
    if not shuffle:
        assert found == source.whole


def test_groups_are_shuffled_in_a_block_and_their_documents_are_not() -> None:
    source = GroupedSource([[n // 3 for n in range(300)]], block_documents=100)
    made = source.with_groups("group")
    made.prepare()
    groups = [
        g for block, _ in read(made.span(0, 300, seed=3, epoch=0, shuffle=True)) for g in block
    ]
    assert groups != source.whole
    assert sorted(groups) == source.whole


def test_a_group_without_an_end_is_refused() -> None:
    source = GroupedSource([[7] * 5000]).with_groups("group")
    source.prepare()
    with pytest.raises(ConfigError, match=r'More than 4,096 documents in a row have 7 as "group"'):
        read(source.span(0, 5000, seed=0, epoch=0, shuffle=False))


def test_a_field_that_is_missing_or_no_whole_number_is_refused() -> None:
    for name, what in (("pair", "none"), ("half", "float64 values")):
        source: Any = GroupedSource([[1, 2]]).with_groups("group")
        source.prepare()
        reader = source.span(0, 2, seed=0, epoch=0, shuffle=False)

        class Halves(LaneReader):
            def read(self, cursor: Any, skips: Any) -> Any:
                for block, after in reader.reader.read(cursor, skips):  # noqa: B023
                    block.document_fields["half"] = np.array([0.5, 1.5])
                    yield block, after

        with pytest.raises(ConfigError, match=f'group is "{name}", and records have {what}'):
            list(GroupedReader(Halves(), name, str).read(None, Skips()))


def test_a_damaged_cursor_is_refused() -> None:
    source = GroupedSource([[1, 2]]).with_groups("group")
    source.prepare()
    reader = source.span(0, 2, seed=0, epoch=0, shuffle=False)
    for wrong in ({"stage": 9, "at": None, "given": 0, "left": 0}, {"at": None}, {"open": []}):
        with pytest.raises(StateError):
            list(reader.read(wrong, Skips()))


def test_a_key_that_comes_again_is_said_once_with_its_shard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from streampack import PackedDataset, PackedLoader, Topology

    def run(keys: list[int], name: str) -> list[str]:
        caplog.clear()
        records = [{"tokens": [1, 2], name: key} for key in keys]
        dataset = PackedDataset(
            records, seq_len=8, group=name, document_fields={name: "int64"}, topology=Topology()
        )
        for _ in range(2):
            assert sum(batch.num_documents for batch in PackedLoader(dataset)) == len(keys)
        return [record.getMessage() for record in caplog.records]

    (said,) = run([0, 1, 0, 1, 0, 1], "apart")
    assert 'In items 0 to 5 documents that have 0 as "apart" lie apart' in said
    assert 'Sort the records by "apart"' in said
    assert not run(sorted([0, 1, 0, 1, 0, 1]), "sorted")
