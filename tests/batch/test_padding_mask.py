"""padding_mask: in every form of a batch it is True exactly where no token of a document is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from streampack import BestFitDecreasing, PackedBatch, pack
from tests.support.packed_batches import PAD, every_packer, packed_batches, random_documents

SEQ_LEN = 24
LENGTHS = [5, 23, 9, 40, 2, 1, 13, 24, 17, 8, 1, 1]
PACKERS = every_packer(SEQ_LEN)


def batches(packer: Any) -> list[PackedBatch]:
    """Batches of documents without the id of padding, so that ids alone show the padding."""
    return packed_batches(random_documents(LENGTHS), packer, batch_size=2)


@pytest.mark.parametrize("name", PACKERS)
def test_mask_is_true_where_ids_are_padding_in_every_form(name: str) -> None:
    for batch in batches(PACKERS[name]):
        padding = batch.input_ids == PAD
        assert torch.equal(batch.padding_mask, padding)
        assert int((~padding).sum()) == batch.num_tokens
        assert np.array_equal(batch.numpy()["padding_mask"], padding.numpy())
        whole = batch.megatron()
        assert torch.equal(whole["padding_mask"], whole["tokens"] == PAD)  # type: ignore[arg-type]
        part = batch.context_parallel("ulysses", cp_size=2, cp_rank=1)
        assert torch.equal(part["padding_mask"], part["input_ids"] == PAD)
        assert not any(sample["padding_mask"].any() for sample in batch.samples())
        assert torch.equal(batch.limit_context(7).padding_mask, padding)


def test_parts_of_context_parallel_ranks_hold_their_own_of_it() -> None:
    for batch in batches(BestFitDecreasing(seq_len=SEQ_LEN, align=4)):
        assert 0 < batch.padding_mask.sum() < batch.padding_mask.numel()
        for rank in range(2):
            part = batch.megatron(cp_size=2, cp_rank=rank)
            assert torch.equal(part["padding_mask"], part["tokens"] == PAD)  # type: ignore[arg-type]
            shard = batch.context_parallel("zigzag", cp_size=2, cp_rank=rank)
            assert torch.equal(shard["padding_mask"], shard["input_ids"] == PAD)


def test_samples_are_padding_where_they_are_padded() -> None:
    (batch, *_) = batches(BestFitDecreasing(seq_len=SEQ_LEN))
    for sample in batch.samples(align=8):
        length = int(sample["original_seq_len"])
        assert len(sample["padding_mask"]) % 8 == 0
        assert sample["padding_mask"].tolist() == [
            at >= length for at in range(len(sample["padding_mask"]))
        ]


def test_trees_have_it_too() -> None:
    ids = [[1, 2, 3, 4], [1, 2, 5, 6], [7, 8]]
    plan = pack([4, 4, 2], ids=ids, groups=[0, 0, 1], layout="tree", seq_len=8, microbatches=1)
    (batch,) = plan.batches(ids)
    assert int((~batch.padding_mask).sum()) == 6 + 2
    held = torch.zeros(batch.padding_mask.numel(), dtype=torch.bool)
    held[batch.slot] = True
    assert torch.equal(batch.padding_mask.view(-1), ~held)
