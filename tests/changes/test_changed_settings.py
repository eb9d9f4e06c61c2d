"""Resuming with other settings: delivered tokens do not return, all others come exactly once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import (
    PackedBatch,
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    WindowConfig,
    sources,
)
from streampack.errors import StateError
from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import (
    Balance,
    BestFitCrop,
    BestFitDecreasing,
    Buckets,
    Concat,
    Packer,
    Pad,
    Plan,
    Seamless,
)
from tests.support.drawn import drawn
from tests.support.memory_source import MemorySource, numbered_documents

PAD = 4_000_000
LANES = 4
EVERYTHING = {"packer"}


def lossless(seq_len: int) -> list[Packer]:
    kinds = (with_rows(kind, seq_len) for kind in packer_kinds().values())
    return [
        *(packer for packer in kinds if not isinstance(packer, BestFitCrop | Seamless)),
        Concat(seq_len=seq_len, atom=seq_len // 4),
        Pad(seq_len=seq_len, atom=2 * seq_len),
        BestFitCrop(seq_len=seq_len, keep_cropped=True),
        Buckets(seq_lens=(seq_len // 4, seq_len), shares=(0.5, 0.5)),
        Seamless(seq_len=seq_len, extra_capacity=0),
    ]


@st.composite
def stages(draw: st.DrawFn) -> dict[str, Any]:
    packer = draw(st.sampled_from([p for size in (16, 32, 64) for p in lossless(size)]))
    rows = draw(st.integers(1, 3))
    batch_tokens = packer.seq_lens[-1] * rows
    for least in range(2, 64):  # the smallest window allowed, or some rows more
        try:
            WindowConfig(rows=least).resolve(packer, batch_tokens)
            break
        except ValueError:
            continue
    window = WindowConfig(
        rows=least + draw(st.sampled_from([0, 3, 20])),
        max_carries=draw(st.sampled_from([0, 2, 16])),
        carry=draw(st.sampled_from([0.0, 0.5, 0.9])),
    )
    packer = replace(packer, choice=draw(st.sampled_from([None, Balance()])))  # type: ignore[type-var]
    return {
        "packer": packer,
        "batch_size": rows,
        "window": window,
    }


def loaders(source: MemorySource, stage: dict[str, Any], ranks: int = 1) -> list[PackedLoader]:
    return [
        PackedLoader(
            PackedDataset(
                source,
                lanes=LANES,
                topology=Topology(rank, ranks),
                token_rules=TokenRules(pad_id=PAD, eos_id=PAD + 1),
                provenance=True,
                **stage,
            )
        )
        for rank in range(ranks)
    ]


def counted(batches: list[PackedBatch]) -> Counter[int]:
    ids = [batch.input_ids.ravel() for batch in batches]
    return Counter(token for row in ids for token in row[row < PAD].tolist())


@drawn(40)
@given(
    lengths=st.lists(st.sampled_from([1, 3, 9, 20, 40, 70, 150, 400]), min_size=8, max_size=80),
    legs=st.lists(stages(), min_size=2, max_size=4),
    stops=st.lists(st.integers(0, 14), min_size=3, max_size=3),
)
def test_every_token_comes_exactly_once_over_all_legs(
    lengths: list[int], legs: list[dict[str, Any]], stops: list[int]
) -> None:
    source = MemorySource([numbered_documents(lengths)], block_documents=5)
    found: list[PackedBatch] = []
    state = None
    for number, leg in enumerate(legs):
        (loader,) = loaders(source, leg)
        if state is not None:
            loader.load_state_dict(json.loads(state), allow=EVERYTHING)
        rest = iter(loader)
        last = number == len(legs) - 1
        for _ in range(10_000 if last else stops[number]):
            batch = next(rest, None)
            if batch is None:
                break
            found.append(batch)
        state = json.dumps(loader.state_dict())
    tokens = counted(found)
    assert sorted(tokens) == list(range(sum(lengths)))
    repeats = sum(tokens.values()) - len(tokens)
    # A row that was to repeat one that then never went counts as repeating, and does not.
    assert repeats <= sum(batch.composition.repeated for batch in found)


def test_weights_may_change_after_any_batch_up_to_the_last_one() -> None:
    def mixed(web: float) -> PackedLoader:
        documents = numbered_documents([1 + i % 20 for i in range(60)])
        parts = {"web": MemorySource([documents[:30]]), "code": MemorySource([documents[30:]])}
        mixture = sources.Mixture(parts, weights={"web": web, "code": 1 - web})
        return PackedLoader(
            PackedDataset(
                mixture,
                seq_len=32,
                batch_size=1,
                lanes=2,
                window=WindowConfig(rows=4),
                topology=Topology(),
                token_rules=TokenRules(pad_id=PAD),
            )
        )

    batches = len(list(mixed(0.7)))
    for stop in range(batches + 1):
        loader = mixed(0.7)
        found = [batch for _, batch in zip(range(stop), loader, strict=False)]
        again = mixed(0.5)
        again.load_state_dict(json.loads(json.dumps(loader.state_dict())), allow={"source"})
        tokens = counted(found + list(again))
        assert tokens == Counter(range(sum(tokens.values())))
        assert len(tokens) == sum(1 + i % 20 for i in range(60))


def test_the_rest_of_a_piece_may_be_whole_rows() -> None:
    source = MemorySource([numbered_documents([1, 1, 150, 1, 1, 1, 1, 1])])
    legs: list[tuple[Packer, int, int]] = [
        (Pad(seq_len=16), 23, 6),
        (BestFitDecreasing(seq_len=16), 3, 1),
        (BestFitDecreasing(seq_len=16), 3, 1),
        (Pad(seq_len=16, atom=32), 3, 1_000),
    ]
    found: list[PackedBatch] = []
    state = None
    for packer, rows, steps in legs:
        stage = {"packer": packer, "batch_size": 1, "window": WindowConfig(rows=rows)}
        (loader,) = loaders(source, {**stage, "shuffle": False})
        if state is not None:
            loader.load_state_dict(state, allow=EVERYTHING)
        found += [batch for _, batch in zip(range(steps), loader, strict=False)]
        state = loader.state_dict()
    assert counted(found) == Counter(range(157))


def test_buckets_of_other_lengths_measure_their_own_shares() -> None:
    lengths = [4] * 30 + [8] * 20 + [30] * 10
    source = MemorySource([numbered_documents(lengths)])

    def buckets(*seq_lens: int) -> PackedLoader:
        stage = {"packer": Buckets(seq_lens=seq_lens), "batch_size": 1}
        return loaders(source, {**stage, "window": WindowConfig(rows=8)})[0]

    first = buckets(8, 32)
    found = [batch for _, batch in zip(range(3), first, strict=False)]
    for seq_lens in [(4, 8, 32), (16, 32)]:
        changed = buckets(*seq_lens)
        changed.load_state_dict(json.loads(json.dumps(first.state_dict())), allow=EVERYTHING)
        assert counted(found + list(changed)) == Counter(range(sum(lengths)))
        saved = changed.state_dict()["fingerprint"]["packer"]
        assert saved["shares"] == buckets(*seq_lens).state_dict()["fingerprint"]["packer"]["shares"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_change_gives_the_same_global_batches_on_any_number_of_ranks(ranks: int) -> None:
    lengths = np.random.default_rng(1).integers(1, 120, 300).tolist()
    source = MemorySource([numbered_documents(lengths)], block_documents=7)
    first = {"packer": BestFitDecreasing(seq_len=32), "batch_size": 1}
    then = {
        "packer": Seamless(seq_len=64, extra_capacity=0),
        "batch_size": 2,
        "window": WindowConfig(rows=10),
    }
    (loader,) = loaders(source, first)
    for _, _batch in zip(range(44), loader, strict=False):
        pass
    state = json.dumps(loader.state_dict())
    (alone,) = loaders(source, then)
    alone.load_state_dict(json.loads(state), allow=EVERYTHING)
    expected = [(b.lane, b.step, b.input_ids.tolist()) for b in alone if b.num_documents]
    assert expected[0][:2] == (0, 11)
    found = []
    for rank in loaders(source, then, ranks):
        rank.load_state_dict(json.loads(state), allow=EVERYTHING)
        found += [(b.lane, b.step, b.input_ids.tolist()) for b in rank if b.num_documents]
    assert sorted(found, key=lambda b: (b[1], b[0])) == expected


def test_a_state_taken_after_a_change_resumes_without_naming_it() -> None:
    source = MemorySource([numbered_documents([7, 90, 33, 150] * 30)], block_documents=7)
    (loader,) = loaders(source, {"packer": Concat(seq_len=32), "batch_size": 2})
    for _, _batch in zip(range(9), loader, strict=False):
        pass
    then = {"packer": Pad(seq_len=16), "batch_size": 4}
    (changed,) = loaders(source, then)
    changed.load_state_dict(loader.state_dict(), allow=EVERYTHING)
    states = [json.dumps(changed.state_dict())]
    batches = []
    for batch in changed:
        batches.append(batch.input_ids.tolist())
        states.append(json.dumps(changed.state_dict()))
    for i in (0, 1, 2, 5, len(states) - 1):
        (again,) = loaders(source, then)
        again.load_state_dict(json.loads(states[i]))
        assert [batch.input_ids.tolist() for batch in again] == batches[i:]


def test_documents_refused_by_the_new_overflow_policy_are_dropped_and_the_rest_comes_once() -> None:
    lengths = [5, 200, 31, 64, 90] * 20
    source = MemorySource([numbered_documents(lengths)], block_documents=7)
    for overflow in ("truncate", "drop"):
        (loader,) = loaders(source, {"packer": BestFitDecreasing(seq_len=16)})
        found = [batch for _, batch in zip(range(15), loader, strict=False)]
        packer = BestFitDecreasing(seq_len=32, overflow=overflow)  # type: ignore[arg-type]
        (changed,) = loaders(source, {"packer": packer})
        changed.load_state_dict(loader.state_dict(), allow=EVERYTHING)
        tokens = counted([*found, *changed])
        assert max(tokens.values()) == 1
        bounds = np.cumsum([0, *lengths])
        short = [i for i, length in enumerate(lengths) if length <= 32]
        for i in short:
            assert all(t in tokens for t in range(bounds[i], bounds[i + 1]))


def test_a_change_that_is_not_named_or_cannot_be_is_refused() -> None:
    source = MemorySource([numbered_documents([9] * 200)])
    (loader,) = loaders(source, {"packer": Concat(seq_len=32), "batch_size": 2})
    state = loader.state_dict()
    (other,) = loaders(source, {"packer": Concat(seq_len=32), "batch_size": 3})
    for allow in ({"source"}, {"seed"}, "packer"):
        with pytest.raises(StateError):
            other.load_state_dict(state, allow=allow)
    moved = MemorySource([numbered_documents([9] * 201)])
    (elsewhere,) = loaders(moved, {"packer": Concat(seq_len=32), "batch_size": 2})
    with pytest.raises(StateError):
        elsewhere.load_state_dict(state, allow=EVERYTHING)


class Custom(Packer):
    """A packer of somebody's own."""

    seq_lens = (32,)

    def plan(self, lengths: np.ndarray, *, final: bool, seed: int) -> Plan:
        return BestFitDecreasing(seq_len=32).plan(lengths, final=final, seed=seed)

    def describe(self) -> dict[str, Any]:
        return {"kind": "Custom", "seq_len": 32}


