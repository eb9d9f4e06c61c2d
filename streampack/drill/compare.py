"""Comparison of a restarted run with one that nothing stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streampack.drill.kinds import Fault
from streampack.drill.observed import Life, Step

#: Relative difference of losses that is no fault; more if two undisturbed runs differ by more.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Comparison:
    """A restarted run beside the undisturbed one.

    Attributes:
        first: the step that the restarted run began with.
        faults: faults in the order of their weight.
        loss_difference: largest relative difference of a loss; None if none was compared.
    """

    first: int
    faults: tuple[Fault, ...]
    loss_difference: float | None


def compare(
    reference: Life, before: Life, after: Life, *, saved: int, began: int = 0, workers: int = 0
) -> Comparison:
    """Compare the steps of a restarted run with an undisturbed one's.

    Args:
        reference: the undisturbed run.
        before: the run that was stopped.
        after: the run that was restarted from its checkpoint, on as many ranks.
        saved: steps before the last save.
        began: step that `before` began with.
        workers: worker processes of a rank's loader.
    """
    first, is_known = _first_step(reference, before, after, saved, began)
    if first == 0 and saved:
        return Comparison(0, (Fault("starts-again", f"{saved} steps were saved"),), None)
    faults: list[Fault] = []
    if not is_known:
        faults.append(
            Fault("weights-differ", f"from the weights of all {len(before)} steps before")
        )
    faults += _loader_faults(reference, after, first, workers)
    pairs = [pair for rank in after.ranks for pair in _paired(reference, after, rank, first)]
    noise = _loss_difference(
        [pair for rank in before.ranks for pair in _paired(reference, before, rank, began)]
    )
    # If two undisturbed runs differ, as on GPUs, only the stopped run tells the expected values.
    known = Life() if noise else reference
    begins = {
        rank: (_step(known, before, rank, first, began), steps[0])
        for rank, steps in after.ranks.items()
    }
    faults += _forgotten(begins, pairs, is_known)
    in_model, in_batches = _random_states(begins, reference)
    faults += [
        Fault("random-states-forgotten", f"of {name}, which the model draws from")
        for name in in_model
    ]
    moved = [fault for fault in faults if fault.kind in ("order-differs", "batches-differ")]
    if moved and in_batches:
        cause = f"of {', '.join(in_batches)}, which batches are drawn by"
        faults = [fault for fault in faults if fault not in moved]
        faults.append(Fault("random-states-forgotten", cause))
    difference = _loss_difference(pairs)
    beginning = [(old, new) for old, new in begins.values() if old]
    compared = _loss_difference(beginning if noise else pairs)
    if not faults and compared is not None and not compared <= max(TOLERANCE, 10 * (noise or 0.0)):
        faults.append(Fault("losses-differ", f"by {compared:.2g} of the loss"))
    return Comparison(first, tuple(faults), difference)


def same_batches(reference: Life, other: Life, began: int = 0) -> bool:
    """Return True if a run had the batches of the undisturbed one."""
    return all(
        expected.batches == step.batches
        for rank in other.ranks
        for expected, step in _paired(reference, other, rank, began)
    )


def compare_rows(reference: Life, after: Life, first: int) -> Iterator[Fault]:
    """Compare the rows of a run that was restarted on another number of ranks."""
    trained, later = set(reference.rows(0, first)), reference.rows(first)
    total = reference.rows()
    if len(set(total)) < len(total):
        return  # rows come several times anyway, so repetition means nothing
    rows = after.rows()
    repeated = sum(row in trained for row in rows)
    if repeated:
        yield Fault("rows-repeated", f"{repeated} rows")
    places = {row: place for place, row in enumerate(later)}
    seen = {places[row] for row in rows if row in places}
    in_a_step = max(len(step.rows) for steps in reference.ranks.values() for step in steps)
    edge = 2 * in_a_step * max(len(reference.ranks), len(after.ranks))
    missing = set(range(max(seen, default=0) - edge)) - seen
    if missing:
        yield Fault("rows-skipped", f"{len(missing)} rows")


def _paired(reference: Life, other: Life, rank: int, began: int) -> Iterator[tuple[Step, Step]]:
    yield from zip(reference.ranks.get(rank, [])[began:], other.ranks[rank], strict=False)


def _step(reference: Life, before: Life, rank: int, number: int, began: int) -> Step | None:
    """Return the step as the stopped run did it, otherwise as the undisturbed run did."""
    for life, first in ((before, began), (reference, 0)):
        steps = life.ranks.get(rank, [])
        if 0 <= number - first < len(steps):
            return steps[number - first]
    return None


def _first_step(
    reference: Life, before: Life, after: Life, saved: int, began: int
) -> tuple[int, bool]:
    """Return the step with the restarted run's first weights, and whether there is one.

    Weights tell which checkpoint was loaded. Without such a step it is the last save.
    """
    rank = min(after.ranks)
    weights = after.ranks[rank][0].weights
    steps = range(max(len(reference), began + len(before)) + 1)
    known = {number: _step(reference, before, rank, number, began) for number in steps}
    same = [number for number, step in known.items() if step and step.weights == weights]
    if same:
        return min(same, key=lambda number: abs(number - saved)), True
    return saved, not began <= saved < began + len(before.ranks.get(rank, []))


def _loader_faults(reference: Life, after: Life, first: int, workers: int) -> list[Fault]:
    """Find how the batches of each rank were moved."""
    by_rank = {}
    for rank, steps in after.ranks.items():
        expected = reference.ranks.get(rank, [])
        skipped = sum(len(step.batches) for step in expected[:first])
        all_batches = [batch for step in expected for batch in step.batches]
        batches = [batch for step in steps for batch in step.batches]
        by_rank[rank] = _moved(all_batches, batches, skipped)
    wrong = {rank: moved for rank, moved in by_rank.items() if moved != 0}
    if not wrong:
        return []
    if len(wrong) < len(by_rank):
        ranks = ", ".join(map(str, sorted(wrong)))
        return [Fault("rank-state-lost", f"wrong on rank {ranks} of {len(by_rank)}")]
    rank, moved = min(wrong.items())
    if moved is None:
        known = {row for steps in reference.ranks.values() for step in steps for row in step.rows}
        rows = after.rows()
        share = sum(row in known for row in rows) / max(1, len(rows))
        return [Fault("order-differs" if share > 0.5 else "batches-differ")]
    if moved > 0:
        return [Fault("batches-skipped", f"{moved} on each rank")]
    done = sum(len(step.batches) for step in reference.ranks[rank][:first])
    in_epoch = sum(len(step.batches) for step in reference.ranks[rank][: _epoch(reference)])
    if in_epoch and moved % in_epoch == 0 and in_epoch < done:
        return [Fault("order-differs", "it is the order of an earlier epoch")]
    if -moved < done:
        return [Fault("batches-repeated", f"{-moved} on each rank")]
    kind = "workers-state-lost" if workers else "loader-forgotten"
    detail = f", with {workers} worker processes" if workers else ""
    return [Fault(kind, f"{done} batches on each rank come again{detail}")]


def _epoch(reference: Life) -> int:
    """Return the number of steps before the first repeated row."""
    seen: set[str] = set()
    for number in range(len(reference)):
        rows = {row for steps in reference.ranks.values() for row in steps[number].rows}
        if rows & seen:
            return number
        seen |= rows
    return 0


def _moved(expected: Sequence[str], batches: Sequence[str], place: int) -> int | None:
    """Return by how many batches a run is ahead; None if its batches are in another order."""
    shifts = sorted(range(-place, len(expected) - place), key=lambda shift: (abs(shift), shift))
    for shift in shifts:
        compared = expected[place + shift :][: len(batches)]
        least = min(2, len(batches), len(expected) - place)
        if len(compared) >= least and list(compared) == list(batches[: len(compared)]):
            return shift
    return None if len(expected) > place else 0


def _forgotten(
    begins: dict[int, tuple[Step | None, Step]], pairs: Sequence[tuple[Step, Step]], is_known: bool
) -> Iterator[Fault]:
    """Find the parts of the state, beside the loader's, that the checkpoint did not have."""
    optimizers = [(old.optimizer, new.optimizer) for old, new in begins.values() if old]
    if is_known and any(old != new for old, new in optimizers):
        empty = all(new is None for _, new in optimizers)
        yield Fault("optimizer-forgotten", "" if empty else "its state is another one")
    rates = [(o, n) for old, new in pairs for o, n in zip(old.rates, new.rates, strict=False)]
    wrong = [(old, new) for old, new in rates if abs(old - new) > 1e-6 * max(abs(old), abs(new))]
    if wrong:
        yield Fault("scheduler-forgotten", f"{wrong[0][1]:.4g} instead of {wrong[0][0]:.4g}")
    scales = [(old.scale, new.scale) for old, new in pairs if old.scale != new.scale]
    if scales:
        yield Fault("scaler-forgotten", f"{scales[0][1]} instead of {scales[0][0]}")


def _random_states(
    begins: dict[int, tuple[Step | None, Step]], reference: Life
) -> tuple[list[str], list[str]]:
    """Return the generators that differ: the model's, and the batches'."""
    steps = [step for each in reference.ranks.values() for step in each]
    known = [(old, new) for old, new in begins.values() if old]
    other = sorted(
        {
            name
            for old, new in known
            for name in old.states
            if old.states[name] != new.states.get(name)
        }
    )
    in_model = [name for name in other if any(name in old.used for old, _ in known)]
    often = [name for name in other if sum(name in step.drawn for step in steps) > len(steps) / 2]
    return in_model, [name for name in often if name not in in_model]


def _loss_difference(pairs: Sequence[tuple[Step, Step]]) -> float | None:
    """Return the largest relative difference of losses; nan if one is not finite alone."""
    differences = [
        abs(old - new) / max(abs(old), 1e-12) if old == old or new == new else 0.0
        for expected, step in pairs
        for old, new in zip(expected.losses, step.losses, strict=False)
    ]
    return max(differences, key=lambda value: (value != value, value), default=None)
