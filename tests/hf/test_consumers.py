"""Attention kernels, torchtitan and Megatron: names as installed, values as of each document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from examples.torchtitan_loader import microbatch
from streampack import PackedBatch, PackedDataset, PackedLoader, TokenRules, Topology, sources
from streampack.errors import ConfigError
from streampack.forms.attention import held_slots, segment_block_mask
from streampack.forms.megatron import _megatron_counts_tokens
from streampack.packing import (
    BestFitCrop,
    BestFitDecreasing,
    Buckets,
    Concat,
    FirstFitDecreasing,
    Pad,
    Seamless,
)
from tests.support.drawn import drawn
from tests.support.memory_source import MemorySource
from tests.support.packed_batches import VOCAB, packed_batches, random_documents
from tests.support.simulated_ranks import on_ranks
from tests.support.tiny_gpt import TinyGPT, summed_loss

SEQ_LEN = 24
LENGTHS = [5, 23, 9, 40, 2, 1, 13, 24, 17, 8, 1, 1]


def batches(lengths: list[int] = LENGTHS, **options: Any) -> list[PackedBatch]:
    packer = options.pop("packer", BestFitDecreasing(seq_len=SEQ_LEN))
    return packed_batches(random_documents(lengths), packer, batch_size=2, **options)


# ---------------------------------------------------------------------- variable-length attention


def test_varlen_arguments_are_int32_ends_and_a_python_int() -> None:
    for batch in batches():
        for api in ("flash_attn", "torch"):
            q, k, most_q, most_k = batch.varlen(api).values()  # type: ignore[arg-type]
            assert q.dtype == k.dtype == torch.int32
            assert q[0] == 0
            assert q[-1] == k[-1] == batch.rows * batch.seq_len
            assert type(most_q) is type(most_k) is int
            assert most_q == q.diff().max()


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    st.sampled_from([1, 4, 16, 128]),
    st.integers(0, 3),
)
@drawn(60)
def test_the_block_mask_matches_every_pair(lengths: list[int], block_size: int, empty: int) -> None:
    cu_seqlens = torch.tensor(np.cumsum([0, *lengths, *[0] * empty]), dtype=torch.int32)
    slots = int(cu_seqlens[-1])
    made = segment_block_mask(cu_seqlens, slots, block_size)
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))

    def pair(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (segment[query] == segment[key])

    expected = create_block_mask(
        pair, None, None, slots, slots, device="cpu", BLOCK_SIZE=block_size
    )
    assert made.shape == expected.shape
    assert torch.equal(made.to_dense(), expected.to_dense())
    token = torch.arange(slots)
    everything = (token[:, None] >= token) & (segment[:, None] == segment)
    # A block listed as full is not masked a second time.
    full = made.full_kv_num_blocks[0, 0]  # type: ignore[index]
    for i in range(len(full)):
        for j in made.full_kv_indices[0, 0, i, : full[i]].tolist():  # type: ignore[index]
            rows = slice(i * block_size, (i + 1) * block_size)
            assert everything[rows, j * block_size : (j + 1) * block_size].all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("attention", ["document", "row"])
def test_flex_attention_equals_attention_with_a_block_diagonal_mask(attention: str) -> None:
    for batch in batches(attention=attention):
        torch.manual_seed(0)
        slots = batch.rows * batch.seq_len
        q, k, v = torch.randn(3, 1, 2, slots, 8)
        ends = batch.cu_seqlens
        segment = torch.repeat_interleave(torch.arange(batch.num_segments), ends.diff())
        mask = (segment[:, None] == segment).tril()
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        for block_size in (16, 128):
            found = flex_attention(q, k, v, block_mask=batch.flex(block_size))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- static shapes


def test_reserved_segments_give_static_shapes() -> None:
    seen = set()
    for batch in batches():
        for arguments in (batch.varlen(segments=20), batch.varlen("torch", segments=20)):
            q, _, most, _ = arguments.values()
            assert q.shape == (21,)
            assert q.dtype == torch.int32
            assert most == SEQ_LEN
            assert torch.equal(q[: batch.num_segments + 1], batch.cu_seqlens)
            assert (q[batch.num_segments :] == batch.rows * batch.seq_len).all()
        hf = batch.hf(segments=20)
        assert torch.equal(hf["cu_seq_lens_q"], q)
        assert hf["max_length_q"] == SEQ_LEN
        seen.add(batch.num_segments)
    assert len(seen) > 1
    with pytest.raises(ConfigError):
        batch.varlen(segments=1)


def test_a_batch_that_is_on_the_device_is_not_moved() -> None:
    batch = next(iter(batches()))
    assert batch.to("cpu:0") is batch


# ---------------------------------------------------------------------- torchtitan


@pytest.mark.parametrize("one_dict", [False, True])
def test_torchtitan_gets_shifted_labels_that_cross_no_boundary(one_dict: bool) -> None:
    model = TinyGPT(VOCAB)
    for batch in batches():
        given = microbatch(batch, flat=True, one_dict=one_dict)
        inputs = given if one_dict else {**given[0], "labels": given[1]}
        for name in ("input", "positions", "labels"):
            assert inputs[name].shape == (batch.rows * batch.seq_len,)
            assert inputs[name].dtype == torch.int64
        starts = torch.nonzero(inputs["positions"] == 0).view(-1)
        assert torch.equal(starts.to(torch.int32), batch.cu_seqlens[:-1])
        logits = model(inputs["input"], inputs["positions"], batch.cu_seqlens)
        found = torch.nn.functional.cross_entropy(logits, inputs["labels"], reduction="sum")
        torch.testing.assert_close(found, summed_loss(logits, batch.labels.view(-1)))
        if one_dict:
            assert inputs["num_valid_tokens"] == (inputs["labels"] != -100).sum()
            assert torch.equal(inputs["padding_mask"], batch.document_ids.view(-1) == -1)
        else:
            rows, labels = microbatch(batch, flat=False, one_dict=False)
            assert rows["input"].shape == labels.shape == (batch.rows, batch.seq_len)
            assert torch.equal(labels.view(-1), inputs["labels"])


# ---------------------------------------------------------------------- boundaries for every layer


def test_multi_token_prediction_reaches_over_no_boundary() -> None:
    for batch in batches():
        labels, segment = batch.labels.view(-1).tolist(), batch.seq_idx[0].tolist()
        slots = len(labels)
        for depth in (1, 2, 5, slots, slots + 3):
            expected = [
                labels[t + depth]
                if t + depth < slots and segment[t + depth] == segment[t]
                else -100
                for t in range(slots)
            ]
            found = batch.next_tokens(depth)
            assert found.shape == (batch.rows, batch.seq_len)
            assert found.dtype == torch.int64
            assert found.view(-1).tolist() == expected
        assert torch.equal(batch.next_tokens(), batch.next_tokens(1))
    for depth in (0, -1, 1.5):
        with pytest.raises(ConfigError):
            batch.next_tokens(depth)  # type: ignore[arg-type]


def test_linear_attention_gets_boundaries_on_host_and_device_and_by_chunk() -> None:
    for batch in batches():
        boundaries = batch.fla(chunk_size=4)
        assert {tensor.dtype for tensor in boundaries.values()} == {torch.int64}
        for name in ("cu_seqlens", "cu_seqlens_cpu"):
            assert boundaries[name].tolist() == batch.cu_seqlens.tolist()
        expected = [
            [segment, chunk]
            for segment, length in enumerate(batch.cu_seqlens.diff().tolist())
            for chunk in range(-(-length // 4))
        ]
        assert boundaries["chunk_indices"].tolist() == expected
        assert set(batch.fla()) == {"cu_seqlens", "cu_seqlens_cpu"}
    with pytest.raises(ConfigError, match="chunk_size"):
        batch.fla(chunk_size=0)


def test_torchtitan_gets_boundaries_on_the_host_too() -> None:
    attention = pytest.importorskip("torchtitan.models.common.attention")
    for batch in batches():
        made = attention.VarlenMetadata(**batch.varlen("torchtitan"))
        assert made.cu_seq_q_host == tuple(batch.cu_seqlens.tolist())
        padded = attention.VarlenMetadata(**batch.varlen("torchtitan", segments=30))
        assert padded.cu_seq_q_host == tuple(padded.cu_seq_q.tolist())


def test_mamba_layers_of_megatron_can_tell_segments_apart() -> None:
    """`total_tokens` ends the last segment; without it Megatron derives no `seq_idx`."""
    installed = _megatron_counts_tokens()
    for batch in batches():
        params = batch.packed_seq_params()
        assert params.get("total_tokens") == (2 * SEQ_LEN if installed else None)
        ends = torch.tensor([*params["cu_seqlens_q_padded"].tolist(), 2 * SEQ_LEN])
        lengths = ends.diff()
        seq_idx = torch.arange(len(lengths)).repeat_interleave(lengths)
        assert seq_idx.tolist() == batch.seq_idx[0].tolist()


# ---------------------------------------------------------------------- Megatron


def test_megatron_gets_a_float_mask_and_labels_inside_the_vocabulary() -> None:
    for batch in batches():
        tensors = batch.megatron()
        assert tensors.pop("attention_mask") is None
        assert {name: (t.dtype, t.shape) for name, t in tensors.items() if t is not None} == {
            "tokens": (torch.int64, (1, 2 * SEQ_LEN)),
            "labels": (torch.int64, (1, 2 * SEQ_LEN)),
            "loss_mask": (torch.float32, (1, 2 * SEQ_LEN)),
            "position_ids": (torch.int64, (1, 2 * SEQ_LEN)),
            "padding_mask": (torch.bool, (1, 2 * SEQ_LEN)),
        }
        assert tensors["loss_mask"].sum() == batch.num_loss_tokens  # type: ignore[union-attr]
        assert tensors["labels"].min() >= 0  # type: ignore[union-attr]
        params = batch.packed_seq_params()
        assert torch.equal(params["cu_seqlens_q"], batch.cu_seqlens)
        assert torch.equal(params["cu_seqlens_q_padded"], batch.cu_seqlens)
        assert params["max_seqlen_q"] == params["max_seqlen_kv"] == batch.max_seqlen


def test_packed_seq_params_are_fields_of_the_installed_megatron() -> None:
    module = pytest.importorskip("megatron.core.packed_seq_params")
    for batch in batches():
        params = module.PackedSeqParams(**batch.packed_seq_params())
        assert params.qkv_format == "thd"


@pytest.mark.parametrize(
    "packer",
    [Concat(seq_len=SEQ_LEN), Seamless(seq_len=SEQ_LEN), BestFitCrop(seq_len=SEQ_LEN)],
    ids=lambda packer: type(packer).__name__,
)
def test_whole_rows_are_split_over_context_parallel_ranks_with_any_packer(packer: Any) -> None:
    for batch in batches(packer=packer, attention="row"):
        whole = batch.megatron()
        parts = [batch.megatron(cp_size=2, cp_rank=rank) for rank in range(2)]
        for row in range(batch.rows):
            rows = (slice(row * SEQ_LEN, (row + 1) * SEQ_LEN), slice(row * 12, (row + 1) * 12))
            for name in ("tokens", "labels", "loss_mask", "position_ids"):
                in_row = whole[name][0, rows[0]]  # type: ignore[index]
                head, *middle, tail = in_row.split(SEQ_LEN // 4)
                if batch.document_ids[row].min() < 0:
                    continue  # a short row has its padding in a segment of its own
                for part, expected in zip(parts, ((head, tail), middle), strict=True):
                    assert torch.equal(part[name][0, rows[1]], torch.cat(tuple(expected)))  # type: ignore[index]


@pytest.mark.parametrize(
    "packer",
    [
        BestFitDecreasing(seq_len=SEQ_LEN, align=4),
        FirstFitDecreasing(seq_len=SEQ_LEN, align=4),
        Buckets(seq_lens=(8, SEQ_LEN), shares=(1, 2), align=4),
        Pad(seq_len=SEQ_LEN, atom=12),  # each document has a part of a row to itself
    ],
    ids=lambda packer: type(packer).__name__,
)
def test_context_parallel_ranks_together_have_the_losses_of_the_documents(packer: Any) -> None:
    model = TinyGPT(VOCAB)
    cp_size = 2
    seen = 0
    for batch in batches(packer=packer):
        whole = batch.megatron()
        params = batch.packed_seq_params(cp_size=cp_size)
        real, placed = params["cu_seqlens_q"], params["cu_seqlens_q_padded"]
        assert real.dtype == placed.dtype == torch.int32
        assert len(real) == len(placed)
        assert placed[-1] == batch.rows * batch.seq_len
        assert (placed.diff() % (2 * cp_size) == 0).all()
        assert ((placed.diff() - real.diff()) >= 0).all()
        assert ((placed.diff() - real.diff()) < 2 * cp_size).all()
        assert params["max_seqlen_q"] == placed.diff().max()
        segment = torch.repeat_interleave(torch.arange(len(real) - 1), placed.diff())
        held = torch.arange(batch.rows * batch.seq_len)
        parts = [batch.megatron(cp_size=cp_size, cp_rank=rank) for rank in range(cp_size)]
        slots = [
            torch.from_numpy(held_slots(placed.numpy(), cp_size, rank, zigzag=True))
            for rank in range(cp_size)
        ]
        assert torch.equal(torch.cat(slots).sort().values, held)
        logits = model(batch.input_ids.view(-1), batch.position_ids.view(-1), batch.cu_seqlens)
        expected = summed_loss(logits, batch.labels.view(-1))
        found = torch.zeros((), dtype=torch.float64)
        # The exchange between ranks: every key, seen by the queries that a rank holds.
        mask = (segment[:, None] == segment).tril()
        ids, positions = whole["tokens"], whole["position_ids"]
        everywhere = model.attend(ids.view(-1), positions.view(-1), mask)  # type: ignore[union-attr]
        for part, place in zip(parts, slots, strict=True):
            for name, tensor in part.items():
                if tensor is not None:
                    assert torch.equal(tensor[0], whole[name][0, place])  # type: ignore[index]
            losses = torch.nn.functional.cross_entropy(
                everywhere[place],
                part["labels"][0],
                reduction="none",  # type: ignore[index]
            )
            found = found + (losses * part["loss_mask"][0]).sum()  # type: ignore[index]
            # Head and tail: as much to attend to on every rank.
            assert abs(int(mask[place].sum()) * cp_size - int(mask.sum())) <= 4 * len(placed) ** 2
        torch.testing.assert_close(found, expected)
        seen += batch.num_documents
    assert seen >= len(LENGTHS)


def test_empty_batches_go_to_every_consumer_and_carry_no_loss() -> None:
    documents = random_documents([20, 7])

    def empty_of(rank: int, member: Any) -> list[PackedBatch]:
        share = PackedDataset(
            sources.Iterable(lambda lane, lanes: documents[lane::lanes]),
            packer=BestFitDecreasing(seq_len=SEQ_LEN, align=4), batch_size=2, lanes=4,
            topology=Topology(rank, 4), token_rules=TokenRules(pad_id=90),
        )  # fmt: skip
        return [batch for batch in PackedLoader(share, ranks=member) if not batch.num_documents]

    empty = [batch for batches in on_ranks(4, empty_of) for batch in batches]
    assert len(empty) == 2
    for batch in empty:
        assert batch.megatron(cp_size=2)["loss_mask"].sum() == 0  # type: ignore[union-attr]
        assert batch.megatron(cp_size=2)["padding_mask"].all()  # type: ignore[union-attr]
        assert batch.packed_seq_params(cp_size=2)["cu_seqlens_q"].tolist() == [0, 24, 48]
        assert (batch.next_tokens() == -100).all()
        assert batch.varlen(segments=5)["cu_seqlens_q"].tolist() == [0, 24, 48, 48, 48, 48]
        assert batch.hf(seq_idx=True)["seq_idx"].max() == 1
        assert batch.flex(8).shape == (1, 1, 48, 48)


# ---------------------------------------------------------------------- the way to a device


@pytest.mark.parametrize("masked", [False, True])
def test_a_batch_travels_in_one_buffer(masked: bool) -> None:
    documents = random_documents(LENGTHS)
    masks = [tokens % 2 == 0 for tokens in documents] if masked else None
    packer = BestFitDecreasing(seq_len=SEQ_LEN)
    for batch in packed_batches(documents, packer, masks, batch_size=2):
        copies = []

        def copy(buffer: torch.Tensor, made: list[torch.Tensor] = copies) -> torch.Tensor:
            made.append(buffer.clone())
            return made[-1]

        moved = batch._moved(copy)._moved(copy)
        assert len(copies) == 2
        storage = copies[1].untyped_storage().data_ptr()
        for name in ("cu_seqlens", "source_ids"):
            assert getattr(moved, name).untyped_storage().data_ptr() == storage
            assert torch.equal(getattr(moved, name), getattr(batch, name))
        for name in ("input_ids", "labels", "position_ids", "document_ids"):
            assert torch.equal(getattr(moved, name), getattr(batch, name))
        per_token = copies[1].nbytes / (batch.rows * batch.seq_len)
        assert per_token < 2 + masked + 13 * 64 / SEQ_LEN  # the rest is a few ends and alignment


def test_a_loader_with_a_device_gives_the_same_batches_and_states() -> None:
    def loader(**options: Any) -> PackedLoader:
        dataset = PackedDataset(
            MemorySource([random_documents(LENGTHS * 3)]),
            packer=BestFitDecreasing(seq_len=SEQ_LEN), batch_size=1, lanes=1, topology=Topology(),
        )  # fmt: skip
        return PackedLoader(dataset, **options)

    plain, ahead = loader(), loader(device="cpu")
    number = 0
    for expected, found in zip(plain, ahead, strict=True):
        assert torch.equal(found.input_ids, expected.input_ids)
        assert ahead.state_dict() == plain.state_dict()
        number += 1
    assert number > 3