def test_a_custom_packer_can_stay_while_other_settings_change_but_cannot_be_left() -> None:
    source = MemorySource([numbered_documents([9, 50] * 100)])
    (loader,) = loaders(source, {"packer": Custom(), "batch_size": 1})
    found = [batch for _, batch in zip(range(7), loader, strict=False)]
    (ramped,) = loaders(source, {"packer": Custom(), "batch_size": 3})
    ramped.load_state_dict(loader.state_dict(), allow={"batch_size"})
    assert sorted(counted([*found, *ramped]).elements()) == list(range(59 * 100))
    (other,) = loaders(source, {"packer": Concat(seq_len=32), "batch_size": 1})
    with pytest.raises(StateError):
        other.load_state_dict(loader.state_dict(), allow=EVERYTHING)


def test_settings_may_change_before_the_turn_of_a_lane_that_has_no_document() -> None:
    def loader(rows: int) -> PackedLoader:
        source = MemorySource([numbered_documents([9, 9, 1])], block_documents=5)
        rules = TokenRules(pad_id=PAD, eos_id=PAD + 1)
        dataset = PackedDataset(
            source, seq_len=16, batch_size=rows, window=WindowConfig(rows=8), lanes=6,
            topology=Topology(), token_rules=rules,
        )  # fmt: skip
        return PackedLoader(dataset)

    first = loader(1)
    found = [next(iter(first))]
    changed = loader(2)
    changed.load_state_dict(first.state_dict(), allow={"batch_size"})
    found += changed
    assert sorted(counted(found)) == list(range(19))
