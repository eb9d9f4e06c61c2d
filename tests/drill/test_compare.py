"""Each part that a checkpoint forgets has a name, from the steps of two runs alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streampack.drill.compare import compare, compare_rows
from streampack.drill.observed import Life, Step

STEPS, SAVED, STOPPED = 12, 4, 6


def step(rank: int, number: int, batch: int | None = None, epoch: int = 0) -> Step:
    """A step on a batch of two rows."""
    batch = number if batch is None else batch
    rows = tuple(f"{rank}-{epoch}-{batch}-{row}" for row in range(2))
    return Step(
        batches=(f"batch {rows}",), rows=rows, losses=(1 / (1 + number),),
        states={"torch": f"state {number}"}, used=(), drawn=(), scale=None, time=number,
        weights=(f"weights {number}",), optimizer=(f"moments {number}",), rates=(1e-3 * number,),
    )  # fmt: skip


def life(ranks: int = 1, first: int = 0, end: int = STEPS, **moved: int) -> Life:
    """Steps of all ranks, with the batches of some ranks moved, such as ``rank1=2``."""
    return Life(
        {
            rank: [
                step(rank, number, number + moved.get(f"rank{rank}", 0))
                for number in range(first, end)
            ]
            for rank in range(ranks)
        }
    )


def kinds(after: Life, reference: Life | None = None, saved: int = SAVED, workers: int = 0) -> list:
    reference = reference or life(len(after.ranks))
    before = Life({rank: steps[:STOPPED] for rank, steps in reference.ranks.items()})
    compared = compare(reference, before, after, saved=saved, workers=workers)
    return [fault.kind for fault in compared.faults]


def changed(after: Life, **values: object) -> Life:
    """The same steps with other values in each."""
    return Life({r: [replace(s, **values) for s in steps] for r, steps in after.ranks.items()})


def test_a_run_that_forgets_nothing_has_no_fault() -> None:
    for ranks in (1, 2):
        assert kinds(life(ranks, SAVED)) == []
    assert kinds(life(1, 2), saved=SAVED) == []  # an earlier checkpoint, to the bit


@pytest.mark.parametrize(
    ("ahead", "kind"),
    [
        (1, "batches-skipped"),
        (3, "batches-skipped"),
        (-1, "batches-repeated"),
        (-SAVED, "loader-forgotten"),
    ],
)
def test_batches_ahead_and_behind_are_distinguished(ahead: int, kind: str) -> None:
    assert kinds(life(1, SAVED, rank0=ahead)) == [kind]
    assert kinds(life(2, SAVED, rank0=ahead, rank1=ahead)) == [kind]


def test_a_loader_with_workers_that_restarts_has_lost_their_state() -> None:
    assert kinds(life(1, SAVED, rank0=-SAVED), workers=2) == ["workers-state-lost"]


def test_other_batches_on_some_ranks_alone_are_a_lost_state_of_ranks() -> None:
    assert kinds(life(2, SAVED, rank1=-SAVED)) == ["rank-state-lost"]


def test_other_batches_are_another_order_only_if_their_rows_are_known() -> None:
    reversed_order = life(1, SAVED)
    places = [s.batches for s in reversed_order.ranks[0]], [s.rows for s in reversed_order.ranks[0]]
    for each, batches, rows in zip(reversed_order.ranks[0], *map(reversed, places), strict=True):
        each.batches, each.rows = batches, rows
    assert kinds(reversed_order) == ["order-differs"]
    assert kinds(changed(life(1, SAVED), batches=("x",), rows=("y", "z"))) == ["batches-differ"]


def test_the_order_of_an_earlier_epoch_is_not_a_repeated_batch() -> None:
    reference = life(1)
    for number, each in enumerate(reference.ranks[0]):  # four steps an epoch, in another order
        each.rows = tuple(f"row {(number * (1 + number // 4)) % 4}-{i}" for i in range(2))
        each.batches = (f"batch {number // 4} {each.rows}",)
    after = life(1, SAVED + 2)
    for each, earlier in zip(after.ranks[0], reference.ranks[0][2:], strict=False):
        each.batches, each.rows = earlier.batches, earlier.rows
    assert kinds(after, reference, saved=SAVED + 2) == ["order-differs"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"optimizer": None}, "optimizer-forgotten"),
        ({"rates": (5e-2,)}, "scheduler-forgotten"),
        ({"scale": 8.0}, "scaler-forgotten"),
        ({"losses": (0.5,)}, "losses-differ"),
    ],
)
def test_a_forgotten_part_of_the_state_is_named(values: dict[str, object], kind: str) -> None:
    assert kinds(changed(life(1, SAVED), **values)) == [kind]


def test_random_states_matter_only_where_they_are_drawn_from() -> None:
    other = changed(life(1, SAVED), states={"torch": "other"})
    assert kinds(other) == []
    assert kinds(other, changed(life(), used=("torch",))) == ["random-states-forgotten"]
    drawn = changed(other, batches=("x",), rows=("y", "z"))
    assert kinds(drawn, changed(life(), drawn=("torch",))) == ["random-states-forgotten"]


def test_fresh_weights_are_a_run_that_restarts() -> None:
    assert kinds(life(1, 0)) == ["starts-again"]
    assert kinds(life(1, 0), saved=0) == []  # nothing was saved
    assert kinds(changed(life(1, SAVED), weights=("other",))) == ["weights-differ"]


def test_on_another_number_of_ranks_rows_are_counted() -> None:
    reference = life(2)

    def on_one_rank(first: int, end: int = STEPS) -> Life:
        steps = [
            s for number in range(first, end) for s in (reference.ranks[r][number] for r in (0, 1))
        ]
        return Life({0: steps})

    def faults(after: Life) -> list[str]:
        return [fault.kind for fault in compare_rows(reference, after, SAVED)]

    assert faults(on_one_rank(SAVED)) == []
    assert faults(on_one_rank(SAVED - 1)) == ["rows-repeated"]
    assert faults(on_one_rank(SAVED + 5)) == ["rows-skipped"]
    once = on_one_rank(SAVED)
    step, *_ = once.ranks[0]
    once.ranks[0][0] = replace(step, rows=(reference.rows(0, 1)[0], *step.rows))
    assert faults(once) == ["rows-repeated"]
