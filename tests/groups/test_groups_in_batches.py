"""Documents of a group that does not fit a row share a batch: packing, ranks, workers, resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import BestFitDecreasing, PackedDataset, PackedLoader
from streampack.errors import PlanError
from streampack.groups.whole_groups import WholeGroups
from streampack.packing import check_plan
from streampack.packing.request import DocumentSizes, MemberLengths, WindowRequest
from tests.support.drawn import drawn
from tests.support.grouped_runs import LENGTHS, WHOLE, dataset, groups_of
from tests.support.runs import gone_on

ROW, ROWS = 16, 4  # most groups are longer than a row, few than a batch


def wide(**options: Any) -> PackedDataset:
    given = {"seq_len": ROW, "batch_size": ROWS, **options}
    return dataset(**given)


def fitting(rows: int) -> list[list[int]]:
    """The groups that best-fit-decreasing finds room for in so many empty rows."""
    found = []
    for group in WHOLE:
        room = [ROW] * rows
        for size in sorted((LENGTHS[i] for i in group), reverse=True):
            open_rows = [r for r in range(rows) if room[r] >= size]
            if not open_rows:
                break
            room[min(open_rows, key=lambda r: room[r])] -= size
        else:
            found.append(group)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("lanes", [1, 5, 16])
def test_every_group_is_in_one_batch_with_all_its_documents(shuffle: bool, lanes: int) -> None:
    sums = [sum(LENGTHS[i] for i in group) for group in WHOLE]
    assert np.mean(np.array(sums) > ROW) > 0.4
    assert sorted(groups_of(wide(lanes=lanes, shuffle=shuffle), "batch")) == WHOLE


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "then",
    [
        {"seq_len": 2 * ROW, "batch_size": 3},
        {"batch_size": 6},
        {"seq_len": 64, "batch_size": 2},
    ],
)
def test_a_run_goes_on_with_other_rows_and_parts_no_group(then: dict[str, Any]) -> None:
    second = PackedLoader(wide(**then))
    batches = gone_on(PackedLoader(wide()), 7, second, {"packer"})
    assert sorted(groups_of(batches, "batch")) == WHOLE


def test_groups_that_do_not_fit_a_batch_are_dropped_whole_counted_and_named(caplog: Any) -> None:
    loader = PackedLoader(wide(batch_size=2))
    fit = fitting(2)
    assert 0 < len(fit) < len(WHOLE)
    assert sorted(groups_of(loader, "batch")) == fit
    composition = loader.metrics().composition
    assert composition.documents_lost == len(LENGTHS) - sum(map(len, fit))
    assert composition.dropped == sum(LENGTHS) - sum(LENGTHS[i] for g in fit for i in g)
    assert composition.documents == sum(map(len, fit))
    assert any("tokens, a batch has 2 rows of 16" in line for line in caplog.messages)
    error = BestFitDecreasing(seq_len=ROW, overflow="error")
    with pytest.raises(PlanError, match=r"The group that begins .* tokens, a batch has 2 rows of"):
        list(wide(seq_len=None, packer=error, batch_size=2))


def test_pairs_are_found_across_rows() -> None:
    rng = np.random.default_rng(4)
    sizes = rng.integers(5, ROW, (60, 2)).tolist()
    made = [
        {"tokens": [[k] * n for n in sizes[k]], "pair": k, "chosen": [True, False]}
        for k in range(60)
    ]
    fields = {"pair": "int64", "chosen": "bool"}
    loader = PackedLoader(wide(of=made, lanes=None, document_fields=fields))
    found = across = 0
    for batch in loader:
        better, worse = batch.pairs()
        assert batch.document_fields["chosen"][better].all()
        pair = batch.document_fields["pair"]
        assert pair[better].tolist() == pair[worse].tolist()
        row = [int((batch.document_ids == i).any(1).nonzero()) for i in range(batch.num_documents)]
        across += sum(row[b] != row[w] for b, w in zip(better, worse, strict=True))
        found += len(better)
    assert found == 60
    assert across > 10


GROUPS = st.lists(st.lists(st.integers(1, ROW), min_size=1, max_size=6), max_size=60)


@drawn(80)
@given(GROUPS, st.integers(1, 6), st.booleans(), st.integers(0, 3))
def test_a_plan_places_each_group_in_one_batch(
    groups: list[list[int]], rows: int, final: bool, seed: int
) -> None:
    packer = WholeGroups(seq_len=ROW)
    counts = [len(group) for group in groups]
    members = MemberLengths(
        np.array([n for group in groups for n in group], dtype=np.int64),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )
    sums = np.array([sum(group) for group in groups], dtype=np.int64)
    fits = packer._fits(DocumentSizes(sums, members=members), rows * ROW)
    assert fits[sums <= ROW].all()
    lengths = np.where(fits, sums, 0)
    selection = packer.plan_window(
        WindowRequest(
            lengths=lengths, remaining=lengths, held=lengths, delivered=0 * lengths,
            rounds_left=0 * lengths + 3, batch_tokens=rows * ROW, seq_len=ROW, final=final,
            growing=False, min_fill=0.999, carry=0.5, step=0, seed=seed, schedule_seed=0,
            members=members,
        )
    )  # fmt: skip
    plan, went = selection.plan, selection.rows
    check_plan(plan, lengths)
    assert np.unique(went).size == went.size
    assert final <= (went.size == plan.num_rows)
    if final or lengths.max(initial=0) > ROW:  # else they wait until they fill a batch
        assert (went.size > 0) == bool(fits.any())
    sizes = np.diff(selection.batches)
    assert ((sizes > 0) & (sizes <= rows)).all()
    batch_of_row = np.full(plan.num_rows, -1)
    batch_of_row[went] = np.repeat(np.arange(len(sizes)), sizes)
    batch = np.repeat(batch_of_row, np.diff(plan.row_offsets))
    ends = [np.concatenate([[0], np.cumsum(group)]) for group in groups]
    for g in np.flatnonzero(fits):
        own = plan.document == g
        assert np.unique(batch[own]).size == 1  # whole in one batch, or whole in the window
        if sums[g] <= ROW:  # a segment for all its documents
            assert (plan.start[own].tolist(), plan.stop[own].tolist()) == ([0], [sums[g]])
            continue
        assert sorted(plan.start[own]) == ends[g][:-1].tolist()  # a segment for each document
        assert sorted(plan.stop[own]) == ends[g][1:].tolist()
