"""choice=Balance("loss"): all steps have about as many loss tokens, and nothing else changes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from streampack import (
    BestFitDecreasing,
    PackedDataset,
    PackedLoader,
    Topology,
    WindowConfig,
    sources,
)
from streampack.documents import Documents
from streampack.errors import ConfigError, StateError
from streampack.limits.loss_tokens import LOSS_TOKENS, CountedLoss
from streampack.metrics import Metrics
from streampack.packing import Balance
from streampack.testing import SimulatedRanks
from tests.support.forged import sign

SEQ_LEN = 64
RNG = np.random.default_rng(0)
LENGTHS = np.clip(RNG.lognormal(2.5, 0.8, 1500), 2, SEQ_LEN + 20).astype(int)
IDS = [RNG.integers(1, 90, n) for n in LENGTHS]
#: Either hardly any token of a document carries loss, or nearly all.
MASKS = [RNG.random(n) < (0.05 if RNG.random() < 0.6 else 0.9) for n in LENGTHS]
RECORDS: list[dict[str, Any]] = [
    {"ids": ids.tolist(), "mask": mask.tolist(), "number": number}
    for number, (ids, mask) in enumerate(zip(IDS, MASKS, strict=True))
]
NUMBERED: dict[str, Any] = {"document_fields": {"number": "int64"}}


def dataset_of(
    balance: Any, rank: int = 0, ranks: int = 1, *, overflow: Any = "drop", short: bool = False,
    seq_len: int = SEQ_LEN, **options: Any,
) -> PackedDataset:  # fmt: skip
    records = [one for one in RECORDS if not short or len(one["ids"]) <= SEQ_LEN]
    return PackedDataset(
        sources.Items(records, tokens="ids", loss_mask="mask"),
        packer=BestFitDecreasing(
            seq_len=seq_len, overflow=overflow, choice=balance and Balance(balance)
        ),
        batch_size=2, lanes=8, seed=1, topology=Topology(rank, ranks), **options,
    )  # fmt: skip


def steps_of(records: list[dict[str, Any]], balance: Any, lanes: int, **options: Any) -> Any:
    """Loss tokens of each batch (steps, lanes) of the steps that are whole."""
    dataset = PackedDataset(
        sources.Items(records, tokens="ids", loss_mask="mask"),
        packer=BestFitDecreasing(
            seq_len=256, overflow="truncate", choice=balance and Balance(balance)
        ),
        lanes=lanes, topology=Topology(), **{"batch_size": 1, **options},
    )  # fmt: skip
    counts: dict[int, dict[int, int]] = {}
    for batch in PackedLoader(dataset):
        counts.setdefault(batch.step, {})[batch.lane] = batch.num_loss_tokens
    whole = [[*counts[step].values()] for step in sorted(counts) if len(counts[step]) == lanes]
    assert len(whole) > 10
    return np.array(whole[len(whole) // 10 :], dtype=np.float64)


def deviations(counts: Any) -> tuple[float, float]:
    """Deviation of loss tokens between steps and within them, over the mean."""
    between, within = counts.mean(axis=1).std(), np.sqrt(counts.var(axis=1).mean())
    return between / counts.mean(), within / counts.mean()


def asked(question: float, spread: float, answer: float, count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    records = []
    for _ in range(count):
        before, after = rng.lognormal(question, spread), rng.lognormal(answer, 0.8)
        mask = np.r_[np.zeros(int(before) + 1), np.ones(int(after))][:256]
        records.append({"ids": np.full(len(mask), 7), "mask": mask.astype(int)})
    return records


ASKED = {
    "a sixth of the rows is questions alone": (asked(4.5, 0.9, 2, 1200), 8),
    "a third is": (asked(5.2, 0.7, 2.5, 600), 4),
    "short ones": (asked(2.5, 0.8, 3, 1500), 8),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "rows"), [(kind, 1) for kind in [*ASKED][:2]] + [(kind, 2) for kind in [*ASKED][1:]]
)
def test_steps_have_about_equally_many_loss_tokens_and_none_is_without(
    kind: str, rows: int
) -> None:
    records, lanes = ASKED[kind]
    without = deviations(steps_of(records, None, lanes, batch_size=rows))
    counts = steps_of(records, "loss", lanes, batch_size=rows)
    between, within = deviations(counts)
    assert counts.sum(axis=1).min() > 0
    assert between < 0.8 * without[0]
    if rows == 1:  # variance goes from steps to their batches; only more equal rows lower both
        assert between**2 + within**2 < 1.05 * (without[0] ** 2 + without[1] ** 2)
    else:
        assert within < 0.85 * without[1]


def test_texts_with_loss_everywhere_fill_rows_as_without_the_balance() -> None:
    records = [{"ids": each["ids"], "mask": [1] * len(each["ids"])} for each in RECORDS]
    for rows in (8, 320):
        window = WindowConfig(rows=rows)
        sums = [steps_of(records, balance, 4, window=window).sum() for balance in (None, "loss")]
        assert sums[1] > 0.98 * sums[0]


def test_metrics_have_the_deviation_between_steps_beside_that_within_them() -> None:
    loader = PackedLoader(dataset_of("loss"))
    groups = [[batch.num_loss_tokens for batch in group] for group in loader.accumulate(8)]
    metrics, counts = loader.metrics(), np.concatenate(groups)
    means = np.concatenate([np.full(len(group), np.mean(group)) for group in groups])
    between, within = means.std() / counts.mean(), (counts - means).std() / counts.mean()
    assert metrics.loss_deviation_between_steps == pytest.approx(between)
    assert metrics.loss_deviation_within_steps == pytest.approx(within)
    assert metrics.as_dict()["loss_deviation_between_steps"] == metrics.loss_deviation_between_steps


def test_metrics_of_ranks_add_up_to_the_runs_metrics() -> None:
    world = 4
    ranks = SimulatedRanks(world)
    with ThreadPoolExecutor(world) as threads:

        def taken(rank: int) -> tuple[Any, list[int]]:
            loader = PackedLoader(dataset_of("loss", rank, world), ranks=ranks[rank])
            counts = [batch.num_loss_tokens for batch in loader]
            return loader.metrics(), counts

        found = [*threads.map(taken, range(world))]
    counts = np.array([each for _, each in found], dtype=np.float64).T
    metrics = sum((each for each, _ in found), Metrics())
    assert metrics.loss_deviation_between_steps == pytest.approx(deviations(counts)[0])
    assert metrics.loss_deviation_within_steps == pytest.approx(deviations(counts)[1])


@pytest.mark.parametrize("allow", [set(), {"packer"}])
def test_a_state_of_other_loss_balanced_rows_is_refused_by_revision(allow: set[str]) -> None:
    loader = PackedLoader(dataset_of("loss"))
    next(iter(loader))
    state = loader.state_dict()
    assert state["fingerprint"]["balance"]["revision"] == 2
    state["fingerprint"]["balance"]["revision"] = 1
    sign(state)
    with pytest.raises(StateError) as caught:
        PackedLoader(dataset_of("loss")).load_state_dict(state, allow=allow)
    assert caught.value.setting == "balance"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("attention", ["document", "row"])
@pytest.mark.parametrize("overflow", ["drop", "truncate"])
def test_the_labels_of_the_batch_are_balanced(overflow: Any, attention: Any) -> None:
    block = Documents.from_arrays([ids.astype(np.uint16) for ids in IDS], loss_masks=MASKS)
    stage = CountedLoss(SEQ_LEN, 0 if attention == "row" else 1)
    counts = stage(block, None).document_fields[LOSS_TOKENS].tolist()
    assert stage(block[7:99], None).document_fields[LOSS_TOKENS].tolist() == counts[7:99]
    counted = 0
    dataset = dataset_of("loss", overflow=overflow, attention=attention, **NUMBERED)
    for batch in PackedLoader(dataset):
        own = sum(counts[i] for i in batch.document_fields["number"].tolist())
        # A row's first token has no label, although it has one inside the row.
        assert 0 <= own - batch.num_loss_tokens <= (batch.rows if attention == "row" else 0)
        assert LOSS_TOKENS not in batch.document_fields
        counted += own
    assert counted > 5_000


LOSS: dict[str, Any] = {"balance": "loss"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("before", "after", "allow"),
    [
        ({"balance": None}, LOSS, "packer"),
        (LOSS, {"balance": None}, "packer"),
        (LOSS, {"balance": "attention"}, "packer"),
        ({"balance": "attention"}, LOSS, "packer"),
        (LOSS, {"balance": "loss", "seq_len": 90}, "packer"),
        (LOSS, {"balance": "loss", "attention": "row"}, "attention"),
    ],
)
@pytest.mark.parametrize("taken", [pytest.param(16, marks=pytest.mark.slow), 21])
def test_a_run_may_go_on_with_another_balance(
    before: Any, after: Any, allow: str, taken: int
) -> None:
    # Short documents, so that a change of rows drops none.
    first = PackedLoader(dataset_of(**before, short=True, **NUMBERED))
    batches = iter(first)
    gone = [i for _ in range(taken) for i in next(batches).document_fields["number"].tolist()]
    second = PackedLoader(dataset_of(**after, short=True, **NUMBERED))
    second.load_state_dict(first.state_dict(), allow={allow})
    rest = [i for batch in second for i in batch.document_fields["number"].tolist()]
    assert sorted(gone + rest) == [i for i, n in enumerate(LENGTHS) if n <= SEQ_LEN]


def test_the_same_documents_come_once_and_resume_on_more_ranks() -> None:
    def found(batches: Any) -> dict[tuple[int, int], list[list[int]]]:
        return {(b.step, b.lane): b.input_ids.tolist() for b in batches}

    loader = PackedLoader(dataset_of("loss"))
    every = found(loader)
    tokens = sum(len(ids) for ids in IDS if len(ids) <= SEQ_LEN)
    assert sum(id > 0 for batch in every.values() for row in batch for id in row) == tokens
    of_ranks = [found(PackedLoader(dataset_of("loss", rank, 4))) for rank in range(4)]
    assert every == {
        key: ids for batches in of_ranks for key, ids in batches.items() if key in every
    }
    first = PackedLoader(dataset_of("loss"))
    batches = iter(first)
    for _ in range(16):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    again: dict[tuple[int, int], list[list[int]]] = {}
    for rank in range(2):
        second = PackedLoader(dataset_of("loss", rank, 2))
        second.load_state_dict(state)
        again |= found(second)
    assert {key: ids for key, ids in every.items() if key[0] >= 2} == {
        key: ids for key, ids in again.items() if key in every
    }


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"overflow": "split"}, "overflow"),
        ({"document_fields": {LOSS_TOKENS: "int64"}}, "choice"),
    ],
)
def test_settings_that_cannot_be_balanced_are_refused(options: Any, setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dataset_of("loss", **options)
    assert caught.value.setting == setting


def test_a_packer_of_parts_of_documents_refuses_it() -> None:
    from streampack import Concat

    with pytest.raises(ConfigError) as caught:
        PackedDataset(IDS, packer=Concat(seq_len=SEQ_LEN, choice=Balance("loss")))
    assert caught.value.setting == "overflow"
