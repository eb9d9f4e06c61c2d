"""Losses over groups of batches: the gradients of the mean over all tokens, empty batches too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from streampack import PackedBatch, PackedDataset, PackedLoader, Topology, sources
from streampack.batch import BatchGroup
from streampack.forms.loss import token_mean_loss
from tests.support.simulated_ranks import on_ranks
from tests.support.tiny_gpt import TinyGPT, summed_loss
from tests.support.uneven_losses import DOCUMENTS, dataset, double_llama


def gradients(model: TinyGPT) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def add_up(model: TinyGPT, batches: Iterable[PackedBatch]) -> float:
    """Gradients of one rank's batches; returns its share of the loss."""
    total = 0.0
    for batch in batches:
        flat = (batch.input_ids.ravel(), batch.position_ids.ravel(), batch.cu_seqlens)
        loss = batch.loss(model(*flat))
        assert torch.isfinite(loss)
        loss.backward()
        total += float(loss.detach())
    return total


def unpacked() -> tuple[float, list[Tensor]]:
    """Loss and gradients over all documents in one step, one document at a time."""
    model = TinyGPT(50)
    count = sum(len(document) - 1 for document in DOCUMENTS)
    total = 0.0
    for document in DOCUMENTS:
        ids = torch.from_numpy(document.astype("int64"))
        logits = model(ids, torch.arange(len(ids)), torch.tensor([0, len(ids)]))
        loss = summed_loss(logits, ids) / count
        loss.backward()
        total += float(loss.detach())
    return total, gradients(model)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_step_over_everything_has_the_gradients_of_unpacked_training(world_size: int) -> None:
    expected_loss, expected = unpacked()

    def run(rank: int, ranks: Any) -> BatchGroup:
        (group,) = PackedLoader(dataset(rank, world_size), ranks=ranks).accumulate(1000)
        return group

    results, empty = [], 0
    for group in on_ranks(world_size, run):  # threads share torch's generator, so not in them
        model = TinyGPT(50)
        loss = add_up(model, group)
        results.append((loss, gradients(model)))
        empty += sum(batch.num_documents == 0 for batch in group)
    assert (empty > 0) == (world_size > 1)
    assert sum(loss for loss, _ in results) / world_size == pytest.approx(expected_loss, 1e-12)
    for parts in zip(expected, *(found for _, found in results), strict=True):
        mean = torch.stack(parts[1:]).mean(0)  # as DDP makes it
        torch.testing.assert_close(mean, parts[0], rtol=1e-9, atol=1e-12)


def test_groups_are_the_same_where_ranks_times_batches_is_constant_until_a_lane_is_dry() -> None:
    def groups(world_size: int, batches: int) -> list[Any]:
        def run(rank: int, ranks: Any) -> list[tuple[int, list[tuple[int, int]]]]:
            loader = PackedLoader(dataset(rank, world_size), ranks=ranks)
            return [
                (group.num_loss_tokens, [(b.step, b.lane) for b in group if b.num_documents])
                for group in loader.accumulate(batches)
            ]

        results = on_ranks(world_size, run)
        assert len({str([count for count, _ in one]) for one in results}) == 1
        return [
            (parts[0][0], sorted(place for _, places in parts for place in places))
            for parts in zip(*results, strict=True)
        ]

    expected = groups(1, 6)
    for found in (groups(2, 3), groups(3, 2), groups(6, 1)):
        assert found[0] == expected[0]  # later on lanes are dry, and steps are left out
        assert sum(count for count, _ in found) == sum(count for count, _ in expected)
        assert [p for _, places in found for p in places] == [p for _, ps in expected for p in ps]
    counts = [b.num_loss_tokens for b in PackedLoader(dataset())]
    assert [count for count, _ in expected] == [
        sum(counts[i : i + 6]) for i in range(0, len(counts), 6)
    ]
    assert len(groups(2, 5)[-1][1]) < 10  # a short last group


def test_a_group_at_hand_is_taken_and_the_one_behind_it_is_not() -> None:
    expected = [(b.step, b.lane) for b in PackedLoader(dataset())]
    loader = PackedLoader(dataset())
    found = []
    for group in loader.accumulate(2):
        found += [(b.step, b.lane) for b in group]
        assert all(b.num_items_in_batch == group.num_loss_tokens for b in group)
        if len(found) == 4:
            assert loader.state_dict()["next_batch"] == 4
            assert loader.skip(3) == 3
        if len(found) == 8:
            break
    assert found == expected[:4] + expected[7:11]
    assert [(b.step, b.lane) for b in loader] == expected[11:]


