"""A packer of a user's own: one class, and errors about mistakes in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, Topology, WindowConfig
from streampack.errors import ConfigError, PlanError, StreampackError
from streampack.lane.lane import Lane
from streampack.packing import (
    Balance,
    BestFitDecreasing,
    Packer,
    Plan,
    Selection,
    WindowRequest,
    all_rows,
    check_plan,
    first_rows,
    fullest_rows,
    rows_in_order,
)
from streampack.packing.packer import is_unmeasured
from tests.support.every_source import PACKERS
from tests.support.lanes import SEQ_LEN, assert_delivered, lane_config, run
from tests.support.memory_source import MemorySource, heavy_tailed, numbered_documents
from tests.support.plans import window_request

LENGTHS = heavy_tailed(200, seed=1)


class Plain(Packer):
    """The least that a packer must have."""

    seq_lens = (SEQ_LEN,)

    def plan(self, lengths: np.ndarray, *, final: bool, seed: int) -> Plan:
        return BestFitDecreasing(seq_len=SEQ_LEN).plan(lengths, final=final, seed=seed)

    def describe(self) -> dict[str, Any]:
        return {"kind": type(self).__name__}


def test_a_packer_with_a_plan_alone_packs_as_ours_does() -> None:
    plain, ours = (
        run(Lane(lane_config(LENGTHS, packer, rows=3), 0))
        for packer in (Plain(), BestFitDecreasing(seq_len=SEQ_LEN))
    )
    assert_delivered(plain, sum(LENGTHS))
    assert len(plain) == len(ours)
    for a, b in zip(plain, ours, strict=True):
        np.testing.assert_array_equal(a.rows.tokens, b.rows.tokens)


@pytest.mark.parametrize("choose", [fullest_rows, first_rows, rows_in_order, all_rows])
@pytest.mark.parametrize("final", [False, True])
def test_selections_of_the_helpers_account_for_every_token(
    choose: Callable[..., Selection], final: bool
) -> None:
    request = window_request(LENGTHS, seq_len=SEQ_LEN, final=final)
    plan = Plain().plan(request.lengths, final=final, seed=0)
    found = choose(plan, request)
    assert len(set(found.rows.tolist())) == len(found.rows) > 0
    if final or choose is all_rows:
        assert len(found.rows) == plan.num_rows
    else:
        assert len(found.rows) % request.rows_per_batch == 0
    chosen = np.isin(np.repeat(np.arange(plan.num_rows), np.diff(plan.row_offsets)), found.rows)
    reached = np.zeros(len(LENGTHS), dtype=np.int64)
    np.add.at(reached, plan.document[chosen], (plan.stop - plan.start)[chosen])
    heads = Plan.plain(
        np.arange(chosen.sum() + 1), SEQ_LEN, plan.document[chosen], plan.start[chosen],
        plan.stop[chosen], np.zeros_like(reached),
    )  # fmt: skip
    check_plan(heads, reached)  # the placed part of a document is its head


def changed(selection: Selection, **columns: Any) -> Selection:
    return replace(selection, plan=replace(selection.plan, **columns))


def first_to(column: np.ndarray, value: int) -> np.ndarray:
    other = column.copy()
    other[0] = value
    return other


#: Mistakes in an answer.
MISTAKES: dict[str, Callable[[Selection, WindowRequest], Selection]] = {
    "document": lambda s, r: changed(s, document=first_to(s.plan.document, len(r.held))),
    "negative-document": lambda s, r: changed(s, document=first_to(s.plan.document, -1)),
    "start": lambda s, r: changed(s, start=first_to(s.plan.start, -9)),
    "empty": lambda s, r: changed(s, stop=s.plan.start),
    "long-row": lambda s, r: changed(s, seq_len=s.plan.seq_len // 2),
    "long-segment": lambda s, r: changed(s, stop=first_to(s.plan.stop, 1 << 62)),
    "padding": lambda s, r: changed(s, pad_after=first_to(s.plan.pad_after, -5)),
    "short-column": lambda s, r: changed(s, overlap=s.plan.overlap[:-1]),
    "offsets": lambda s, r: changed(s, row_offsets=s.plan.row_offsets * 9),
    "dropped": lambda s, r: changed(s, dropped=s.plan.dropped[:-1]),
    "row": lambda s, r: replace(s, rows=first_to(s.rows, s.plan.num_rows)),
    "negative-row": lambda s, r: replace(s, rows=first_to(s.rows, -1)),
    "batches": lambda s, r: replace(s, batches=s.batches[:-1]),
    "empty-batch": lambda s, r: replace(s, batches=np.append(s.batches, s.batches[-1])),
    "large-batch": lambda s, r: replace(s, batches=s.batches[[0, -1]]),
    "not-held": lambda s, r: Selection.in_batches(
        BestFitDecreasing(seq_len=SEQ_LEN).plan(r.held + 1, final=False, seed=0),
        s.rows,
        r.rows_per_batch,
    ),
    "tail-first": lambda s, r: Selection.in_batches(
        s.plan,
        np.flatnonzero(s.plan.start[s.plan.row_offsets[:-1]] > 0)[: r.rows_per_batch],
        r.rows_per_batch,
    ),
    "nothing": lambda s, r: Selection.in_batches(s.plan, s.rows[:0], r.rows_per_batch),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_in_a_packer_is_an_error(kind: str) -> None:
    class Wrong(Plain):
        def plan_window(self, request: WindowRequest) -> Selection:
            return MISTAKES[kind](super().plan_window(request), request)

    lengths = [3 * SEQ_LEN + 5] * 40
    config = lane_config(lengths, Wrong(), rows=2, window=WindowConfig(rows=8))
    with pytest.raises(StreampackError):
        run(Lane(config, 0))


class Miscounting(Plain):
    """Reports from round `after` on that it drops tokens which its rows hold."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.asked = 0

    def plan_window(self, request: WindowRequest) -> Selection:
        found = super().plan_window(request)
        self.asked += 1
        return changed(found, dropped=found.plan.dropped + (self.asked > self.after))


