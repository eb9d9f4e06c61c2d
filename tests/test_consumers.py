"""Attention kernels, torchtitan and Megatron: names as installed, values as of each document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from streampack import PackedBatch
from streampack.consumers.block_mask import segment_block_mask
from streampack.errors import ConfigError
from streampack.packing import BestFitDecreasing
from tests.packed_batches import VOCAB, packed_batches, random_documents
from tests.tiny_gpt import TinyGPT, summed_loss

SEQ_LEN = 24
LENGTHS = [5, 23, 9, 40, 2, 1, 13, 24, 17, 8, 1, 1]


def batches(lengths: list[int] = LENGTHS, **options: Any) -> list[PackedBatch]:
    packer = options.pop("packer", BestFitDecreasing(seq_len=SEQ_LEN))
    return packed_batches(random_documents(lengths), packer, batch_tokens=2 * SEQ_LEN, **options)


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
@settings(max_examples=60, deadline=None)
def test_the_block_mask_is_that_of_every_pair(
    lengths: list[int], block_size: int, empty: int
) -> None:
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
    # A block that is said to be full is not looked at again.
    full = made.full_kv_num_blocks[0, 0]  # type: ignore[index]
    for i in range(len(full)):
        for j in made.full_kv_indices[0, 0, i, : full[i]].tolist():  # type: ignore[index]
            rows = slice(i * block_size, (i + 1) * block_size)
            assert everything[rows, j * block_size : (j + 1) * block_size].all()


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
    with pytest.raises(ConfigError, match="attention segments"):
        batch.varlen(segments=1)


def compiled_on(lists: list[list[int]], segments: int | None) -> tuple[int, int]:
    """Batches that a compiled model was run on, and how often it was compiled."""
    graphs = []

    def backend(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = TinyGPT(VOCAB)

    def step(ids: Any, positions: Any, cu_seqlens: Any, longest: int) -> Any:
        token = torch.arange(len(ids))
        segment = torch.searchsorted(cu_seqlens, token, right=True)
        near = (token[:, None] - token).abs() < longest  # as kernels do, by a Python int
        return model.attend(ids, positions, (segment[:, None] == segment).tril() & near)

    torch._dynamo.reset()
    compiled = torch.compile(step, backend=backend, dynamic=False)
    shapes = set()
    for lengths in lists:
        for batch in batches(lengths):
            cu_seqlens, _, longest, _ = batch.varlen(segments=segments).values()
            ids, positions = batch.input_ids.view(-1), batch.position_ids.view(-1)
            found = compiled(ids, positions, cu_seqlens, longest)
            torch.testing.assert_close(found, model(ids, positions, batch.cu_seqlens))
            shapes.add((batch.num_segments, batch.max_seqlen))
    return len(shapes), len(graphs)


def test_a_hundred_different_batches_are_compiled_once() -> None:
    rng = np.random.default_rng(0)
    lists = [rng.integers(1, SEQ_LEN + 1, rng.integers(3, 12)).tolist() for _ in range(100)]
    shapes, graphs = compiled_on(lists, segments=2 * SEQ_LEN)
    assert shapes > 20
    assert graphs == 1
    shapes, graphs = compiled_on(lists[:3], segments=None)  # without: for every shape anew
    assert graphs > 1


# ---------------------------------------------------------------------- torchtitan


def test_torchtitan_gets_shifted_labels_that_cross_no_boundary() -> None:
    model = TinyGPT(VOCAB)
    for batch in batches():
        inputs, labels = batch.torchtitan()
        assert set(inputs) == {"input", "positions"}
        for tensor in (*inputs.values(), labels):
            assert tensor.shape == (batch.rows * batch.seq_len,)
            assert tensor.dtype == torch.int64
        starts = torch.nonzero(inputs["positions"] == 0).view(-1)
        assert torch.equal(starts.to(torch.int32), batch.cu_seqlens[:-1])
        logits = model(inputs["input"], inputs["positions"], batch.cu_seqlens)
        found = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        torch.testing.assert_close(found, summed_loss(logits, batch.labels.view(-1)))
        in_rows, labels_in_rows = batch.torchtitan(flat=False)
        assert in_rows["input"].shape == labels_in_rows.shape == (batch.rows, batch.seq_len)
        assert torch.equal(labels_in_rows.view(-1), labels)


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


def test_documents_that_are_not_aligned_are_refused_for_context_parallelism() -> None:
    with pytest.raises(ConfigError, match=r"multiple of 4.*align=4"):
        [batch.megatron(cp_size=2) for batch in batches()]
