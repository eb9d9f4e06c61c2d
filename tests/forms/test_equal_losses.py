"""Training on packed batches is training on documents, whatever packs them: in fp64, by piece.

Every piece of a document in every batch has the loss that a model gives to those tokens alone, and
the gradients are equal. Pieces are weighted by numbers of their own, so that no gradient of one
document can stand for another's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from streampack import PackedBatch, WindowConfig
from streampack.packing import Packer
from tests.support.packed_batches import EOS, VOCAB, every_packer, packed_batches, random_documents
from tests.support.tiny_gpt import TinyGPT

SEQ_LEN = 24
LENGTHS = [5, 23, 9, 40, 2, 1, 13, 24, 17, 8, 1, 1, 70, 31]
PACKERS = every_packer(SEQ_LEN)
#: Logits (T, vocabulary) of a batch, and of ids (n,) by themselves.
Model = tuple[nn.Module, Callable[[Any, PackedBatch], Tensor], Callable[[Any, Tensor], Tensor]]


def gpt() -> Model:
    def packed(model: Any, batch: PackedBatch) -> Tensor:
        flat = (batch.input_ids.view(-1), batch.position_ids.view(-1), batch.cu_seqlens)
        return model(*flat)

    def alone(model: Any, ids: Tensor) -> Tensor:
        return model(ids, torch.arange(len(ids)), torch.tensor([0, len(ids)]))

    return TinyGPT(VOCAB), packed, alone


def llama(attention: str) -> Model:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation=attention,
    )
    model = transformers.LlamaForCausalLM(config).double()

    def packed(model: Any, batch: PackedBatch) -> Tensor:
        return model(**batch.hf()).logits[0]

    def alone(model: Any, ids: Tensor) -> Tensor:
        return model(input_ids=ids[None], use_cache=False).logits[0]

    return model, packed, alone


MODELS: dict[str, Callable[[], Model]] = {
    "gpt": gpt,
    "llama, sdpa": lambda: llama("sdpa"),
    "llama, eager": lambda: llama("eager"),
}


class Piece(NamedTuple):
    """A document's tokens in a batch: `slots` of the batch, and the values expected in them."""

    slots: slice
    ids: Tensor
    labels: Tensor


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed next-token loss of one piece with labels that are not shifted."""
    return nn.functional.cross_entropy(logits[:-1], labels[1:], ignore_index=-100, reduction="sum")


def pieces(
    batches: list[PackedBatch], documents: list[Any], masks: list[Any], packer: Packer
) -> Iterator[tuple[PackedBatch, list[Piece]]]:
    """Every batch with its pieces, made from the documents and provenance alone."""
    places: list[np.void] = []
    for batch in batches:
        assert batch.provenance is not None
        places += list(batch.provenance)
    repeated: dict[tuple[int, int], int] = {}  # tokens at a piece's head that came before it
    reached: dict[int, int] = {}
    for place in sorted(places, key=lambda place: (place["index"], place["start"])):
        index, start = int(place["index"]), int(place["start"])
        repeated[index, start] = max(reached.get(index, 0) - start, 0)
        reached[index] = int(place["stop"])
    for batch in batches:
        found = []
        pieces_of = batch.document_ids.view(-1).numpy()
        assert batch.provenance is not None
        for number, place in enumerate(batch.provenance):
            index, start, stop = (int(place[name]) for name in ("index", "start", "stop"))
            at = np.flatnonzero(pieces_of == number)
            assert at[-1] - at[0] + 1 == len(at)
            mask = masks[index][start:stop].copy()
            if getattr(packer, "mask_repeated", False):
                mask[: repeated[index, start]] = False
            inserted = len(at) - (stop - start)
            assert inserted in (0, 1)
            ids = np.append(documents[index][start:stop], [EOS] * inserted).astype(np.int64)
            labels = np.where(np.append(mask, [True] * inserted), ids, -100)
            found.append(
                Piece(
                    slice(int(at[0]), int(at[-1]) + 1),
                    torch.from_numpy(ids),
                    torch.from_numpy(labels),
                )
            )
        yield batch, found


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "model"),
    [(name, model) for name in PACKERS for model in ("gpt", "llama, sdpa")]
    + [(name, "llama, eager") for name in ("BestFitDecreasing", "Concat")],
)
def test_losses_and_gradients_match_documents_by_themselves(name: str, model: str) -> None:
    tolerance = 1e-5 if "eager" in model else 1e-10  # transformers' eager softmax is in float32
    packer = PACKERS[name]
    documents = random_documents(LENGTHS)
    masks = [np.arange(len(tokens)) % 4 != 2 for tokens in documents]
    batches = packed_batches(
        documents, packer, masks, batch_size=2, provenance=True,
        window=WindowConfig(rows=8),
    )  # fmt: skip
    ours, packed, alone = MODELS[model]()
    theirs = copy.deepcopy(ours)
    count = loss_tokens = 0
    weights = np.random.default_rng(0)
    for batch, parts in pieces(batches, documents, masks, packer):
        logits = packed(ours, batch)
        labels = batch.labels.view(-1)
        total = expected_total = torch.zeros((), dtype=torch.float64)
        for part in parts:
            found = losses(logits[part.slots], labels[part.slots])
            expected = losses(alone(theirs, part.ids), part.labels)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
            weight = weights.uniform(0.5, 2)
            total = total + weight * found
            expected_total = expected_total + weight * expected
            loss_tokens += int((part.labels[1:] != -100).sum())
        total.backward()
        expected_total.backward()
        count += len(parts)
    assert loss_tokens == sum(batch.num_loss_tokens for batch in batches) > 100
    assert count >= len(LENGTHS) - 2
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)
