"""Gradients under DDP: of the mean over a step's loss tokens, on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from streampack import PackedLoader
from tests.support.forked import Host
from tests.support.tiny_gpt import TinyGPT
from tests.support.uneven_losses import VOCABULARY, dataset, double_llama

HAS_LLAMA = find_spec("transformers") is not None
WAYS = ("plain", "groups", "hf", "hf-groups")

JOB = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from streampack import PackedLoader
from tests.support.tiny_gpt import TinyGPT
from tests.support.uneven_losses import VOCABULARY, dataset, double_llama

folder = sys.argv[1]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)


def steps(way):
    model = double_llama() if way.startswith("hf") else TinyGPT(VOCABULARY)
    model = DistributedDataParallel(model) if ranks > 1 else model
    transform = (lambda batch: batch.hf()) if way == "hf-groups" else None
    loader = PackedLoader(dataset(rank, ranks), transform=transform)

    def loss_of(batch):
        if way == "hf-groups":
            return model(**batch).loss
        if way == "hf":
            return model(**batch.hf()).loss
        logits = model(batch.input_ids.ravel(), batch.position_ids.ravel(), batch.cu_seqlens)
        return batch.loss(logits)

    groups = loader.accumulate(3) if way.endswith("groups") else ([batch] for batch in loader)
    for group in groups:
        model.zero_grad()
        total = 0.0
        for batch in group:
            loss = loss_of(batch)
            loss.backward()
            total += loss.item()
        gradient = torch.cat([p.grad.ravel().double() for p in model.parameters()])
        yield loader.state_dict()["next_batch"], total, gradient


found = {way: list(steps(way)) for way in sys.argv[2:]}
torch.save(found, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


def loss_by_hand(model: Any, batches: Iterable[Any]) -> torch.Tensor:
    """The mean of the next-token losses of all documents in the batches."""
    each = []
    for batch in batches:
        for piece in range(batch.num_documents):
            ids = batch.input_ids[batch.document_ids == piece]
            if isinstance(model, TinyGPT):
                logits = model(ids, torch.arange(len(ids)), torch.tensor([0, len(ids)]))
            else:
                logits = model(input_ids=ids[None]).logits[0]
            each.append(torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none"))
    return torch.cat(each).mean()


@pytest.mark.parametrize(
    ("ranks", "ways"),
    [
        (2, ("groups", "hf-groups")),
        *(pytest.param(ranks, WAYS, marks=pytest.mark.slow) for ranks in (1, 2, 3, 4)),
    ],
)
def test_gradients_on_any_number_of_ranks_match_the_mean_over_loss_tokens(
    host: Host, tmp_path: Path, ranks: int, ways: tuple[str, ...]
) -> None:
    models: dict[str, Any] = {
        way: double_llama() if way.startswith("hf") else TinyGPT(VOCABULARY)
        for way in ways
        if HAS_LLAMA or not way.startswith("hf")
    }
    (tmp_path / "job.py").write_text(JOB)
    modules = ["transformers.models.llama.modeling_llama"][:HAS_LLAMA]
    statuses, output = host.run_job(
        tmp_path / "job.py", tmp_path, *models, processes=ranks, modules=modules
    )
    assert statuses == [0] * ranks, output
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(ranks)]
    batches = {batch.step * 6 + batch.lane: batch for batch in PackedLoader(dataset())}
    for way, model in models.items():
        # transformers takes its loss in single precision.
        relative, absolute = (1e-4, 1e-5) if way.startswith("hf") else (1e-9, 1e-12)
        begin = 0
        for parts in zip(*(found[way] for found in results), strict=True):
            end = parts[0][0]
            model.zero_grad()
            loss = loss_by_hand(model, [batches[n] for n in range(begin, end) if n in batches])
            loss.backward()
            expected = torch.cat([p.grad.ravel().double() for p in model.parameters()])
            assert expected.norm() > 0.01
            for _, _, gradient in parts:
                torch.testing.assert_close(gradient, expected, rtol=relative, atol=absolute)
            mean = sum(total for _, total, _ in parts) / ranks
            assert mean == pytest.approx(float(loss.detach()), rel=relative)
            begin = end
        assert begin > max(batches)