def test_the_first_plans_of_a_users_packer_are_held_against_all_rules() -> None:
    config = lane_config(LENGTHS, Miscounting(after=2), window=WindowConfig(rows=8))
    with pytest.raises(PlanError):
        run(Lane(config, 0))


def test_all_plans_are_held_against_all_rules_if_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def config() -> Any:
        return lane_config(LENGTHS, Miscounting(after=6), window=WindowConfig(rows=8))

    run(Lane(config(), 0))
    monkeypatch.setenv("STREAMPACK_CHECK_PLANS", "1")
    with pytest.raises(PlanError):
        run(Lane(config(), 0))
    for packer in PACKERS:
        if is_unmeasured(packer):
            packer = packer.with_sample(np.array(LENGTHS))
        run(Lane(lane_config(LENGTHS, packer, window=WindowConfig(rows=8)), 0))


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("balance", "attention"), ("capacity", {"frames": 9}), ("needs_sample", False)],
)
def test_an_attribute_of_earlier_packers_is_refused_with_the_new_one(
    attribute: str, value: Any
) -> None:
    packer = Plain()
    setattr(packer, attribute, value)
    with pytest.raises(ConfigError) as caught:
        PackedDataset([[1, 2]], packer=packer)
    assert caught.value.setting == attribute
    setattr(packer, attribute, None)
    PackedDataset([[1, 2]], packer=packer)


def test_a_packer_of_ones_own_gets_the_values_of_the_fields_that_it_declares() -> None:
    class Easiest(Plain):
        weights = ("difficulty",)

        def plan(self, lengths: np.ndarray, *, final: bool, seed: int, weights: Any = None) -> Plan:
            assert weights["difficulty"].tolist() == [3 * n for n in lengths.tolist()]
            return super().plan(lengths, final=final, seed=seed)

    records = [{"tokens": [1] * n, "difficulty": 3 * n} for n in (3, 5, 2)]
    dataset = PackedDataset(
        records, packer=Easiest(), document_fields={"difficulty": "int32"}, topology=Topology()
    )
    assert sum(batch.num_tokens for batch in PackedLoader(dataset)) == 10


def test_a_packer_of_ones_own_may_follow_a_balance() -> None:
    class Balanced(Plain):
        choice = Balance("attention")

    source = MemorySource([numbered_documents(LENGTHS)])
    dataset = PackedDataset(source, packer=Balanced(), lanes=1, batch_size=2, topology=Topology())
    assert sum(batch.composition.placed for batch in PackedLoader(dataset)) == sum(LENGTHS)
