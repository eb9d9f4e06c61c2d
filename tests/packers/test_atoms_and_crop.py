"""Concat and Pad with atoms, and best fit with cropping, against the obvious implementations."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack.packing import BestFitCrop, Concat, Pad, Seamless, check_plan
from streampack.packing.rng import permutation
from tests.support import packing_reference as reference
from tests.support.drawn import drawn
from tests.support.plans import LENGTHS, planned, rows_of, window_request

FACTORS = st.sampled_from([0.25, 0.5, 1, 2, 4])
SEQ_LENS = st.sampled_from([8, 16, 24, 32])


@given(LENGTHS, SEQ_LENS, FACTORS, st.integers(0, 3))
@drawn(200)
def test_concat_merges_and_splits_shuffled_atoms(
    lengths: list[int], seq_len: int, factor: float, seed: int
) -> None:
    atom = int(seq_len * factor)
    order = permutation(sum(lengths) // atom, seed).tolist()
    expected = reference.atoms(lengths, seq_len, atom, order)
    assert rows_of(planned(Concat(seq_len=seq_len, atom=atom), lengths, seed)) == expected


@given(LENGTHS, SEQ_LENS, FACTORS, st.integers(0, 3), st.booleans())
@drawn(200)
def test_pad_gives_every_piece_an_atom_of_its_own(
    lengths: list[int], seq_len: int, factor: float, seed: int, final: bool
) -> None:
    atom = int(seq_len * factor)
    array = np.array(lengths, dtype=np.int64)
    plan = Pad(seq_len=seq_len, atom=atom).plan(array, final=final, seed=seed)
    check_plan(plan, array)
    width = min(atom, seq_len)
    taken = plan.stop - plan.start + plan.insert_eos + plan.pad_after
    assert (taken == width).all()
    assert (plan.row_fill()[:-1] == seq_len).all()
    segments = [segment for row in rows_of(plan) for segment in row]
    pieces = reference.pad_pieces(lengths, atom)
    parts = [
        [(d, low, min(low + width, stop)) for low in range(start, stop, width)]
        for d, start, stop in pieces
    ]
    assert sorted(segments) == sorted(part for piece in parts for part in piece)
    for piece in parts:  # the rows of one piece lie one behind the other
        at = segments.index(piece[0])
        assert segments[at : at + len(piece)] == piece
    ends = {(d, stop) for d, start, stop in pieces if stop < lengths[d]}
    marked = {(d, stop) for (d, _, stop), eos in zip(segments, plan.insert_eos, strict=True) if eos}
    assert marked == ends


@given(LENGTHS, SEQ_LENS, st.integers(0, 3))
@drawn(100)
def test_concat_shuffles_single_tokens(lengths: list[int], seq_len: int, seed: int) -> None:
    order = permutation(sum(lengths), seed).tolist()
    expected = reference.atoms(lengths, seq_len, 1, order)
    packer = Concat(seq_len=seq_len, atom=1)
    assert rows_of(planned(packer, lengths, seed)) == expected  # `planned` runs check_plan


@given(LENGTHS, st.integers(2, 64), st.booleans())
@drawn(200)
def test_crop_equals_the_quadratic_one(lengths: list[int], seq_len: int, keep: bool) -> None:
    plan = planned(BestFitCrop(seq_len=seq_len, keep_cropped=keep), lengths)
    rows, dropped = reference.crop(lengths, seq_len, keep_cropped=keep)
    assert rows_of(plan) == rows
    assert plan.dropped.sum() == dropped
    assert (plan.row_fill()[:-1] == seq_len).all()


@given(LENGTHS, st.integers(2, 64), st.booleans())
@drawn(300)
def test_crop_in_a_window_looks_ahead(lengths: list[int], seq_len: int, keep: bool) -> None:
    packer = BestFitCrop(seq_len=seq_len, keep_cropped=keep)
    array = np.array(lengths, dtype=np.int64)
    one_row = {"seq_len": seq_len, "batch_tokens": seq_len}
    chosen = packer.plan_window(window_request(lengths, final=True, **one_row))
    check_plan(chosen.plan, array)
    rows, dropped = reference.crop(lengths, seq_len, keep_cropped=keep, closes=True)
    assert rows_of(chosen.plan) == rows
    assert chosen.plan.dropped.sum() == dropped
    assert len(chosen.rows) == len(rows)


@given(st.lists(st.integers(1, 30_000), max_size=60), st.integers(9000, 20_000), st.booleans())
@drawn(40)
def test_crop_is_right_for_rows_beyond_one_bitmap_group(
    lengths: list[int], seq_len: int, keep: bool
) -> None:
    plan = planned(BestFitCrop(seq_len=seq_len, keep_cropped=keep), lengths)
    assert rows_of(plan) == reference.crop(lengths, seq_len, keep_cropped=keep)[0]


def test_golden_plans_do_not_change_between_versions() -> None:
    lengths = [5, 20, 3, 8, 8, 1, 40, 7]
    for packer, golden in GOLDEN:
        assert rows_of(planned(packer, lengths, seed=1)) == golden


GOLDEN: list[tuple[Any, list[reference.Row]]] = [
    (Concat(seq_len=16, atom=8), [
        [(6, 11, 19), (6, 3, 11)],
        [(3, 4, 8), (4, 0, 4), (1, 3, 11)],
        [(0, 0, 5), (1, 0, 3), (1, 11, 19)],
        [(4, 4, 8), (5, 0, 1), (6, 0, 3), (6, 19, 27)],
        [(1, 19, 20), (2, 0, 3), (3, 0, 4), (6, 35, 40), (7, 0, 3)],
        [(6, 27, 35), (7, 3, 7)],
    ]),
    (Concat(seq_len=16, atom=32), [
        [(0, 0, 5), (1, 0, 11)],
        [(1, 11, 20), (2, 0, 3), (3, 0, 4)],
        [(3, 4, 8), (4, 0, 8), (5, 0, 1), (6, 0, 3)],
        [(6, 3, 19)],
        [(6, 19, 35)],
        [(6, 35, 40), (7, 0, 7)],
    ]),
    (Pad(seq_len=16, atom=8), [
        [(4, 0, 8), (6, 0, 7)],
        [(1, 0, 7), (6, 7, 14)],
        [(1, 7, 14), (2, 0, 3)],
        [(6, 14, 21), (7, 0, 7)],
        [(0, 0, 5), (6, 21, 28)],
        [(6, 28, 35), (6, 35, 40)],
        [(1, 14, 20), (5, 0, 1)],
        [(3, 0, 8)],
    ]),
    (Pad(seq_len=16, atom=32), [
        [(2, 0, 3)],
        [(4, 0, 8)],
        [(3, 0, 8)],
        [(0, 0, 5)],
        [(6, 0, 16)],
        [(6, 16, 31)],
        [(7, 0, 7)],
        [(1, 0, 16)],
        [(1, 16, 20)],
        [(6, 31, 40)],
        [(5, 0, 1)],
    ]),
    (BestFitCrop(seq_len=16), [
        [(1, 0, 16)],
        [(6, 0, 16)],
        [(6, 16, 32)],
        [(3, 0, 8), (4, 0, 8)],
        [(6, 32, 40), (7, 0, 7), (5, 0, 1)],
        [(0, 0, 5), (1, 16, 20), (2, 0, 3)],
    ]),
    (BestFitCrop(seq_len=16, keep_cropped=True), [
        [(1, 0, 16)],
        [(6, 0, 16)],
        [(6, 16, 32)],
        [(3, 0, 8), (4, 0, 8)],
        [(6, 32, 40), (7, 0, 7), (5, 0, 1)],
        [(0, 0, 5), (1, 16, 20), (2, 0, 3)],
    ]),
    (Seamless(seq_len=16, extra_capacity=2), [
        [(1, 0, 16)],
        [(6, 0, 16)],
        [(6, 12, 28)],
        [(6, 24, 40)],
        [(3, 0, 8), (4, 0, 8)],
        [(7, 0, 7), (0, 0, 5), (1, 16, 20)],
        [(2, 0, 3)],
    ]),
]  # fmt: skip
