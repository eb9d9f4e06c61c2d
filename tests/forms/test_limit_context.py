"""limit_context: attention within windows, rows and labels as without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streampack import (
    BestFitDecreasing,
    Buckets,
    Concat,
    PackedBatch,
    PackedDataset,
    Topology,
    WindowConfig,
    sources,
)
from tests.support.drawn import drawn
from tests.support.memory_source import heavy_tailed

SEQ_LEN = 32


def window_at(number: int) -> int:
    """A schedule: from five tokens to whole rows within thirty batches."""
    return 5 + (SEQ_LEN - 5) * min(number, 30) // 30


def dataset(*, topology: Topology | None = None, **changes: Any) -> PackedDataset:
    documents = [
        [(7 * i + k) % 250 + 1 for k in range(n)] for i, n in enumerate(heavy_tailed(300, seed=4))
    ]
    options: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=SEQ_LEN),
        "batch_size": 2,
        "window": WindowConfig(rows=12),
        "lanes": 2,
        "topology": topology or Topology(),
    }

    def part(lane: int, lanes: int) -> list[list[int]]:
        return documents[lane::lanes]

    return PackedDataset(sources.Iterable(part), **{**options, **changes})


def number(batch: PackedBatch) -> int:
    return batch.step * 2 + batch.lane


def limited(batch: PackedBatch) -> PackedBatch:
    return batch.limit_context(window_at(number(batch)))


def ends_without(batch: PackedBatch, attention: str) -> list[int]:
    """Return the ends of attention segments in flattened rows, slot by slot, without a schedule."""
    documents = batch.document_ids
    ends = []
    for row in range(batch.rows):
        for slot in range(batch.seq_len):
            last = slot + 1 == batch.seq_len
            here, there = (documents[row, at].item() for at in (slot, slot if last else slot + 1))
            other = here != there if attention == "document" else (here < 0) != (there < 0)
            if last or other:
                ends.append(row * batch.seq_len + slot + 1)
    return ends


@pytest.mark.sampled(2)
@pytest.mark.parametrize("attention", ["document", "row"])
@pytest.mark.parametrize(
    "packer",
    [
        BestFitDecreasing(seq_len=SEQ_LEN),
        Concat(seq_len=SEQ_LEN),
        Buckets(seq_lens=(8, SEQ_LEN), shares=(1, 2)),
    ],
    ids=lambda packer: type(packer).__name__,
)
def test_segments_end_at_multiples_of_the_window_and_nothing_else_changes(
    attention: Any, packer: Any
) -> None:
    plain = list(dataset(attention=attention, packer=packer))
    found = list(map(limited, plain))
    assert len(plain) > 40
    for batch, other in zip(found, plain, strict=True):
        for name in ("input_ids", "labels", "document_ids", "source_ids"):
            assert getattr(batch, name).equal(getattr(other, name))
        assert batch.num_loss_tokens == other.num_loss_tokens == (batch.labels >= 0).sum()
        assert batch.composition == other.composition
        assert batch.next_tokens(2).equal(other.next_tokens(2))
        if not batch.num_documents:
            continue
        window = window_at(number(batch))
        ends = set(ends_without(other, attention))
        assert sorted(ends) == other.cu_seqlens[1:].tolist()
        for row in range(batch.rows):
            ends |= {row * batch.seq_len + at for at in range(window, batch.seq_len, window)}
        assert batch.cu_seqlens.tolist() == [0, *sorted(ends)]
        lengths = batch.cu_seqlens.diff()
        assert batch.max_seqlen == lengths.max() <= window
        starts = torch.repeat_interleave(batch.cu_seqlens[:-1], lengths)
        assert batch.position_ids.view(-1).equal(torch.arange(len(starts)) - starts)
        firsts = batch.document_ids.view(-1)[batch.cu_seqlens[:-1].long()]
        assert batch.sum_squared_lengths == (lengths[firsts >= 0].long() ** 2).sum()
    assert found[0].max_seqlen == 5
    assert found[-1].cu_seqlens.equal(plain[-1].cu_seqlens)  # it has grown to the row


def allowed(batch: PackedBatch) -> torch.Tensor:
    """(T, T) bool: which slots each slot attends to, by `cu_seqlens`."""
    slots = batch.rows * batch.seq_len
    segment = torch.bucketize(torch.arange(slots), batch.cu_seqlens[1:].long(), right=True)
    return (segment[:, None] == segment[None]) & torch.ones(slots, slots).tril().bool()


def by_segment(segment: torch.Tensor) -> torch.Tensor:
    return (segment[:, None] == segment[None]) & torch.ones(
        len(segment), len(segment)
    ).tril().bool()


@pytest.mark.parametrize("attention", ["document", "row"])
def test_every_form_has_the_same_boundaries(attention: Any) -> None:
    batches = [limited(b) for b in dataset(attention=attention) if b.num_documents][:10]
    for batch in batches:
        mask = allowed(batch)
        slots = len(mask)
        filled = batch.document_ids.view(-1) >= 0
        restarts = (batch.position_ids.view(-1) == 0).cumsum(0)  # as eager, SDPA and torchtitan
        assert by_segment(restarts).equal(mask)
        assert by_segment(batch.seq_idx.view(-1)).equal(mask)
        block = batch.flex(block_size=16)
        at = torch.arange(slots)
        zero = torch.tensor(0)
        assert block.mask_mod(zero, zero, at[:, None], at[None]).equal(mask)
        hf = batch.hf()
        assert hf["cu_seq_lens_q"].equal(batch.cu_seqlens)
        assert hf["max_length_q"] == batch.max_seqlen
        assert batch.fla()["cu_seqlens_cpu"].tolist() == batch.cu_seqlens.tolist()
        megatron = batch.packed_seq_params()
        assert megatron["cu_seqlens_q"].equal(batch.cu_seqlens)
        arrays = batch.numpy()
        row = np.arange(slots) // batch.seq_len * slots
        segment = torch.from_numpy(arrays["inputs_segmentation"].reshape(-1) + row)
        both = filled[:, None] & filled[None]
        assert (by_segment(segment) & both).equal(mask & both)
        following = batch.labels.view(-1)[1:]
        targets = torch.from_numpy(arrays["targets"].reshape(-1))[:-1]
        counts = torch.from_numpy(arrays["targets_segmentation"].reshape(-1))[:-1] > 0
        assert counts.equal(following >= 0)
        assert targets[counts].long().equal(following[counts])
        shifted = batch.megatron()
        assert int(shifted["loss_mask"].sum()) == batch.num_loss_tokens
        samples = batch.samples()
        assert [int(s["original_seq_len"]) for s in samples] == [
            int(high - low)
            for low, high in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)
            if filled[low]
        ]
        assert sum(int(s["loss_mask"].sum()) for s in samples) == batch.num_loss_tokens


@given(st.data())
@drawn(100)
def test_a_limit_within_a_limit_keeps_labels(data: Any) -> None:
    batch = data.draw(st.sampled_from(PLAIN))
    windows = data.draw(st.lists(st.integers(1, SEQ_LEN + 3), min_size=1, max_size=3))
    cut = batch
    for window in windows:
        cut = cut.limit_context(window)
    for name in ("input_ids", "labels", "document_ids"):
        assert getattr(cut, name).equal(getattr(batch, name))
    assert cut.position_ids.max() < min(windows)
    assert set(batch.cu_seqlens.tolist()) <= set(cut.cu_seqlens.tolist())


PLAIN = list(dataset())[:20]


def test_fields_made_on_a_device_are_those_made_on_the_host() -> None:
    for batch in list(dataset())[:12]:
        moved = batch._moved(lambda buffer: buffer.clone())
        here, there = limited(batch), limited(moved)
        again = here._moved(lambda buffer: buffer.clone())
        for name in ("input_ids", "labels", "position_ids", "document_ids", "cu_seqlens"):
            assert getattr(there, name).equal(getattr(here, name))
            assert getattr(again, name).equal(getattr(here, name))
        assert there.next_tokens(3).equal(here.next_tokens(3))
