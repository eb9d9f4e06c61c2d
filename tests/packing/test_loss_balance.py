"""balance="loss": ranks in step have about as many loss tokens, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from streampack import BestFitDecreasing, PackedDataset, PackedLoader, Topology, sources
from streampack.documents import Documents
from streampack.errors import ConfigError
from streampack.packing.loss_tokens import LOSS_TOKENS, CountedLoss

SEQ_LEN = 64
RNG = np.random.default_rng(0)
LENGTHS = np.clip(RNG.lognormal(2.5, 0.8, 3000), 2, SEQ_LEN + 20).astype(int)
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
        packer=BestFitDecreasing(seq_len=seq_len, overflow=overflow, balance=balance),
        batch_size=2, lanes=8, seed=1, topology=Topology(rank, ranks), **options,
    )  # fmt: skip


def spread(balance: Any) -> float:
    """Loss tokens of the greatest batch of a step over the mean, steps together."""
    counts: dict[int, list[int]] = {}
    for batch in PackedLoader(dataset_of(balance)):
        counts.setdefault(batch.step, []).append(batch.num_loss_tokens)
    whole = [counts[step] for step in sorted(counts)[1:-2] if len(counts[step]) == 8]
    assert len(whole) > 10
    return sum(map(max, whole)) / sum(sum(each) / 8 for each in whole)


def test_batches_of_a_step_have_about_equally_many_loss_tokens() -> None:
    without, level = spread(None), spread("loss")
    assert without > 1.25
    assert level - 1 < (without - 1) / 2


@pytest.mark.parametrize("attention", ["document", "row"])
@pytest.mark.parametrize("overflow", ["drop", "truncate"])
def test_what_is_balanced_are_the_labels_of_the_batch(overflow: Any, attention: Any) -> None:
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
    assert counted > 10_000


LOSS: dict[str, Any] = {"balance": "loss"}


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
@pytest.mark.parametrize("taken", [16, 21])
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
        ({"document_fields": {LOSS_TOKENS: "int64"}}, "balance"),
    ],
)
def test_what_cannot_be_balanced_is_refused(options: Any, setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dataset_of("loss", **options)
    assert caught.value.setting == setting


def test_a_packer_of_parts_of_documents_refuses_it() -> None:
    from streampack import Concat

    with pytest.raises(ConfigError) as caught:
        PackedDataset(IDS, packer=Concat(seq_len=SEQ_LEN, balance="loss"))  # type: ignore[arg-type]
    assert caught.value.setting == "balance"
