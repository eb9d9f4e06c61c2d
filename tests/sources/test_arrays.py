"""Arrays of token ids with offsets, and `Documents`, are sources as they are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from streampack import PackedDataset, sources
from streampack.documents import Documents
from streampack.documents.blocks import make_origin
from streampack.errors import ConfigError
from streampack.sources.error_policy import ErrorPolicy
from tests.support.source_contract import assert_source_contract, read_all

rng = np.random.default_rng(0)
LENGTHS = rng.integers(0, 30, 90)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
TOKENS = rng.integers(0, 60_000, int(OFFSETS[-1])).astype(np.uint16)
IDS = [TOKENS[a:b].tolist() for a, b in pairwise(OFFSETS)]


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_a_pair_of_arrays_comes_once_in_any_number_of_lanes(dtype: str) -> None:
    tokens = TOKENS.astype(dtype)
    assert_source_contract(sources.open((tokens, OFFSETS)), IDS, restarts=2)
    if dtype != "uint16":
        pair = (torch.from_numpy(tokens), torch.from_numpy(OFFSETS))
        assert read_all(sources.open(pair)) == [tuple(ids) for ids in IDS]


def test_documents_come_with_their_masks_and_fields() -> None:
    documents = Documents(
        TOKENS,
        OFFSETS.astype(np.int64),
        make_origin(0, np.arange(len(IDS), dtype=np.int64)),
        loss_mask=TOKENS % 2 == 0,
        token_fields={"weight": TOKENS.astype(np.float32)},
        document_fields={"length": LENGTHS.astype(np.int32)},
    )
    dataset = PackedDataset(
        documents,
        seq_len=64,
        token_fields={"weight": "float32"},
        document_fields={"length": "int32"},
    )
    seen = 0
    for batch in dataset:
        real = batch.document_ids >= 0
        ids = batch.input_ids[real]
        assert (batch.fields["weight"][real] == ids.float()).all()
        labels = batch.labels[real]
        assert ((labels == -100) | (labels % 2 == 0)).all()
        seen += len(ids)
    assert seen == len(TOKENS)
    (block,) = [
        block
        for block, _ in sources.open(documents)
        .lanes(1, seed=0, epoch=0, shuffle=False)[0]
        .read(None, ErrorPolicy("raise"))
    ]
    assert (block.loss_mask == (TOKENS % 2 == 0)).all()  # type: ignore[union-attr]
    part: Any = documents[3:7]
    assert read_all(sources.open(part)) == [tuple(ids) for ids in IDS[3:7]]


@pytest.mark.parametrize("offsets", [[0, 2], [1, 3], [0, 3, 2, 3], [0, 4], [], [-1, 3], [0.0, 3.0]])
def test_an_invalid_pair_is_refused_and_a_list_of_both_is_read(offsets: list[Any]) -> None:
    pair = (np.array([1, 2, 3]), np.array(offsets))
    with pytest.raises(ConfigError):
        PackedDataset(pair, seq_len=8)
    if offsets and pair[1].dtype.kind == "i" and min(offsets) >= 0:
        assert read_all(sources.open(list(pair))) == [(1, 2, 3), tuple(offsets)]
