"""Ranks that come and go: the batches of a run left alone, each step whole on those who live."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.elastic import ElasticLoader, StoreMembers
from streampack.elastic.members import Members
from streampack.errors import ConfigError, RankError, WorkerError
from tests.run.test_golden_batches import GOLDEN, KINDS, Corpus, hashed
from tests.support.elastic_job import Job
from tests.support.rollout_runs import make_queue

dist = pytest.importorskip("torch.distributed")

LANES, STEP_BATCHES = 12, 4
_draws = np.random.default_rng(0)
DOCUMENTS = [_draws.integers(1, 250, _draws.integers(3, 60)).astype("u2") for _ in range(600)]


def make_dataset(**options: Any) -> PackedDataset:
    """A run of 300 batches."""
    settings = {"seq_len": 32, "batch_size": 2, "lanes": LANES, "topology": Topology(), **options}
    return PackedDataset(DOCUMENTS, **settings)


def make_loader(step_batches: int = STEP_BATCHES, **options: Any) -> ElasticLoader[Any]:
    """A loader of this run."""
    return ElasticLoader(make_dataset(**options), step_batches=step_batches)


def trained(job: Job) -> str:
    """A hash of the batches that a job trained on, in the order of the run."""
    return hashed(job.batches[number] for number in sorted(job.batches))


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The hash of the run on one rank."""
    return hashed(PackedLoader(make_dataset()))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"))


# ---------------------------------------------------------------------- joins and deaths

SOME = ("parquet", "trees", "mixture", "order by similarity", "loss mask, two epochs", "chat")
REFUSED = {"buckets, context parallelism": "dataset", "ledger": "ledger"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in SOME else pytest.mark.slow)
        for kind in KINDS
        if kind not in REFUSED
    ],
)
def test_joins_and_deaths_leave_the_batches_of_a_run_as_they_are(kind: str, corpus: Corpus) -> None:
    def make() -> ElasticLoader[Any]:
        return ElasticLoader(KINDS[kind](corpus), step_batches=2)

    make()  # writes the file
    job = Job(make, seed=1, start=3, every=5, deaths=5, joins=5).run()
    assert trained(job) == GOLDEN[kind]
    assert job.changes > 1


def disturbed(seed: int, *, deaths: int, joins: int) -> Job:
    """A job of up to eight ranks."""
    draws = random.Random(seed)
    step_batches = draws.choice([3, 4, 5, 8, 12, 16])
    return Job(
        lambda: make_loader(step_batches),
        seed=seed,
        start=draws.randint(2, 8),
        most=8,
        every=draws.choice([8, 20, 60]),
        deaths=deaths,
        joins=joins,
        onlookers=draws.choice([0, 0.5]),
        lanes=LANES,
    ).run()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(2))
def test_a_disturbed_run_has_the_steps_of_one_left_alone(seed: int, undisturbed: str) -> None:
    job = disturbed(seed, deaths=6, joins=6)
    assert trained(job) == undisturbed
    assert job.changes >= 4
    assert len(set(job.ended)) == 1
    assert sorted(job.steps) == list(range(job.ended[0]))
    numbers = [number for step in job.steps.values() for number in step]
    assert sorted(numbers) == sorted(job.batches)  # each once


@pytest.mark.slow
def test_500_joins_and_deaths_leave_the_batches_of_a_run_as_they_are(undisturbed: str) -> None:
    changes, pauses, seed = 0, [], 100
    while changes < 500:
        job = disturbed(seed, deaths=60, joins=60)
        assert trained(job) == undisturbed, seed
        assert len(set(job.ended)) == 1, seed
        changes, seed = changes + job.changes, seed + 1
        pauses += job.pauses
    print(f"{changes} memberships; pauses of {np.median(pauses):.3f} s, {max(pauses):.3f} at most")


def test_a_broken_step_may_be_skipped_and_is_recorded(undisturbed: str) -> None:
    loader = make_loader()
    loader.set_ranks(0, 1)
    batches: dict[int, Any] = {}
    for number, step in enumerate(loader):
        if number == 3:  # it failed, and the loop leaves it out
            loader.set_ranks(0, 1, at_step=3)
            assert loader.skip(1) == 1
            break
        batches |= {batch.step * LANES + batch.lane: batch for batch in step}
    state = loader.state_dict()
    assert state["stepped_over"] == [[12, 16]]
    loader.set_ranks(0, 1, at_step=3)  # steps that count
    first = next(iter(loader)).batches[0]
    assert first.step * LANES + first.lane == 16