def test_without_any_loss_token_there_is_no_nan() -> None:
    logits = torch.zeros(2, 4, 7, requires_grad=True)
    loss = token_mean_loss(logits, torch.full((2, 4), -100), 0)
    loss.backward()
    assert loss == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_the_loss_of_a_batch_is_the_mean_over_its_loss_tokens() -> None:
    torch.manual_seed(0)
    for batch in PackedLoader(dataset()):
        logits = torch.randn(batch.rows, batch.seq_len, 50, requires_grad=True)
        for shaped in (logits, logits.view(1, -1, 50), logits.view(-1, 50)):
            loss = batch.loss(shaped)
            if batch.num_loss_tokens:
                expected = torch.nn.functional.cross_entropy(
                    logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten(), ignore_index=-100
                )
                torch.testing.assert_close(loss, expected)


def loss_by_hand(batch: PackedBatch, logits: torch.Tensor) -> torch.Tensor:
    labels = batch.labels[:, 1:].flatten()
    flat = logits[:, :-1].flatten(0, 1)
    total = torch.nn.functional.cross_entropy(flat, labels, ignore_index=-100, reduction="sum")
    return total / batch.num_items_in_batch


def test_a_loss_by_hand_equals_the_loss_of_the_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    evaluation = PackedDataset.evaluation([[5, 6, 7]] * 20 + [[4]] * 20, seq_len=8, batch_size=1)
    alone: Any = [
        DataLoader(dataset(), batch_size=None),
        PackedLoader(dataset()),
        PackedLoader(evaluation),
        PackedLoader(dataset(0, 2)),  # with empty batches at its end
        next(PackedLoader(dataset()).accumulate(3)),
    ]
    for batches in alone:
        found = 0
        for batch in batches:
            logits = torch.randn(batch.rows, batch.seq_len, 50, generator=generator)
            torch.testing.assert_close(loss_by_hand(batch, logits), batch.loss(logits))
            found += 1
        assert found > 2


def test_hugging_face_divides_by_the_global_count() -> None:
    pytest.importorskip("transformers")
    model = double_llama()
    (group,) = PackedLoader(dataset()).accumulate(1000)
    total = 0.0
    for batch in group:
        out = model(**batch.hf())
        own = token_mean_loss(out.logits, batch.labels, group.num_loss_tokens)
        torch.testing.assert_close(own, batch.loss(out.logits))
        torch.testing.assert_close(out.loss.double(), own, rtol=1e-5, atol=1e-7)
        total += float(out.loss.detach())
    assert total > 1
    empty = next(batch for batch in PackedLoader(dataset(0, 2)) if not batch.num_documents)
    assert model(**empty.hf()).loss == 0


def test_a_group_holds_its_batches_in_the_form_and_on_the_device_that_the_loader_gives() -> None:
    (group,) = PackedLoader(dataset(), transform=PackedBatch.hf).accumulate(1000)
    plain = [batch.hf() for batch in PackedLoader(dataset())]
    assert len(group) == len(plain) > 1
    for given, expected in zip(group, plain, strict=True):
        assert given["num_items_in_batch"] == group.num_loss_tokens
        assert torch.equal(given["input_ids"], expected["input_ids"])
    for group in PackedLoader(dataset(), device="meta").accumulate(3):
        assert {batch.device.type for batch in group} == {"meta"}


def test_weights_multiply_the_loss_of_each_token_and_not_the_count() -> None:
    rows = [{"ids": [5, 6, 7, 8], "w": [9.0, 2.0, 0.0, 0.5]}, {"ids": [4, 3], "w": [1.0, 4.0]}]
    dataset = PackedDataset(
        sources.Iterable(rows, tokens="ids"),
        seq_len=8,
        batch_size=1,
        shuffle=False,
        topology=Topology(),
        token_fields={"w": "float32"},
    )
    (batch,) = PackedLoader(dataset)
    logits = torch.randn(1, 8, 10, generator=torch.Generator().manual_seed(0))
    each = -logits[0].log_softmax(-1)
    losses = [each[0, 6], each[1, 7], each[2, 8], each[4, 3]]
    expected = (2.0 * losses[0] + 0.0 * losses[1] + 0.5 * losses[2] + 4.0 * losses[3]) / 4
    assert torch.allclose(batch.loss(logits, weights=batch.fields["w"]), expected)
    assert torch.allclose(
        batch.loss(logits, weights=torch.ones_like(batch.fields["w"])), batch.loss(logits)
    )
