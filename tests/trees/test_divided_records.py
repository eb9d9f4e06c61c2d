"""layout="tree" with overflow="split": records longer than a row are several trees of one batch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from streampack import BestFitDecreasing, PackedDataset, PackedLoader, sources
from streampack.errors import PlanError, StateError
from streampack.trees.batch import TreeBatch
from tests.trees.test_datasets import RECORDS, dataset, summary

SEQ_LEN = 16


def divided(of: Any = None, batch_size: int = 6, **options: Any) -> PackedDataset:
    packer = BestFitDecreasing(seq_len=SEQ_LEN, overflow="split")
    return dataset(of, packer=packer, batch_size=batch_size, **options)


def sequences(batch: Any) -> list[tuple[int, int, list[int], list[float], list[int]]]:
    """Record, group, ids, weights and loss mask of each sequence of a batch."""
    assert isinstance(batch, TreeBatch)
    assert batch.num_tokens == int((batch.document_ids >= 0).sum())
    assert len(batch.slot) - batch.num_tokens == batch.composition.shared
    flat, found = batch.input_ids.view(-1), []
    for number in range(batch.num_documents):
        own = batch.sequence_ids == number
        slots = batch.slot[own]
        assert len({int(slot) // batch.seq_len for slot in slots}) <= 1  # one row
        found.append(
            (
                int(batch.document_fields["reward"][number]),
                int(batch.document_fields["group_ids"][number]),
                flat[slots].tolist(),
                batch.fields["weight"][own].tolist(),
                batch.loss_mask[own].int().tolist(),
            )
        )
    return found


def test_every_sequence_comes_once_and_a_record_is_in_one_batch() -> None:
    loader = PackedLoader(divided())
    made, batch_of = [], {}
    for step, batch in enumerate(loader):
        group_of: dict[int, int] = {}
        for record, group, *values in sequences(batch):
            assert group_of.setdefault(record, group) == group
            assert batch_of.setdefault(record, step) == step
            made.append((record, *values))
    expected = [
        (number, ids, weight, [0, *mask[1:]])
        for number, record in enumerate(RECORDS)
        for ids, weight, mask in zip(
            record["tokens"], record["weight"], record["mask"], strict=True
        )
    ]
    assert sorted(made) == sorted(expected)
    slots = [len(set(map(tuple, _prefixes(record["tokens"])))) for record in RECORDS]
    assert max(slots) > SEQ_LEN  # else no record is divided
    assert loader.metrics().composition.documents_lost == 0


def _prefixes(tokens: list[list[int]]) -> list[list[int]]:
    return [one[:stop] for one in tokens for stop in range(1, len(one) + 1)]


def test_a_run_resumes_after_every_batch_and_with_workers() -> None:
    whole = summary(PackedLoader(divided()))
    for at in range(1, len(whole), 11):
        loader = PackedLoader(divided())
        batches = iter(loader)
        for _ in range(at):
            next(batches)
        again = PackedLoader(divided())
        again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert summary(again) == whole[at:]
    assert summary(PackedLoader(divided(), num_workers=2)) == whole
    packer = BestFitDecreasing(seq_len=SEQ_LEN, overflow="drop")
    other = PackedLoader(dataset(packer=packer, batch_size=6))
    with pytest.raises(StateError):
        other.load_state_dict(loader.state_dict())


def test_a_record_larger_than_a_batch_and_a_sequence_longer_than_a_row_are_named() -> None:
    rng = np.random.default_rng(0)
    many = {"tokens": [rng.integers(0, 50, 12).tolist() for _ in range(7)]}
    long = {"tokens": [[1, 2], [*range(SEQ_LEN + 1)]]}
    for record in (many, long):
        of = sources.Items([{"tokens": [[1, 2, 3]]}, record], tokens="tokens")
        made = divided(of, token_fields=None, document_fields=None)
        with pytest.raises(PlanError) as error:
            list(PackedLoader(made))
        assert error.value.setting == "overflow"
        assert error.value.document is not None


def test_several_values_per_token_belong_to_the_slots_of_each_part() -> None:
    prompt = [5, 6, 7, 8, 9, 10]
    tokens = [[*prompt, *range(20 + 6 * i, 26 + 6 * i)] for i in range(4)]
    routes = [[[token, token + 1] for token in one] for one in tokens]
    of = sources.Items([{"tokens": tokens, "routes": routes}] * 3, tokens="tokens")
    made = divided(of, token_fields={"routes": ("int16", (2,))}, document_fields=None)
    for batch in PackedLoader(made):
        real = batch.document_ids.view(-1) >= 0
        ids = batch.input_ids.view(-1)[real]
        routes_of_slots = batch.fields["routes"].reshape(-1, 2)
        kept = routes_of_slots[real] if len(routes_of_slots) == len(real) else routes_of_slots
        assert kept[:, 0].tolist() == ids.tolist()