# ---------------------------------------------------------------------- one membership


def in_threads(count: int, rank: Callable[[int, Members], Any]) -> list[Any]:
    """Run a function on each of some members, and return the results; errors are results."""
    store = dist.HashStore()

    def run(index: int) -> Any:
        try:
            return rank(index, StoreMembers(store, "1", index, count, timeout_s=60))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.mark.parametrize("ranks", [3, 5])
def test_all_ranks_run_as_many_forwards_and_no_lane_is_shared(ranks: int) -> None:
    def rank(index: int, members: Members) -> list[Any]:
        loader = make_loader()
        loader.set_ranks(index, ranks, members)
        return list(loader)

    steps = in_threads(ranks, rank)
    assert len({len(each) for each in steps}) == 1
    lanes = [{b.lane for step in each for b in step if b.num_documents} for each in steps]
    assert sum(map(len, lanes)) == len(set.union(*lanes)) == LANES
    for together in zip(*steps, strict=True):
        assert len({len(step) for step in together}) == 1
        assert len(together[0]) <= -(-STEP_BATCHES // ranks)
        assert len({step.num_loss_tokens for step in together}) == 1
        whole = sum(batch.num_loss_tokens for step in together for batch in step)
        assert together[0].num_loss_tokens == whole
        assert together[0].batches[0].num_items_in_batch == whole / ranks


@pytest.mark.parametrize("step_batches", [16, 30])
def test_steps_of_more_batches_than_lanes_deal_within_a_step(
    step_batches: int, undisturbed: str
) -> None:
    def rank(index: int, members: Members) -> dict[int, Any]:
        loader = make_loader(step_batches)
        loader.set_ranks(index, 3, members)
        given = (batch for step in loader for batch in step)
        return {b.step * LANES + b.lane: b for b in given if b.num_documents}

    batches = {n: batch for part in in_threads(3, rank) for n, batch in part.items()}
    assert hashed(batches[number] for number in sorted(batches)) == undisturbed


def test_a_state_of_any_rank_is_the_state_of_the_run() -> None:
    def rank(index: int, members: Members) -> str:
        loader = make_loader()
        loader.set_ranks(index, 3, members)
        for number, _ in enumerate(loader):
            if number == 10:
                return json.dumps(loader.state_dict())
        raise AssertionError

    states = set(in_threads(3, rank))
    assert len(states) == 1
    rest = PackedLoader(make_dataset())
    rest.load_state_dict(json.loads(states.pop()))
    everything = list(PackedLoader(make_dataset()))
    numbers = [batch.step * LANES + batch.lane for batch in rest]
    assert numbers == [batch.step * LANES + batch.lane for batch in everything][44:]


def test_ranks_of_different_runs_are_refused_on_all_of_them() -> None:
    def rank(index: int, members: Members) -> Any:
        loader = make_loader(seed=index)
        loader.set_ranks(index, 2, members)
        return next(iter(loader))

    errors = in_threads(2, rank)
    assert [(type(error), error.setting) for error in errors] == [(RankError, "seed")] * 2


def test_ranks_at_different_steps_are_refused_on_all_of_them() -> None:
    def rank(index: int, members: Members) -> Any:
        loader = make_loader()
        loader.set_ranks(index, 2, members, at_step=index)
        return next(iter(loader))

    errors = in_threads(2, rank)
    assert [(type(error), error.setting) for error in errors] == [(RankError, "at_step")] * 2


def test_a_step_that_nobody_knows_is_refused() -> None:
    loader = make_loader()
    loader.set_ranks(0, 1, at_step=7)  # the model was loaded, its data were not
    with pytest.raises(RankError) as caught:
        next(iter(loader))
    assert caught.value.setting == "at_step"


def test_no_exchange_waits_longer_than_its_limit_and_the_run_goes_on(undisturbed: str) -> None:
    loader = make_loader()
    loader.set_ranks(0, 2, StoreMembers(dist.HashStore(), "1", 0, 2, timeout_s=0.1))
    with pytest.raises(RankError) as caught:
        next(iter(loader))
    assert caught.value.setting == "members"
    loader.set_ranks(0, 1)
    assert hashed(batch for step in loader for batch in step) == undisturbed


@pytest.mark.parametrize(
    ("setting", "call"),
    [
        ("rank", lambda: next(iter(make_loader()))),
        ("rank", lambda: make_loader().set_ranks(2, 2)),
        ("members", lambda: make_loader().set_ranks(0, 2)),
        ("batches", lambda: make_loader().accumulate(2)),
        ("lanes", lambda: make_loader(lanes=None)),
        ("end", lambda: ElasticLoader(make_dataset(), step_batches=2, end="stop")),
        ("dataset", lambda: ElasticLoader(DOCUMENTS, step_batches=2)),  # type: ignore[arg-type]
        ("dataset", lambda: ElasticLoader(make_queue(), step_batches=2)),  # type: ignore[arg-type]
        ("step_batches", lambda: make_loader(0)),
    ],
)
def test_a_call_that_cannot_work_is_refused(setting: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert caught.value.setting == setting


def test_ranks_that_share_batches_and_ledgers_are_refused(corpus: Corpus) -> None:
    for kind, setting in REFUSED.items():
        with pytest.raises(ConfigError) as caught:
            ElasticLoader(KINDS[kind](corpus), step_batches=2)
        assert caught.value.setting == setting


@pytest.mark.parametrize("from_step", [None, 24])
def test_weights_set_by_all_ranks_hold_for_who_comes_later(from_step: int | None) -> None:
    """Three ranks: one leaves before step 12, another joins before step 20."""

    def make() -> ElasticLoader[Any]:
        mixture = sources.Mixture(
            {"a": DOCUMENTS[:300], "b": DOCUMENTS[300:]}, weights={"a": 1, "b": 1}
        )
        dataset = PackedDataset(
            mixture, seq_len=32, batch_size=2, lanes=LANES, topology=Topology(), epochs=None
        )
        return ElasticLoader(dataset, step_batches=STEP_BATCHES)

    def taken(index: int, ranks: dict[int, tuple[int, Any]]) -> dict[int, Any]:
        """The batches of a rank, which has ranks of memberships by their first step."""
        loader, batches, step, begun = make(), {}, min(ranks), False
        while step < 60:
            count, store = ranks[max(first for first in ranks if first <= step)]
            if index >= count:
                break
            members = StoreMembers(store, f"{count} {step}", index, count)
            loader.set_ranks(index, count, members, at_step=step)
            for group in loader:
                begun = True
                batches |= {b.step * LANES + b.lane: b for b in group if b.num_documents}
                step += 1
                if step == 6:
                    loader.set_weights({"a": 1, "b": 9}, from_step=from_step)
                if step in ranks or step == 60:
                    break
            assert begun
        return batches

    def together(*memberships: tuple[int, int]) -> str:
        store = dist.HashStore()
        after = {first: (count, store) for first, count in memberships}
        late = {first: each for first, each in after.items() if first >= 20}
        calls = [(index, after) for index in range(memberships[0][1])]
        calls += [(2, late)] * bool(late)
        with ThreadPoolExecutor(len(calls)) as pool:
            parts = pool.map(lambda call: taken(*call), calls)
            batches = {n: batch for part in parts for n, batch in part.items()}
        return hashed(batches[number] for number in sorted(batches))

    assert together((0, 3), (12, 2), (20, 3)) == together((0, 1))


def test_workers_give_the_same_batches_before_and_after_a_death() -> None:
    loader = make_loader()
    loader.set_ranks(0, 1)
    expected = hashed(batch for step in itertools.islice(loader, 6) for batch in step)
    loader = ElasticLoader(make_dataset(), step_batches=STEP_BATCHES, num_workers=2)
    loader.set_ranks(0, 1)
    batches = []
    for number, step in enumerate(itertools.islice(loader, 7)):
        if number == 3:  # repeat it, as after a death
            loader.set_ranks(0, 1, at_step=3)
        else:
            batches += list(step)
    assert hashed(batches) == expected


def test_a_step_that_was_ready_when_workers_died_is_divided_among_the_new_ranks(
    undisturbed: str,
) -> None:
    loader = ElasticLoader(
        make_dataset(), step_batches=STEP_BATCHES, num_workers=1, prefetch_factor=1
    )
    loader.set_ranks(0, 1)
    batches: list[Any] = []

    def take() -> None:
        for step in loader:
            batches.extend(step)
            if len(batches) == STEP_BATCHES:
                multiprocessing.active_children()[0].kill()

    with pytest.raises(WorkerError):
        take()
    here = len(batches) // STEP_BATCHES
    gone = StoreMembers(dist.HashStore(), "1", 0, 2, timeout_s=0.1)
    loader.set_ranks(0, 2, gone, at_step=here)
    with pytest.raises(RankError):  # it asks the other rank before it gives a batch
        next(iter(loader))
    loader.set_ranks(0, 1, at_step=here)
    assert hashed([*batches, *(batch for step in loader for batch in step)]) == undisturbed
