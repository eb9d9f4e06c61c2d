"""Batches that ranks share, on the groups and with the slices of Megatron-LM, over gloo on the CPU.

Its dynamic ("hybrid") context parallelism makes groups of every power of two. Its attention is not
tested here, because it needs TransformerEngine and a GPU. The same holds for its slicing of a whole
packed batch, so documents are sliced one by one.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from examples import cp_degrees
from streampack import PackedBatch
from tests.support.stores import free_port

pytest.importorskip("megatron.core.parallel_state")


def groups_of(ranks: int) -> dict[int, Any]:
    """Return the groups of Megatron-LM by size."""
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(hybrid_context_parallel=True)
    found = parallel_state.get_hybrid_data_context_parallel_groups
    return {size: found(group_size=size) for size in (2, 4) if size <= ranks} | {1: None}


def part_of(batch: PackedBatch, group: Any) -> dict[str, Any]:
    """A rank's part of `batch.megatron()`, once Megatron-LM has sliced each document as we do."""
    from megatron.core.utils import get_batch_on_this_cp_rank

    part = {name: t for name, t in batch.megatron().items() if t is not None}
    if group is not None:
        assert group.size() == batch.cp_size
        assert group.rank() == batch.cp_rank
        whole = batch.megatron(cp_size=1, cp_rank=0)
        bounds = batch.packed_seq_params()["cu_seqlens_q_padded"].tolist()
        sliced = [
            get_batch_on_this_cp_rank({name: whole[name][:, a:b] for name in part}, group)
            for a, b in pairwise(bounds)
        ]
        for name, tensor in part.items():
            assert torch.equal(torch.cat([one[name] for one in sliced], dim=1), tensor), name
    return {
        "input_ids": part["tokens"],
        "position_ids": part["position_ids"],
        "shift_labels": part["labels"].masked_fill(part["loss_mask"] == 0, -100),
        "slots": batch.context_parallel("zigzag")["slots"],
    }


def train(rank: int, ranks: int, port: str) -> None:
    """The example on Megatron-LM's groups and slices."""
    cp_degrees.groups_of, cp_degrees.part_of = groups_of, part_of
    cp_degrees.train(rank, ranks, port)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_groups_and_slices_of_megatron_have_the_gradients_of_one_process(
    ranks: int, capfd: pytest.CaptureFixture[str]
) -> None:
    mp.spawn(train, args=(ranks, str(free_port())), nprocs=ranks)
    output = capfd.readouterr().out
    assert re.search(rf"[1-9]\d* of degree {min(ranks, 4)}\n", output), output
    assert re.search(r"gradients .* by (0\.0e\+00|\d\.\de-1[4-9]) at", output), output
