"""MagiAttention's slices: each pair of slots that may attend is in exactly one, and no other is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from streampack import pack
from tests.support.drawn import drawn
from tests.support.packed_batches import every_packer, packed_batches, random_documents
from tests.support.slices import times_seen
from tests.support.tree_reference import Group, groups, plan_of

SEQ_LEN = 24
PACKERS = every_packer(SEQ_LEN)
DOCUMENTS = random_documents([5, 23, 9, 40, 2, 1, 13, 24, 17, 8, 1, 1])


@pytest.mark.parametrize("attention", ["document", "row"])
@pytest.mark.parametrize("name", PACKERS)
def test_of_documents_slices_are_the_mask_of_the_batch(name: str, attention: Any) -> None:
    for batch in packed_batches(DOCUMENTS, PACKERS[name], batch_size=2, attention=attention):
        for limited in (batch, batch.limit_context(7)):
            segment = limited.seq_idx.view(-1)
            mask = (segment[:, None] == segment[None, :]).long().tril()
            assert torch.equal(times_seen(limited.magi(), len(segment)), mask)


@given(st.lists(groups(empty=False), min_size=1, max_size=4), st.sampled_from([1, 4]))
@example([[[1, 2], [1, 2], [1, 2]]], 1)
@example([[[1, 2, 3], [1, 2], [1]]], 4)
@example([[[1] * 48]], 1)
@example([[[1] * 47, [1] * 46 + [2]]], 1)
@drawn(100)
def test_of_trees_slices_are_the_mask_of_the_batch(drawn: list[Group], align: int) -> None:
    plan, ids, _ = plan_of(drawn, seq_len=48, align=align)
    for batch in plan.batches(ids):
        slices, mask = batch.magi(), torch.block_diag(*batch.mask()[:, 0]).long()
        assert len(slices["q_ranges"]) <= 2 * (len(batch.nodes().parents))
        seen, padding = times_seen(slices, len(mask)), batch.padding_mask.view(-1)
        assert torch.equal(seen[~padding], mask[~padding])
        assert not seen[padding][:, ~padding].any()
        assert (seen.diagonal() == 1).all()  # so no output is 0 / 0


def test_a_prompt_is_one_slice_for_all_its_answers() -> None:
    ids = [[5, 6, 7, 1, 2], [5, 6, 7, 1, 3, 4], [5, 6, 7, 8]]
    plan = pack([5, 6, 4], ids=ids, groups=[0] * 3, layout="tree", seq_len=10)
    (batch,) = plan.batches(ids)
    slices = {name: tensor.tolist() for name, tensor in batch.magi().items()}
    nodes = [[0, 3], [3, 4], [4, 5], [5, 7], [7, 8], [8, 10]]
    assert slices == {
        "q_ranges": [*nodes, [3, 8], [4, 7]],
        "k_ranges": [*nodes, [0, 3], [3, 4]],
        "attn_type_map": [1] * 6 + [0] * 2,
    }
