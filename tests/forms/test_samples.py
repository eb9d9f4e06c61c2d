"""PackedBatch.samples: a batch's documents one by one, as Megatron-LM's scheduler takes them."""

from __future__ import annotations

import pytest
import torch

from streampack import PackedBatch, PackedDataset, PackedLoader, TokenRules, Topology
from streampack.errors import ConfigError
from tests.support.packed_batches import every_packer, packed_batches, random_documents

LENGTHS = [5, 23, 9, 40, 2, 1, 13, 24, 17, 8, 1, 1]


@pytest.mark.parametrize("name", every_packer(24))
def test_samples_are_the_segments_of_the_batch_in_order(name: str) -> None:
    for batch in packed_batches(random_documents(LENGTHS), every_packer(24)[name], batch_size=2):
        whole = {key: t for key, t in batch.megatron().items() if t is not None}
        samples = batch.samples()
        filled = (batch.document_ids >= 0).view(-1)
        for key, tensor in whole.items():
            found = [sample[key] for sample in samples]
            assert all(part.dtype == tensor.dtype for part in found)
            assert torch.equal(torch.cat(found), tensor.view(-1)[filled])
        for sample in samples:
            length = len(sample["tokens"])
            assert sample["position_ids"].tolist() == list(range(length))
            assert sample["original_seq_len"].tolist() == sample["padded_seq_len"].tolist()
            assert sample["padded_seq_len"].tolist() == [length]
            assert sample["padded_seq_len"].dtype == torch.int32


def test_samples_are_padded_to_a_multiple_without_loss() -> None:
    dataset = PackedDataset(
        [[1, 2, 3], [4, 5]],
        seq_len=8,
        batch_size=1,
        lanes=1,
        topology=Topology(),
        token_rules=TokenRules(pad_id=0),
    )
    (samples,) = PackedLoader(dataset, transform=PackedBatch.samples)
    assert [sample["tokens"].tolist() for sample in samples] == [[1, 2, 3], [4, 5]]
    (batch,) = PackedLoader(dataset)
    first, second = batch.samples(align=4)
    assert first["tokens"].tolist() == [1, 2, 3, 0]
    assert first["labels"].tolist() == [2, 3, 0, 0]
    assert first["loss_mask"].tolist() == [1, 1, 0, 0]
    assert [second[f"{kind}_seq_len"].item() for kind in ("original", "padded")] == [2, 4]
    with pytest.raises(ConfigError):
        batch.samples(align=0)
