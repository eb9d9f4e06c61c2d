"""pack: documents in memory, divided among ranks as micro-batches."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streampack import pack
from streampack.errors import ConfigError, PlanError
from tests.support.drawn import drawn

LENGTHS = st.lists(st.integers(1, 32), max_size=60)
RANKS = st.integers(1, 5)


def rows_of(plan: Any) -> list[list[list[int]]]:
    return [
        [plan.documents(rank, place).tolist() for place in range(plan.microbatches)]
        for rank in range(plan.ranks)
    ]


@given(LENGTHS, RANKS, st.integers(0, 3), st.sampled_from([1, 4]), st.data())
@drawn(300)
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
@drawn(100)
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


def test_a_cost_decides_which_batches_are_equal() -> None:
    lengths = [8] * 4 + [2] * 16
    squares = pack(lengths, seq_len=64, ranks=2, cost=lambda n: n**2)
    assert squares.costs.tolist() == [[160], [160]]
    plan = pack(lengths, seq_len=64, ranks=4, cost=lambda n: np.ones(len(n)))
    assert [len(plan.documents(rank)) for rank in range(4)] == [5] * 4


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


def test_unpackable_input_is_refused_and_the_advice_works() -> None:
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
            "routes": [torch.from_numpy(rng.integers(0, 99, (n, 3, 2), np.int16)) for n in lengths],
            "nested": [rng.random((n, 2)).tolist() for n in lengths],
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
                    dtype = torch.int16 if name == "routes" else torch.float32
                    assert batch.fields[name].dtype == dtype
                    expected = torch.as_tensor(values[i], dtype=dtype)
                    assert torch.equal(batch.fields[name][here], expected)
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


@given(LENGTHS, RANKS, st.sampled_from([1, 4]), st.sampled_from([1, 3, 8, 100]), st.booleans())
@drawn(100)
def test_rows_at_one_place_are_as_long_on_all_ranks_and_none_longer_than_needed(
    lengths: list[int], ranks: int, align: int, pad_to: int, tree: bool
) -> None:
    ids = [list(range(1, n + 1)) for n in lengths]
    groups = [i // 2 for i in range(len(ids))]
    options: dict[str, Any] = {"layout": "tree", "groups": groups, "ids": ids} if tree else {}
    plan = pack(lengths, seq_len=32, ranks=ranks, align=align, **options)
    step = int(np.lcm(pad_to, align))
    of_ranks = [list(plan.batches(ids, rank=rank, pad_to=pad_to)) for rank in range(ranks)]
    for batches in zip(*of_ranks, strict=True):
        (seq_len,) = {batch.seq_len for batch in batches}
        used = 0
        for batch in batches:
            filled = (batch.document_ids >= 0).flatten().nonzero().flatten().tolist()
            used = max(used, -(-(filled[-1] + 1) // align) * align if filled else 0)
        assert seq_len == min(max(-(-used // step), 1) * step, 32)


@given(LENGTHS, RANKS, st.none() | st.just(3), st.integers(0, 3))
@drawn(100)
def test_an_order_moves_whole_micro_batches_of_all_ranks(
    lengths: list[int], ranks: int, group: int | None, seed: int
) -> None:
    groups = None if group is None else [i // group for i in range(len(lengths))]
    orders: tuple[Literal["shuffled", "decreasing", "peaked"], ...]
    orders = ("shuffled", "decreasing", "peaked")
    plans = [
        pack(lengths, seq_len=32, ranks=ranks, groups=groups, seed=seed, order=order)
        for order in orders
    ]
    first, *others = [sorted(map(str, zip(*rows_of(plan), strict=True))) for plan in plans]
    assert others == [first, first]
    _, decreasing, peaked = plans
    assert (np.diff(decreasing.costs, axis=1) <= 0).all()
    half = peaked.microbatches // 2
    assert (np.diff(peaked.costs[:, : half + 1], axis=1) >= 0).all()
    assert (np.diff(peaked.costs[:, half:], axis=1) <= 0).all()


def test_an_unknown_order_of_micro_batches_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        pack([3], seq_len=8, order="longest")  # type: ignore[arg-type]
    assert caught.value.setting == "order"
