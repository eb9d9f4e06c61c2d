"""pack: documents in memory, divided among ranks as micro-batches."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack import Cost, pack
from streampack.errors import ConfigError, PlanError

LENGTHS = st.lists(st.integers(1, 32), max_size=60)
RANKS = st.integers(1, 5)


def rows_of(plan: Any) -> list[list[list[int]]]:
    return [
        [plan.documents(rank, place).tolist() for place in range(plan.microbatches)]
        for rank in range(plan.ranks)
    ]


@given(LENGTHS, RANKS, st.integers(0, 3), st.sampled_from([1, 4]), st.data())
@settings(max_examples=300, deadline=None)
def test_every_document_is_in_one_row_and_groups_are_whole(
    lengths: list[int], ranks: int, seed: int, align: int, data: st.DataObject
) -> None:
    within: Literal["rank", "row"] = data.draw(st.sampled_from(["rank", "row"]))
    groups = data.draw(st.none() | st.just([i // 3 for i in range(len(lengths))]))
    seq_len = 128 if groups and within == "row" else 32
    made = pack(
        lengths, seq_len=seq_len, ranks=ranks, groups=groups, within=within, seed=seed, align=align
    )
    rows = rows_of(made)
    assert len(rows) == ranks
    assert sorted(i for rank in rows for row in rank for i in row) == list(range(len(lengths)))
    for rank in rows:
        assert len(rank) == made.microbatches
        for row in rank:
            assert sum(-(-lengths[i] // align) * align for i in row) <= seq_len
    if groups:
        places = rows if within == "rank" else [[row] for rank in rows for row in rank]
        homes = [{groups[i] for row in place for i in row} for place in places]
        assert sum(map(len, homes)) == len(set(groups))
    again = pack(
        lengths, seq_len=seq_len, ranks=ranks, groups=groups, within=within, seed=seed, align=align
    )
    assert rows_of(again) == rows


@given(st.lists(st.integers(1, 32), min_size=1, max_size=60), RANKS)
@settings(max_examples=100, deadline=None)
def test_microbatches_are_at_most_twice_as_many_as_tokens_need(
    lengths: list[int], ranks: int
) -> None:
    plan = pack(lengths, seq_len=32, ranks=ranks)
    least = -(-sum(lengths) // 32)
    assert plan.microbatches <= -(-2 * least // ranks)


def test_ranks_and_microbatches_cost_nearly_the_same() -> None:
    rng = np.random.default_rng(1)
    lengths = np.minimum(rng.lognormal(6, 0.8, 2048).astype(int) + 1, 4096)
    for groups in (None, np.arange(2048) // 8):
        plan = pack(lengths, seq_len=16_384, ranks=8, groups=groups)
        sums = plan.costs.sum(axis=1)
        assert sums.max() / sums.mean() < 1.002
        assert plan.imbalance < 1.01
        assert plan.padding_ratio < 0.15


def test_a_cost_decides_what_is_equal() -> None:
    lengths = [8] * 4 + [2] * 16
    squares = pack(lengths, seq_len=64, ranks=2, cost=lambda n: n**2)
    assert squares.costs.tolist() == [[160], [160]]
    plan = pack(lengths, seq_len=64, ranks=4, cost=lambda n: np.ones(len(n)))
    assert [len(plan.documents(rank)) for rank in range(4)] == [5] * 4


def test_a_seed_decides_who_gets_what() -> None:
    lengths = np.arange(1, 100)
    plans = [rows_of(pack(lengths, seq_len=100, ranks=4, seed=seed)) for seed in (0, 1)]
    assert plans[0] != plans[1]
    rows = [sorted(row for rank in plan for row in rank) for plan in plans]
    assert rows[0] == rows[1]


def test_more_microbatches_than_documents_are_padding() -> None:
    plan = pack([3, 4], seq_len=8, ranks=2, microbatches=3)
    batches = [batch for rank in range(2) for batch in plan.batches([[1] * 3, [2] * 4], rank=rank)]
    assert len(batches) == 6
    assert sorted(batch.num_documents for batch in batches) == [0, 0, 0, 0, 1, 1]
    empty = next(batch for batch in batches if not batch.num_documents)
    assert (empty.labels == -100).all()
    loss = empty.loss(torch.zeros(1, 8, 5, requires_grad=True))
    assert loss == 0
    assert pack([], seq_len=8, ranks=2).microbatches == 0


def test_what_cannot_be_packed_is_refused_and_the_advice_works() -> None:
    with pytest.raises(PlanError, match=r"Document 1 has 9 tokens, a row has 8.*seq_len=9"):
        pack([3, 9], seq_len=8)
    assert pack([3, 9], seq_len=9).microbatches == 2
    with pytest.raises(PlanError, match="Document 1 has no tokens"):
        pack([3, 0], seq_len=8)
    with pytest.raises(PlanError, match=r"group 'b' have 10 tokens.*seq_len=10"):
        pack([3, 5, 5], seq_len=8, groups=["a", "b", "b"], within="row")
    assert pack([3, 5, 5], seq_len=10, groups=["a", "b", "b"], within="row").microbatches == 2
    assert pack([3, 5, 5], seq_len=8, groups=["a", "b", "b"], within="rank").microbatches == 2
    for groups, found in ((None, 2), ([0, 0, 0, 0, 1], 4)):
        with pytest.raises(PlanError, match=f"Pass microbatches={found}, "):
            pack([7] * 5, seq_len=8, ranks=3, groups=groups, microbatches=1)
        assert pack([7] * 5, seq_len=8, ranks=3, groups=groups, microbatches=found)
    for wrong in (
        {"groups": [1]},
        {"within": "batch"},
        {"microbatches": "some"},
        {"cost": lambda n: -n},
        {"align": 3},
        {"ranks": 0},
    ):
        with pytest.raises(ConfigError):
            pack([3, 5], **{"seq_len": 8, **wrong})  # type: ignore[arg-type]


def rollouts(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 60, count)
    return {
        "ids": [torch.from_numpy(rng.integers(0, 70_000, n)) for n in lengths],
        "loss_mask": [rng.random(n) < 0.5 for n in lengths],
        "token_fields": {
            "logprobs": [rng.random(n).astype(np.float32) for n in lengths],
            "listed": [rng.random(n).tolist() for n in lengths],
        },
        "document_fields": {
            "advantage": torch.from_numpy(rng.random(count)).float(),
            "turns": list(range(count)),
        },
    }


@pytest.mark.parametrize("pad_to", [None, 16])
@pytest.mark.parametrize("align", [1, 4])
def test_batches_hold_the_documents_with_all_that_belongs_to_them(
    pad_to: int | None, align: int
) -> None:
    made = rollouts(50)
    lengths = [len(ids) for ids in made["ids"]]
    plan = pack(lengths, seq_len=64, ranks=3, groups=np.arange(50) // 4, align=align)
    seen = []
    for rank in range(3):
        batches = list(plan.batches(**made, rank=rank, pad_id=9, pad_to=pad_to))
        assert [batch.num_tokens for batch in batches] == plan.tokens[rank].tolist()
        for place, batch in enumerate(batches):
            assert batch.provenance is not None
            numbers = batch.provenance["index"].tolist()
            assert numbers == plan.documents(rank, place).tolist()
            width = batch.seq_len
            assert width == 64 if pad_to is None else width % 16 == 0 and width >= batch.num_tokens
            for piece, i in enumerate(numbers):
                here = batch.document_ids == piece
                assert (here.flatten().nonzero()[0] % align == 0).all()
                assert torch.equal(batch.input_ids[here], made["ids"][i])
                assert batch.position_ids[here].tolist() == list(range(lengths[i]))
                counts = torch.from_numpy(made["loss_mask"][i])
                expected = made["ids"][i].masked_fill(~counts, -100)[1:]
                assert torch.equal(batch.labels[here][1:], expected)
                for name, values in made["token_fields"].items():
                    assert batch.fields[name].dtype == torch.float32
                    assert torch.equal(
                        batch.fields[name][here], torch.tensor(values[i], dtype=torch.float32)
                    )
                assert (
                    batch.document_fields["advantage"][piece]
                    == (made["document_fields"]["advantage"][i])
                )
                assert batch.document_fields["turns"][piece] == i
            assert (batch.input_ids[batch.document_ids < 0] == 9).all()
            seen += numbers
    assert sorted(seen) == list(range(50))


def test_a_rank_needs_its_own_documents_alone() -> None:
    made = rollouts(20)
    plan = pack([len(ids) for ids in made["ids"]], seq_len=64, ranks=4)
    own = {int(i): made["ids"][i] for i in plan.documents(2)}
    batches = list(plan.batches(own, rank=2))
    assert sum(batch.num_documents for batch in batches) == len(own)


def test_of_several_ranks_one_is_named() -> None:
    plan = pack([2, 2], seq_len=2, ranks=2)
    with pytest.raises(ConfigError, match=r"for 2 ranks.*Pass rank="):
        plan.batches([[1, 2]] * 2)
    assert len(list(plan.batches([[1, 2]] * 2, rank=1))) == 1


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor])
def test_there_is_as_much_as_was_planned(make: Any) -> None:
    plan = pack([2, 2], seq_len=8)
    for count in (1, 3):
        ids = [[1, 2]] * count
        with pytest.raises(ConfigError, match=f'"ids" has {count} documents, and 2 were planned'):
            plan.batches(make(ids))
        with pytest.raises(ConfigError, match=f'"a" has {count} documents'):
            plan.batches([[1, 2]] * 2, document_fields={"a": make([0.0] * count)})
    assert list(plan.batches({i: [1, 2] for i in range(3)}))


def test_what_is_not_as_planned_is_named() -> None:
    plan = pack([3, 2], seq_len=8)
    with pytest.raises(ConfigError, match=r"Document 1 has 3 ids, and 2 when it was planned"):
        list(plan.batches([[1, 2, 3], [1, 2, 3]]))
    with pytest.raises(ConfigError, match=r"Document 0 has an id that is negative"):
        list(plan.batches([[1, -2, 3], [1, 2]]))
    with pytest.raises(ConfigError, match=r'Document 1 has 2 ids and 1 values in "w"'):
        list(plan.batches([[1, 2, 3], [1, 2]], token_fields={"w": [[0.0] * 3, [0.0]]}))
    with pytest.raises(ConfigError, match=r'Document 1 holds nan in its field "a"'):
        list(plan.batches([[1, 2, 3], [1, 2]], document_fields={"a": [0.0, float("nan")]}))
    with pytest.raises(ConfigError, match=r'A field is named "ids"'):
        plan.batches([[1, 2, 3], [1, 2]], document_fields={"ids": [0, 1]})


def test_costs_of_a_model_are_costs() -> None:
    cost = Cost(token=100, pair=1)
    plan = pack([10, 20, 30], seq_len=64, cost=cost)
    assert plan.costs.tolist() == [[cost([10, 20, 30]).sum()]]


@pytest.mark.parametrize(
    "lengths",
    [[3.7], [float("nan")], [True], 4, None, ["3"], [[1], [2, 3]], [[1, 2]], [2**64], {0: 3}, [-1]],
)
def test_what_are_no_lengths_is_refused(lengths: Any) -> None:
    with pytest.raises(PlanError, match="one whole number >= 0 per document"):
        pack(lengths, seq_len=8)


@pytest.mark.parametrize("cost", [5, lambda n: None, lambda n: ["a"] * len(n), lambda n: n * 1j])
def test_what_are_no_costs_is_refused(cost: Any) -> None:
    with pytest.raises(ConfigError, match="cost"):
        pack([3, 4], seq_len=8, cost=cost)


def test_a_plan_keeps_its_lengths_whatever_becomes_of_the_callers() -> None:
    lengths = np.array([3, 4])
    plan = pack(lengths, seq_len=8, cost=lambda given: given.__imul__(2))
    lengths[:] = 1
    assert plan.tokens.tolist() == [[7]]


@pytest.mark.parametrize("groups", [[[0], [0, 1]], [0], [0.5, 1.5], "ab", {0, 1}])
def test_what_are_no_groups_is_refused(groups: Any) -> None:
    with pytest.raises(ConfigError, match="one whole number or name for each document"):
        pack([3, 4], seq_len=8, groups=groups)


@pytest.mark.parametrize("microbatches", [None, "x", 0, 1.5, np.array([1, 2])])
def test_what_is_no_number_of_microbatches_is_refused(microbatches: Any) -> None:
    with pytest.raises(ConfigError, match="microbatches is"):
        pack([3, 4], seq_len=8, microbatches=microbatches)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ids": {0: [1, 2, 3]}}, r'nothing for document 1 in "ids", which is a dict'),
        ({"ids": None}, 'in "ids", which is None'),
        ({"loss_mask": 5}, 'in "loss_mask", which is an int'),
        ({"token_fields": {"a": []}}, 'nothing for document 0 in "a", which is a list'),
        ({"token_fields": ["a"]}, "token_fields is a list"),
    ],
)
def test_what_documents_lack_is_named(given: Any, said: str) -> None:
    ids = [[1, 2, 3], [1, 2, 3, 4]]
    with pytest.raises(ConfigError, match=said):
        list(pack([3, 4], seq_len=8).batches(**{"ids": ids, **given}))
