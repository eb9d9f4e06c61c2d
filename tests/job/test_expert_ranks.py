"""Experts divided over ranks: gradients of one process, with rows of one length on all ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from streampack import PackedBatch, pack
from tests.support.exchange import Gathered, OwnPart
from tests.support.forked import Host

VOCAB, WIDTH, EXPERTS, CHOSEN = 50, 8, 4, 2
LENGTHS = np.random.default_rng(0).integers(2, 30, 60).tolist()
IDS = [np.random.default_rng(i).integers(1, VOCAB, n) for i, n in enumerate(LENGTHS)]

JOB = """
import sys
import torch
import torch.distributed as dist
from tests.job.test_expert_ranks import batches_of, gradients_of_rank

folder, masked = sys.argv[1], sys.argv[2] == "masked"
dist.init_process_group("gloo")
torch.set_num_threads(1)
found = [
    (batch.seq_len, gradients_of_rank(batch, masked))
    for batch in batches_of(dist.get_rank(), dist.get_world_size(), pad_to=16)
]
torch.save(found, f"{folder}/{dist.get_rank()}.pt")
dist.destroy_process_group()
"""


def batches_of(rank: int, ranks: int, pad_to: int | None) -> list[PackedBatch]:
    plan = pack(LENGTHS, seq_len=100, ranks=ranks, order="decreasing")
    return list(plan.batches(IDS, rank=rank, pad_to=pad_to))


def weights() -> dict[str, Tensor]:
    shapes = {
        "embedding": (VOCAB, WIDTH), "router": (WIDTH, EXPERTS),
        "experts": (EXPERTS, WIDTH, WIDTH), "head": (WIDTH, VOCAB),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for name, shape in shapes.items()
    }


def gradients(loss: Tensor, of: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(zip(of, torch.autograd.grad(loss, list(of.values())), strict=True))


def routed(x: Tensor, of: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Shares of the experts, (n, EXPERTS), and ones where an expert is chosen."""
    shares = (x @ of["router"]).softmax(-1)
    chosen = torch.zeros_like(shares).scatter(1, shares.topk(CHOSEN).indices, 1)
    return shares, chosen


def auxiliary(shares: Tensor, chosen: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the counted slots: shares, (EXPERTS,), and tokens of the experts and of all."""
    count = counted.double()[:, None]
    return (shares * count).sum(0), torch.cat([(chosen * count).sum(0), count.sum(0)])


def gradients_of_rank(batch: PackedBatch, masked: bool) -> dict[str, Tensor]:
    """Gradients of the sum of the ranks' losses, the experts' from their own rank."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    of = weights()
    x = of["embedding"][batch.input_ids.view(-1)]
    shares, chosen = routed(x, of)
    own = slice(rank * EXPERTS // ranks, (rank + 1) * EXPERTS // ranks)
    gates = Gathered.apply(shares * chosen)[:, own]
    made = torch.einsum("nd,edf,ne->nf", Gathered.apply(x), of["experts"][own], gates)
    logits = (x + OwnPart.apply(made)) @ of["head"]
    labels = batch.next_tokens().view(-1)
    loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    counted = ~batch.padding_mask.view(-1) if masked else torch.ones_like(labels, dtype=torch.bool)
    sums, tokens = auxiliary(shares, chosen, counted)
    dist.all_reduce(tokens)
    loss = loss + 1000 * EXPERTS * (sums * tokens[:-1] / tokens[-1] ** 2).sum()
    found = gradients(loss, of)
    for gradient in found.values():
        dist.all_reduce(gradient)
    return found


def expected(batches: list[PackedBatch]) -> dict[str, Tensor]:
    """The same of the documents of all ranks, without padding, in one process."""
    of = weights()
    ids = torch.cat([batch.input_ids[~batch.padding_mask] for batch in batches])
    labels = torch.cat([batch.next_tokens()[~batch.padding_mask] for batch in batches])
    x = of["embedding"][ids]
    shares, chosen = routed(x, of)
    made = torch.einsum("nd,edf,ne->nf", x, of["experts"], shares * chosen)
    loss = torch.nn.functional.cross_entropy(
        (x + made) @ of["head"], labels, ignore_index=-100, reduction="sum"
    )
    sums, tokens = auxiliary(shares, chosen, torch.ones_like(ids, dtype=torch.bool))
    return gradients(loss + 1000 * EXPERTS * (sums * tokens[:-1] / tokens[-1] ** 2).sum(), of)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_of_a_step_get_one_length_and_the_gradients_of_one_process(
    host: Host, tmp_path: Path, ranks: int
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    results = {}
    for way in ("masked", "unmasked"):
        statuses, output = host.run_job(tmp_path / "job.py", tmp_path, way, processes=ranks)
        assert statuses == [0] * ranks, output
        results[way] = [torch.load(tmp_path / f"{rank}.pt") for rank in range(ranks)]
    steps = list(zip(*(batches_of(rank, ranks, 16) for rank in range(ranks)), strict=True))
    used = [{int((~b.padding_mask).sum()) for b in step} for step in steps]
    assert max(map(len, used)) > 1  # rows cut to their own tokens would differ
    assert min(step[0].seq_len for step in steps) < 100
    off = 0.0
    for number, step in enumerate(steps):
        assert len({found[number][0] for found in results["masked"]}) == 1
        wanted = expected(list(step))
        for rank in range(ranks):
            for name, gradient in results["masked"][rank][number][1].items():
                torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-9)
            wrong = results["unmasked"][rank][number][1]["router"] - wanted["router"]
            off = max(off, float(wrong.norm() / wanted["router"].norm()))
    assert off > 0.01  # padding in the auxiliary loss would show
