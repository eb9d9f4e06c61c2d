"""Layouts of context parallelism: all ranks together hold the batch; `align` of several needs."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streampack import PackedBatch
from streampack.errors import ConfigError
from streampack.forms.context_parallel import Layout
from streampack.packing import BestFitDecreasing, Buckets, FirstFitDecreasing
from tests.support.drawn import drawn
from tests.support.packed_batches import packed_batches, random_documents

LAYOUTS = get_args(Layout)
TENSORS = ("input_ids", "position_ids", "shift_labels")


def batches(lengths: list[int], align: Any = 1) -> Any:
    packer = BestFitDecreasing(seq_len=96, align=align)
    return packed_batches(random_documents(lengths), packer, batch_size=2)


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=20),
    cp_size=st.sampled_from([1, 2, 3, 4]),
    layout=st.sampled_from(LAYOUTS),
)
@drawn(60)
def test_all_ranks_together_hold_the_batch(
    lengths: list[int], cp_size: int, layout: Layout
) -> None:
    for batch in batches(lengths, 2 * cp_size):
        whole = dict(
            zip(TENSORS, (batch.input_ids, batch.position_ids, batch.next_tokens()), strict=True)
        )
        parts = [batch.context_parallel(layout, cp_size=cp_size, cp_rank=r) for r in range(cp_size)]
        slots = torch.cat([part["slots"] for part in parts])
        assert slots.sort().values.tolist() == list(range(batch.rows * batch.seq_len))
        for name in TENSORS:
            found = torch.cat([part[name].view(-1) for part in parts])
            assert torch.equal(found, whole[name].reshape(-1)[slots])
        if layout == "ulysses":
            assert slots.tolist() == sorted(slots.tolist())
        for part in parts:
            assert part["cu_seqlens"].dtype == torch.int32
            assert part["max_seqlen"] == part["cu_seqlens"].diff().max()


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_boundaries_match_the_part_of_a_rank(layout: Layout) -> None:
    for batch in batches([5, 23, 9, 40, 2, 1, 13, 96, 17], 8):
        segment = batch.seq_idx.view(-1)
        ends = batch.cu_seqlens.tolist()
        for rank in range(4):
            part = batch.context_parallel(layout, cp_size=4, cp_rank=rank)
            cuts = part["cu_seqlens"].tolist()
            assert cuts[-1] == len(part["slots"])
            for low, high in pairwise(cuts):
                held = part["slots"][low:high]
                # one document, with the padding after it that makes its length a multiple
                assert len(set(segment[held].tolist()) - {int(segment[held[0]]) + 1}) == 1
                assert held[0] >= ends[int(segment[held[0]])]


def test_zigzag_matches_megatron_and_contiguous_is_in_order() -> None:
    for batch in batches([5, 23, 9, 40, 2, 1, 13, 96, 17], 4):
        for rank in range(2):
            part = batch.context_parallel("zigzag", cp_size=2, cp_rank=rank)
            theirs = batch.megatron(cp_size=2, cp_rank=rank)
            assert torch.equal(part["input_ids"], theirs["tokens"])
            part = batch.context_parallel("contiguous", cp_size=2, cp_rank=rank)
            assert part["slots"].diff().min() > 0


def test_ulysses_needs_no_alignment_and_keeps_the_boundaries_of_all() -> None:
    for batch in batches([5, 23, 9, 40, 2, 1, 13, 96, 17]):
        part = batch.context_parallel("ulysses", cp_size=3, cp_rank=1)
        assert torch.equal(part["cu_seqlens"], batch.cu_seqlens)
        assert part["max_seqlen"] == batch.max_seqlen
        with pytest.raises(ConfigError):
            batch.context_parallel("ulysses", cp_size=5, cp_rank=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda align: BestFitDecreasing(seq_len=96, align=align),
        lambda align: FirstFitDecreasing(seq_len=96, align=align),
        lambda align: Buckets(seq_lens=(48, 96), align=align),
    ],
)
def test_several_needs_are_their_least_common_multiple(make: Any) -> None:
    assert make((4, 6, 1)) == make(12)
    assert make([8, 16]).describe() == make(16).describe()
    for wrong in ((4, 10), (), (4, 0), (4, 2.5), "12"):
        with pytest.raises(ConfigError):
            make(wrong)


@pytest.mark.parametrize(
    ("rows", "seq_len", "cp_size"), [(3, 24, 1), (3, 24, 2), (1, 40, 2), (2, 8, 4)]
)
@pytest.mark.parametrize("multiple", [16, 32])
def test_slots_of_a_rank_that_are_not_a_multiple_are_refused_with_numbers_that_work(
    rows: int, seq_len: int, cp_size: int, multiple: int
) -> None:
    def batch_of(rows: int, seq_len: int) -> PackedBatch:
        packer = BestFitDecreasing(seq_len=seq_len, align=2 * cp_size)
        return packed_batches(random_documents([5, 3, 8]), packer, batch_size=rows)[0]

    batch = batch_of(rows, seq_len)
    for form in (batch.megatron, lambda **sizes: batch.context_parallel("zigzag", **sizes)):
        with pytest.raises(ConfigError) as caught:
            form(cp_size=cp_size, cp_rank=0, multiple=multiple)
        assert caught.value.setting == "multiple"
    numbers = [int(number) for number in re.findall(r"\d+", caught.value.remedy)]
    for length in numbers[:-1]:
        part = batch_of(rows, length).megatron(cp_size=cp_size, cp_rank=0, multiple=multiple)
        assert part["tokens"].numel() % multiple == 0  # type: ignore[union-attr]
    batch_of(numbers[-1], seq_len).megatron(cp_size=cp_size, cp_rank=0, multiple=multiple)
