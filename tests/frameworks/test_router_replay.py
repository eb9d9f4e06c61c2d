"""Routed experts of a sampler, replayed in packed rows, give the sampler's logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streampack import PackedBatch, PackedDataset, PackedLoader, Topology, pack
from tests.support.packed_batches import random_documents

transformers = pytest.importorskip("transformers")

from tests.support.tiny_families import tiny_model  # noqa: E402

DOCUMENTS = [ids.tolist() for ids in random_documents([9, 14, 3, 5, 1, 12, 21, 17])]
DOCUMENTS += [[*DOCUMENTS[1][:9], *ids] for ids in DOCUMENTS[3:6]]


@contextmanager
def routed(model: Any, choose: Any) -> Iterator[None]:
    """Let ``choose(layer, logits)``, with logits (T, experts), choose each token's experts.

    Their weights are the softmax over the logits of the chosen, as in the router itself.
    """

    def hook(layer: int) -> Any:
        def forced(gate: Any, given: Any, output: Any) -> Any:
            logits = torch.nn.functional.linear(given[0], gate.weight)
            chosen = choose(layer, logits)
            only = torch.full_like(logits, -torch.inf)
            only = only.scatter(1, chosen, logits.gather(1, chosen))
            if isinstance(output, Tensor):
                return only
            return output[0], only.softmax(1).gather(1, chosen), chosen  # transformers 5

        return forced

    gates = [module for name, module in model.named_modules() if name.endswith(".gate")]
    hooks = [gate.register_forward_hook(hook(layer)) for layer, gate in enumerate(gates)]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


def sampled(model: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Experts (T, layers, 2) of a noisy router, and the logits (T, vocabulary), of documents.

    The noise follows from the prefix, as in an engine with a cache of prefixes.
    """
    experts, logits = [], []
    for ids in DOCUMENTS:
        chosen: dict[int, Tensor] = {}

        def choose(layer: int, own: Tensor, ids: Any = ids, chosen: Any = chosen) -> Tensor:
            noise = [
                np.random.default_rng([layer, *ids[: t + 1]]).normal(size=own.shape[1])
                for t in range(len(ids))
            ]
            chosen[layer] = (own + torch.from_numpy(np.array(noise))).topk(2, dim=1).indices
            return chosen[layer]

        with routed(model, choose):
            logits.append(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0])
        experts.append(torch.stack([chosen[layer] for layer in sorted(chosen)], dim=1))
    return experts, logits


def replayed(model: Any, batch: PackedBatch) -> Tensor:
    """The logits (T, vocabulary) of the slots with the batch's experts."""
    experts = batch.fields["experts"].flatten(0, 1).long()
    arguments = batch.hf(model=model)  # which runs a model that it has not seen, to check it
    with routed(model, lambda layer, own: experts[:, layer]):
        return model(**arguments).logits.flatten(0, 1)


@pytest.fixture(scope="module")
def model() -> Any:
    made = tiny_model("mixtral", "sdpa", sliding_window=None).double()
    made.config._experts_implementation = "eager"  # transformers 5 multiplies no double otherwise
    return made


@torch.no_grad()
def test_replayed_experts_give_packed_documents_the_logits_of_the_sampler(model: Any) -> None:
    experts, logits = sampled(model)
    records = [
        {"tokens": ids, "experts": each.numpy()}
        for ids, each in zip(DOCUMENTS, experts, strict=True)
    ]
    dataset = PackedDataset(
        records,
        seq_len=32,
        batch_size=2,
        topology=Topology(),
        provenance=True,
        token_fields={"experts": ("uint8", tuple(experts[0].shape[1:]))},
    )
    seen, furthest = 0, 0.0
    for batch in PackedLoader(dataset):
        own = model(**batch.hf(model=model)).logits.flatten(0, 1)
        found = replayed(model, batch)
        pieces = batch.document_ids.flatten()
        for piece, number in enumerate(batch.provenance["index"].tolist()):
            slots = pieces == piece
            torch.testing.assert_close(found[slots], logits[number], rtol=0, atol=1e-6)
            furthest = max(furthest, float((own[slots] - logits[number]).abs().max()))
            seen += int(slots.sum())
    assert seen == sum(map(len, DOCUMENTS))
    assert furthest > 1e-3, "the sampler chose the experts that the model chooses"


@torch.no_grad()
def test_replayed_experts_give_the_slots_of_trees_the_logits_of_the_sampler(model: Any) -> None:
    experts, logits = sampled(model)
    chosen = [1, 8, 9, 10]  # which share a prefix
    ids = [DOCUMENTS[i] for i in chosen]
    plan = pack([*map(len, ids)], groups=[0] * 4, ids=ids, layout="tree", seq_len=64)
    (batch,) = plan.batches(ids, token_fields={"experts": [experts[i] for i in chosen]})
    assert batch.num_tokens < len(batch.slot)
    found = replayed(model, batch)[batch.slot]
    expected = torch.cat([logits[i] for i in chosen])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
