"""layout="tree" for datasets: records stay whole through rows, ranks, workers and states."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streampack import (
    BestFitDecreasing,
    Concat,
    PackedDataset,
    PackedLoader,
    Topology,
    WindowConfig,
    merge_states,
    sources,
)
from streampack.errors import ConfigError, PlanError, StateError
from streampack.testing import SimulatedRanks
from streampack.trees.batch import TreeBatch
from tests.support.drawn import sampled
from tests.support.tree_reference import reference

RNG = np.random.default_rng(7)


def _record(number: int) -> dict[str, Any]:
    prompt = RNG.integers(0, 50, RNG.integers(1, 9)).tolist()
    answers = [RNG.integers(0, 4, RNG.integers(0, 7)).tolist() for _ in range(RNG.integers(1, 6))]
    tokens = [prompt + answer for answer in answers]
    return {
        "tokens": tokens,
        "weight": [RNG.random(len(one)).round(3).tolist() for one in tokens],
        "mask": [RNG.integers(0, 2, len(one)).tolist() for one in tokens],
        "reward": [number + i / 8 for i in range(len(tokens))],
    }


RECORDS = [_record(number) for number in range(150)]
FIELDS: dict[str, Any] = {
    "token_fields": {"weight": "float64"},
    "document_fields": {"reward": "float64"},
}


def dataset(of: Any = None, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "seq_len": 48, "batch_size": 2, "window": WindowConfig(rows=12), "lanes": 4,
        "topology": Topology(), "provenance": True, "layout": "tree", **FIELDS,
    }  # fmt: skip
    if "packer" in options:
        del values["seq_len"]
    source = sources.Items(RECORDS, tokens="tokens", loss_mask="mask") if of is None else of
    return PackedDataset(source, **{**values, **options})


def contents(batches: Any) -> Iterator[tuple[int, Any]]:
    """The number of each record, and all that the batches say of it; checks its slots."""
    for batch in batches:
        assert isinstance(batch, TreeBatch)
        sequence, group = batch.sequence_ids, batch.document_fields["group_ids"]
        assert batch.num_loss_tokens == int(batch.loss_mask.sum())
        assert batch.num_tokens == int((batch.document_ids >= 0).sum())
        assert len(batch.slot) - batch.num_tokens == batch.composition.shared
        assert batch.composition.documents == batch.num_documents == len(group)
        real = batch.document_ids >= 0
        depths = batch.position_ids[real]
        assert batch.sum_squared_lengths == int((2 * depths + 1).sum())
        assert batch.composition.context_sum == int(depths.sum())
        flat = batch.input_ids.view(-1)
        for tree in range(int(group.max()) + 1 if len(group) else 0):
            members = torch.nonzero(group == tree).flatten().tolist()
            number = int(batch.document_fields["reward"][members[0]])
            record = RECORDS[number]
            expected, _, ends, slots = reference(record["tokens"])
            start = int(batch.slot[sequence == members[0]][0])
            row, first = divmod(start, batch.seq_len)
            assert flat[start : start + len(expected)].tolist() == expected
            assert (batch.tout[row, first:][: len(ends)] - first).tolist() == ends
            assert (batch.slot[sequence == members[0]] - start).tolist() == slots[0]
            found = []
            for i, member in enumerate(members):
                own = sequence == member
                assert (batch.slot[own] - start).tolist() == slots[i]
                assert batch.provenance[member]["index"] == batch.provenance[members[0]]["index"]
                assert batch.provenance[member]["stop"] == len(slots[i])
                counted = [0, *record["mask"][i][1:]]
                assert batch.loss_mask[own].int().tolist() == counted
                assert batch.fields["weight"][own].tolist() == record["weight"][i]
                found.append(float(batch.document_fields["reward"][member]))
            yield number, found


def summary(batches: Any) -> list[Any]:
    return [
        (b.input_ids.tolist(), b.slot.tolist(), b.tout.tolist(), b.fields["weight"].tolist())
        for b in batches
    ]


def test_every_record_comes_once_with_its_slots_and_fields() -> None:
    loader = PackedLoader(dataset())
    batches = list(loader)
    found = sorted(contents(batches))
    assert found == [(i, record["reward"]) for i, record in enumerate(RECORDS)]
    total = sum(len(one) for record in RECORDS for one in record["tokens"])
    metrics = loader.metrics()
    assert metrics.shared_tokens + metrics.tokens == total
    assert metrics.as_dict()["shared_tokens"] == metrics.shared_tokens > total / 4
    rows = PackedLoader(dataset(layout="documents"))
    assert sum(batch.num_loss_tokens for batch in rows) == sum(b.num_loss_tokens for b in batches)
    assert metrics.documents == rows.metrics().documents


def test_trees_come_from_files_as_from_memory(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    made = dataset(sources.JSONL(path, tokens="tokens", loss_mask="mask"))
    assert [number for number, _ in sorted(contents(made))] == list(range(len(RECORDS)))
    batch = next(iter(made))
    assert len(made.locate(batch)) == batch.num_documents


@pytest.mark.sampled
def test_a_run_resumes_after_every_batch() -> None:
    whole = summary(PackedLoader(dataset()))
    for at in sampled(range(len(whole))):
        loader = PackedLoader(dataset())
        batches = iter(loader)
        for _ in range(at):
            next(batches)
        state = loader.state_dict()
        again = PackedLoader(dataset())
        again.load_state_dict(state)
        assert summary(again) == whole[at:]


def of_ranks(ranks: int, state: Any = None, steps: int | None = None) -> tuple[list[Any], Any]:
    simulated = SimulatedRanks(ranks)

    def run(rank: int) -> Any:
        loader = PackedLoader(dataset(topology=Topology(rank, ranks)), ranks=simulated[rank])
        if state is not None:
            loader.load_state_dict(state)
        batches = []
        for batch in loader:
            batches.append(batch)
            if len(batches) == steps:
                break
        return batches, loader.state_dict()

    with ThreadPoolExecutor(ranks) as pool:
        made = list(pool.map(run, range(ranks)))
    return [batch for batches, _ in made for batch in batches], merge_states([s for _, s in made])


def test_other_numbers_of_ranks_go_on_without_losing_a_record() -> None:
    first, state = of_ranks(2, steps=3)
    rest, _ = of_ranks(3, state)
    found = sorted(number for number, _ in contents([*first, *rest]))
    assert found == list(range(len(RECORDS)))


def test_workers_give_the_same_batches() -> None:
    whole = summary(PackedLoader(dataset()))
    assert summary(PackedLoader(dataset(), num_workers=1)) == whole


def test_changes_between_stages_apply_to_trees_too() -> None:
    loader = PackedLoader(dataset())
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    again = PackedLoader(
        dataset(batch_size=3, packer=BestFitDecreasing(seq_len=64, overflow="drop"))
    )
    again.load_state_dict(loader.state_dict(), allow={"batch_size", "packer"})
    found = sorted(number for number, _ in contents([*first, *again]))
    assert found == list(range(len(RECORDS)))


def test_a_state_of_another_layout_is_refused() -> None:
    loader = PackedLoader(dataset())
    next(iter(loader))
    with pytest.raises(StateError):
        PackedLoader(dataset(layout="documents")).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("layout", ["documents", "tree"])
def test_a_mixture_counts_sequences_by_source(layout: str) -> None:
    def of(records: list[Any]) -> sources.Items:
        return sources.Items(records, tokens="tokens", loss_mask="mask")

    parts = {"a": of(RECORDS[:90]), "b": of(RECORDS[90:])}
    mixture = sources.Mixture(parts, weights={"a": 1, "b": 1})
    loader = PackedLoader(dataset(mixture, layout=layout))
    batches = list(loader)
    if layout == "tree":
        assert [number for number, _ in sorted(contents(batches))] == list(range(len(RECORDS)))
    counts = loader.metrics().sources
    assert sum(own.tokens for own in counts.values()) == loader.metrics().tokens
    assert counts["a"].documents == sum(len(record["tokens"]) for record in RECORDS[:90])
    assert sum(own.loss_tokens for own in counts.values()) == sum(
        batch.num_loss_tokens for batch in batches
    )


LONG = {"tokens": [[1] * 20 + [2] * 30, [1] * 20 + [3]], "mask": [[1] * 50, [1] * 21]}


def test_a_tree_that_fits_no_row_is_dropped_counted_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    of = sources.Items([LONG, *RECORDS[:3]], tokens="tokens", loss_mask="mask")
    made = dataset(of, token_fields=None, document_fields=None)
    with caplog.at_level(logging.WARNING):
        loader = PackedLoader(made)
        list(loader)
    assert loader.metrics().composition.documents_lost == 2
    assert loader.metrics().composition.dropped == 51
    assert "51 slots" in caplog.text
    packer = BestFitDecreasing(seq_len=48, overflow="error")
    with pytest.raises(PlanError, match="51 slots"):
        list(PackedLoader(dataset(of, packer=packer, token_fields=None, document_fields=None)))


@pytest.mark.parametrize(
    "options",
    [
        {"of": [[1, 2, 3]], "token_fields": None, "document_fields": None},
        {"packer": Concat(seq_len=48)},
        {"packer": BestFitDecreasing(seq_len=48, overflow="truncate")},
        {"attention": "row"},
        {"layout": "trees"},
    ],
)
def test_records_that_form_no_tree_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError) as error:
        dataset(**options)
    assert error.value.setting == "layout"


def test_explain_shows_a_tree() -> None:
    assert "shared" in str(dataset().explain())
