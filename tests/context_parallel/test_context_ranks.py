"""Context parallelism over gloo: each layout has the losses and gradients of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from streampack import BestFitDecreasing, PackedBatch
from tests.support.exchange import Gathered, OwnPart
from tests.support.forked import Host
from tests.support.packed_batches import VOCAB, packed_batches, random_documents

HEADS, WIDTH, SEQ_LEN = 4, 16, 48

JOB = """
import sys
import torch
import torch.distributed as dist
from tests.context_parallel.test_context_ranks import batch_of, gradients, loss_of_part, weights

folder, layouts = sys.argv[1], sys.argv[2:]
dist.init_process_group("gloo")
torch.set_num_threads(1)
found = {}
for layout in layouts:
    of = weights()
    batch = batch_of()
    part = batch.context_parallel(layout, cp_size=dist.get_world_size(), cp_rank=dist.get_rank())
    gradient = gradients(loss_of_part(batch, part, of, layout == "ulysses"), of)
    dist.all_reduce(gradient)
    found[layout] = gradient
torch.save(found, f"{folder}/{dist.get_rank()}.pt")
dist.destroy_process_group()
"""


def batch_of() -> PackedBatch:
    packer = BestFitDecreasing(seq_len=SEQ_LEN, align=8)
    (batch,) = packed_batches(random_documents([13, 7, 30, 3, 21, 9]), packer, batch_size=4)
    assert batch.num_documents == 6
    return batch


def weights() -> list[Tensor]:
    shapes = (VOCAB, WIDTH), (SEQ_LEN, WIDTH), (WIDTH, 3 * WIDTH), (WIDTH, VOCAB)
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]


def gradients(loss: Tensor, of: list[Tensor]) -> Tensor:
    return torch.cat([gradient.ravel() for gradient in torch.autograd.grad(loss, of)])


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """All are (n, heads, width of a head); the mask is (queries, keys)."""
    parts = (each.transpose(0, 1) for each in (q, k, v))
    return scaled_dot_product_attention(*parts, attn_mask=mask).transpose(0, 1)


def of_heads(x: Tensor, into: Tensor) -> list[Tensor]:
    return [each.view(len(x), HEADS, -1) for each in (x @ into).chunk(3, dim=-1)]


def loss_of_part(
    batch: PackedBatch, part: dict[str, Any], of: list[Tensor], ulysses: bool
) -> Tensor:
    """Summed losses of the slots that a rank holds."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    embedding, places, into, out = of
    x = embedding[part["input_ids"][0]] + places[part["position_ids"][0]]
    q, k, v = of_heads(x, into)
    if ulysses:  # attention sees all slots for some heads, by the boundaries of the whole batch
        own = slice(rank * HEADS // ranks, (rank + 1) * HEADS // ranks)
        q, k, v = (Gathered.apply(each)[:, own] for each in (q, k, v))
        made = attended(q, k, v, mask_of(part["cu_seqlens"]))
        every = torch.zeros(len(q), HEADS, WIDTH // HEADS, dtype=torch.float64)
        made = OwnPart.apply(torch.cat([every[:, : own.start], made, every[:, own.stop :]], dim=1))
    else:
        slots = part["slots"]
        keys = Gathered.apply(slots)
        segment = batch.seq_idx[0]
        mask = segment[slots][:, None] == segment[keys][None]
        mask &= slots[:, None] >= keys[None]
        made = attended(q, Gathered.apply(k), Gathered.apply(v), mask)
    logits = (x + made.flatten(1)) @ out
    return cross_entropy(logits, part["shift_labels"][0], ignore_index=-100, reduction="sum")


def mask_of(cu_seqlens: Tensor) -> Tensor:
    number = torch.arange(len(cu_seqlens) - 1).repeat_interleave(cu_seqlens.diff())
    return (number[:, None] == number[None]).tril()


def expected() -> Tensor:
    """Gradients of the documents one by one, in one process."""
    of, batch = weights(), batch_of()
    embedding, places, into, out = of
    loss = torch.zeros((), dtype=torch.float64)
    for number in range(batch.num_documents):
        ids = batch.input_ids[batch.document_ids == number]
        x = embedding[ids] + places[: len(ids)]
        mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        logits = (x + attended(*of_heads(x, into), mask).flatten(1)) @ out
        loss = loss + cross_entropy(logits[:-1], ids[1:], reduction="sum")
    return gradients(loss, of)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_of_a_batch_have_the_gradients_of_its_documents(
    host: Host, tmp_path: Path, ranks: int
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    layouts = ("zigzag", "contiguous", "ulysses")
    statuses, output = host.run_job(tmp_path / "job.py", tmp_path, *layouts, processes=ranks)
    assert statuses == [0] * ranks, output
    wanted = expected()
    for rank in range(ranks):
        found = torch.load(tmp_path / f"{rank}.pt")
        for layout in layouts:
            torch.testing.assert_close(found[layout], wanted, rtol=1e-10, atol=1e-10)
