"""check_isolation finds the leaks that are there, and no others, and leaves no trace."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from streampack import BestFitDecreasing, PackedBatch, check_isolation, pack
from streampack.errors import ConfigError
from streampack.forms.attention import segment_ids
from tests.support.drawn import drawn
from tests.support.packed_batches import VOCAB, packed_batches, random_documents
from tests.support.tiny_gpt import TinyGPT

SEQ_LEN = 24


def packed(lengths: list[int], **options: Any) -> PackedBatch:
    """The first batch, of one row of 24 tokens for every 24."""
    documents = random_documents(lengths)
    packer = options.pop("packer", BestFitDecreasing(seq_len=SEQ_LEN))
    rows = -(-(sum(lengths) + len(lengths)) // SEQ_LEN)
    return packed_batches(documents, packer, batch_size=rows, **options)[0]


def tiny_gpt(batch: PackedBatch, apart: bool = True) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = TinyGPT(VOCAB)
    slots = batch.rows * batch.seq_len

    def call(batch: PackedBatch) -> Tensor:
        ends = batch.cu_seqlens if apart else torch.tensor([0, slots])
        return model(batch.input_ids.view(-1), batch.position_ids.view(-1), ends)

    return model, call


def test_a_model_that_honours_boundaries_is_isolated_and_one_that_does_not_is_not() -> None:
    batch = packed([9, 11, 20])
    model, call = tiny_gpt(batch)
    found = check_isolation(model, batch, call=call)
    assert found
    assert repr(found) == "Isolation(isolated=True, documents=3)"
    model, call = tiny_gpt(batch, apart=False)
    found = check_isolation(model, batch, call=call)
    assert not found
    assert {(leak.changed, leak.moved) for leak in found.leaks} == {(0, 1), (0, 2), (1, 2)}
    assert found.layer is not None
    assert "leaks=(0 moves 1, 0 moves 2, 1 moves 2), layer='" in repr(found)


class Mixer(nn.Module):
    """Sums over each document, and over others for the pairs in `leaks`: (changed, moved)."""

    def __init__(self, leaks: set[tuple[int, int]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCAB, 4)
        self.mixing = nn.Identity()
        self.head = nn.Linear(4, 8)
        self.leaks = leaks

    def forward(self, batch: PackedBatch) -> Tensor:
        values = self.embedding(batch.input_ids.view(-1))
        segment, document = segment_ids(batch), batch.document_ids.view(-1)
        seen = (segment[:, None] == segment[None, :]).tril()
        for changed, moved in self.leaks:
            seen |= (document == moved)[:, None] & (document == changed)[None, :]
        return self.head(self.mixing(seen.float() @ values))


@given(
    lengths=st.lists(st.integers(2, 10), min_size=2, max_size=6),
    pairs=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=5),
)
@drawn(25)
def test_exactly_the_leaks_that_were_planted_are_found(
    lengths: list[int], pairs: set[tuple[int, int]]
) -> None:
    batch = packed(lengths)
    planted = {(a, b) for a, b in pairs if a != b and max(a, b) < batch.num_documents}
    found = check_isolation(Mixer(planted), batch)
    assert {(leak.changed, leak.moved) for leak in found.leaks} == planted
    assert found.documents == len(lengths)
    # The sum is in the model's own forward, and the first to see it is the module after it.
    assert found.layer == ("" if planted else None)


def test_the_first_layer_that_leaks_is_named() -> None:
    class Block(nn.Module):
        def __init__(self, shift: int) -> None:
            super().__init__()
            self.before, self.after, self.shift = nn.Linear(8, 8), nn.Linear(8, 8), shift

        def forward(self, hidden: Tensor) -> Tensor:
            return self.after(self.before(hidden) + hidden.roll(self.shift, 0)) + hidden

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCAB, 8)
            self.blocks = nn.ModuleList([Block(0), Block(1), Block(2)])

        def forward(self, batch: PackedBatch) -> Tensor:
            hidden = self.embedding(batch.input_ids.view(-1))
            for block in self.blocks:
                hidden = block(hidden)
            return hidden

    found = check_isolation(Model(), packed([9, 11, 20]))
    assert found.layer == "blocks.1"


def test_a_short_convolution_that_reaches_over_a_boundary_is_found() -> None:
    torch.manual_seed(0)
    embedding, kernel = nn.Embedding(VOCAB, 4), nn.Conv1d(4, 4, 3, padding=2)

    def call(batch: PackedBatch) -> Tensor:
        values = embedding(batch.input_ids.view(-1))
        return kernel(values.T[None])[..., : len(values)][0].T

    batch = packed([9, 11, 20])
    found = check_isolation(call, batch)
    assert [(leak.changed, leak.moved) for leak in found.leaks] == [(0, 1)]
    assert found.layer is None  # a function has no layers


def test_mode_random_numbers_and_buffers_are_as_they_were() -> None:
    class Model(Mixer):
        def __init__(self) -> None:
            super().__init__(set())
            self.dropout = nn.Dropout(0.3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, batch: PackedBatch) -> Tensor:
            assert self.training
            self.calls += 1
            return self.dropout(super().forward(batch))

    model = Model()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found = check_isolation(model, packed([9, 11, 20]))
    assert found, "dropout is the same in every pass"
    torch.testing.assert_close(torch.rand(3), expected)
    assert model.calls == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert check_isolation(model, packed([9, 11, 20])) == found


def test_a_model_with_random_numbers_is_not_reported_as_leaking() -> None:
    chance = np.random.default_rng(0)

    class Model(Mixer):
        def forward(self, batch: PackedBatch) -> Tensor:
            return super().forward(batch) + float(chance.random())

    with pytest.raises(ConfigError):
        check_isolation(Model(set()), packed([9, 11]))


@pytest.mark.parametrize("masked", [True, False])
def test_padding_that_moves_the_auxiliary_loss_of_routers_is_found(masked: bool) -> None:
    class Experts(Mixer):
        def forward(self, batch: PackedBatch) -> Any:
            chances = self.embedding(batch.input_ids.view(-1)).softmax(-1)
            counted = ~batch.padding_mask.view(-1) if masked else torch.ones(len(chances)) > 0
            return {
                "logits": super().forward(batch),
                "aux_loss": (chances[counted].mean(0) ** 2).sum(),
            }

    padded = packed([9, 6])
    (full,) = packed_batches(
        random_documents([11, 13]), BestFitDecreasing(seq_len=SEQ_LEN), batch_size=1
    )
    found = check_isolation(Experts(set()), padded)
    assert bool(found) is masked
    assert not found.leaks
    assert ("padding_in_router_loss=" in repr(found)) is not masked
    assert check_isolation(Experts(set()), full)
    assert {
        (leak.changed, leak.moved) for leak in check_isolation(Experts({(0, 1)}), padded).leaks
    } == {(0, 1)}


@pytest.mark.parametrize("layout", ["documents", "tree"])
def test_outputs_without_an_entry_per_slot_are_refused(
    layout: Literal["documents", "tree"],
) -> None:
    ids = [[1, 2, 3, 4], [1, 2, 5, 6], [7, 8, 9]]
    trees: dict[str, Any] = {"ids": ids, "groups": [0, 0, 1]} if layout == "tree" else {}
    (batch,) = pack([4, 4, 3], seq_len=24, layout=layout, **trees).batches(ids)
    with pytest.raises(ConfigError) as caught:
        check_isolation(lambda batch: torch.zeros(1, 5, 3), batch)
    assert caught.value.setting == "call"
