"""Tests that need a CUDA device: `pytest -m gpu`.

FlashAttention's tests need `pip install flash-attn` besides.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from examples.attention_kernels import by_flash, by_flex, by_varlen, reference
from streampack import PackedBatch, PackedDataset, PackedLoader, Topology
from streampack.packing import BestFitDecreasing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
SEQ_LEN = 512
FIELDS = ("input_ids", "labels", "position_ids", "document_ids", "cu_seqlens")


def dataset(seq_len: int = SEQ_LEN, documents: int = 400) -> PackedDataset:
    lists = [[1 + i % 63] * (1 + i * 7 % 200) for i in range(documents)]
    packer = BestFitDecreasing(seq_len=seq_len)
    return PackedDataset(
        lists, packer=packer, batch_size=1, lanes=1, topology=Topology(), epochs=None
    )


def some_batches(count: int, **options: Any) -> list[PackedBatch]:
    loader = PackedLoader(dataset(), **options)
    return [batch for batch, _ in zip(loader, range(count), strict=False)]


@pytest.mark.parametrize("name", ["flex", "varlen", "flash_attn"])
def test_kernels_give_outputs_and_gradients_of_each_document_by_itself(name: str) -> None:
    if name == "flash_attn":
        pytest.importorskip("flash_attn", reason="flash-attn is not installed")
    if name == "varlen":
        pytest.importorskip("torch.nn.attention.varlen", reason="torch has no varlen_attn")
    kernel = {"flex": by_flex, "varlen": by_varlen, "flash_attn": by_flash}[name]
    for batch in some_batches(3, device="cuda"):
        exact = outputs_and_gradients(reference, batch, torch.float32)
        rounded = outputs_and_gradients(reference, batch, torch.bfloat16)
        found = outputs_and_gradients(kernel, batch, torch.bfloat16)
        for ours, theirs, right in zip(found, rounded, exact, strict=True):
            assert (ours - right).abs().max() <= 4 * (theirs - right).abs().max()
            assert (ours - right).norm() <= 2 * (theirs - right).norm()


def outputs_and_gradients(function: Any, batch: PackedBatch, dtype: torch.dtype) -> list[Any]:
    """Outputs, and gradients of q, k and v, in float32; inputs are the same for every dtype."""
    torch.manual_seed(0)
    drawn = torch.randn(3, SEQ_LEN, 4, 64, device="cuda").bfloat16()
    inputs = [x.detach().to(dtype).requires_grad_() for x in drawn]
    output = function(*inputs, batch)
    gradients = torch.autograd.grad(output.float().square().sum(), inputs)
    return [x.float() for x in (output, *gradients)]


def test_a_batch_is_one_copy_to_the_device() -> None:
    batch = some_batches(1)[0].pin_memory()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        moved = batch.to("cuda", non_blocking=True)
        fields = [getattr(moved, name) for name in FIELDS]
        torch.cuda.synchronize()
    copies = [event for event in profiler.events() if "Memcpy HtoD" in event.name]
    assert len(copies) == 1
    assert all(field.is_cuda for field in fields)


def test_nothing_waits_for_the_device() -> None:
    batch = some_batches(1)[0].pin_memory()
    batch.to("cuda").flex()  # whatever is set up once is
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        moved = batch.to("cuda", non_blocking=True)
        moved.hf(seq_idx=True, segments=100)
        moved.varlen("torch", segments=100)
        moved.next_tokens()
        moved.flex()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_batches_copied_ahead_equal_the_batches_of_the_host() -> None:
    expected = some_batches(30)
    found = []
    for batch, _ in zip(PackedLoader(dataset(), device="cuda"), range(30), strict=False):
        torch.cuda._sleep(1_000_000)  # the loop's stream is busy when the next copy begins
        found.append({name: getattr(batch, name).clone() for name in FIELDS})
    for ours, theirs in zip(found, expected, strict=True):
        for name in FIELDS:
            assert torch.equal(ours[name].cpu(), getattr(theirs, name))
