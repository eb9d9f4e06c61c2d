"""PackedBatch.numpy: the batch's arrays by MaxText's names, and no tensor on the way."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from streampack import PackedBatch, PackedDataset, PackedLoader, TokenRules, Topology
from tests.support.packed_batches import every_packer, packed_batches, random_documents

LENGTHS = [5, 23, 9, 40, 2, 1, 13, 24, 17, 8, 1, 1]
RECORDS = [
    {"tokens": list(range(1, n + 1)), "weight": [0.5 * k for k in range(n)], "reward": float(n)}
    for n in LENGTHS
]


def with_fields(**options: Any) -> PackedDataset:
    return PackedDataset(
        RECORDS,
        seq_len=48,
        batch_size=2,
        lanes=1,
        topology=Topology(),
        token_rules=TokenRules(pad_id=0),
        token_fields={"weight": "float32"},
        document_fields={"reward": "float32"},
        **options,
    )


@pytest.mark.parametrize("attention", ["document", "row"])
@pytest.mark.parametrize("name", every_packer(24))
def test_arrays_equal_the_tensors_of_the_batch(name: str, attention: Any) -> None:
    documents = random_documents(LENGTHS)
    masks = [np.arange(n) % 3 != 1 for n in LENGTHS]
    packer = every_packer(24)[name]
    for batch in packed_batches(documents, packer, masks, batch_size=2, attention=attention):
        arrays = batch.numpy()
        padding = arrays.pop("padding_mask")
        assert (padding == (batch.document_ids.numpy() < 0)).all()
        assert {a.shape for a in arrays.values()} == {(batch.rows, batch.seq_len)}
        assert {a.dtype for a in arrays.values()} == {np.dtype(np.int32)}
        assert (arrays["inputs"] == batch.input_ids.numpy()).all()
        assert (arrays["inputs_position"] == batch.position_ids.numpy()).all()
        following = batch.next_tokens().numpy()
        counts = following != -100
        assert (arrays["targets"] == np.where(counts, following, 0)).all()
        assert (arrays["targets_segmentation"] != 0).sum() == batch.num_loss_tokens
        segment = arrays["inputs_segmentation"]
        assert (arrays["targets_segmentation"] == np.where(counts, segment, 0)).all()
        assert ((segment == 0) == (batch.document_ids.numpy() < 0)).all()
        for row, position in zip(segment, arrays["inputs_position"], strict=True):
            begins = (position == 0) & (row > 0)
            assert row[begins].tolist() == list(range(1, begins.sum() + 1))
            assert (row[row > 0] == np.cumsum(begins)[row > 0]).all()


def test_fields_are_arrays_beside() -> None:
    for arrays, batch in zip(
        PackedLoader(with_fields(), transform=PackedBatch.numpy),
        PackedLoader(with_fields()),
        strict=True,
    ):
        assert (arrays["fields"]["weight"] == batch.fields["weight"].numpy()).all()
        reward = arrays["document_fields"]["reward"]
        assert (reward == batch.document_fields["reward"].numpy()).all()


def test_no_torch_function_is_called_on_the_way() -> None:
    called = set()

    def note(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and "torch" in str(getattr(function, "__module__", None)):
            called.add(function.__name__)

    loader = PackedLoader(with_fields(), transform=PackedBatch.numpy)
    sys.setprofile(note)
    try:
        found = sum(int((arrays["inputs_segmentation"] > 0).sum()) for arrays in loader)
        loader.state_dict()
    finally:
        sys.setprofile(None)
    assert found == sum(LENGTHS)
    assert called == set()
