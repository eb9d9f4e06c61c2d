"""Online, packers that overlap, crop or shuffle atoms give the same rows as offline."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from streampack.errors import ConfigError
from streampack.forecasts.dry_run import stream_plan
from streampack.forecasts.origins import Provenance
from streampack.lane.lane import Lane
from streampack.lane.state import LaneBatch
from streampack.packing import (
    BestFitCrop,
    Concat,
    FirstFitDecreasing,
    Packer,
    Pad,
    Plan,
    Seamless,
    check_plan,
)
from streampack.window.config import WindowConfig
from streampack.window.gather import RowFormat
from streampack.window.packed_rows import derive_fields
from tests.support import packing_reference as reference
from tests.support.lanes import (
    EOS,
    PAD,
    SEQ_LEN,
    assert_delivered,
    composition_of,
    lane_config,
    real_tokens,
    run,
)
from tests.support.memory_source import heavy_tailed

MASKED = RowFormat(pad_id=PAD, eos_id=EOS, stages=(Provenance(),), mask_repeated=True)


def places(batches: list[LaneBatch], bounds: np.ndarray) -> set[tuple[int, int, int]]:
    """(document, start, stop) of every piece, documents by their place in `bounds`."""
    found = set()
    for batch in batches:
        pieces = np.split(batch.rows.tokens, batch.rows.boundaries[1:-1])
        for number, tokens in zip(batch.rows.piece, pieces, strict=True):
            if number >= 0:
                document = int(np.searchsorted(bounds, tokens[0], side="right")) - 1
                low = int(tokens[0]) - int(bounds[document])
                found.add((document, low, low + len(tokens)))
    return found


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("window_rows", [6, 30])
def test_seamless_overlaps_the_same_rows_online(rows: int, window_rows: int) -> None:
    """Also of documents of which only some rows went at first, or that are beyond the window."""
    lengths = [*heavy_tailed(200, seed=1), 40 * SEQ_LEN + 5, 9 * SEQ_LEN + 31, 50 * SEQ_LEN]
    packer = Seamless(seq_len=SEQ_LEN, extra_capacity=0)
    window = WindowConfig(rows=window_rows)
    batches = run(Lane(lane_config(lengths, packer, rows=rows, window=window), 0))
    assert_delivered(batches, sum(lengths))
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    expected, _ = reference.seamless(lengths, SEQ_LEN, Fraction(3, 10), 0)
    long = {row[0] for row in expected if len(row) == 1 and row[0][2] - row[0][1] == SEQ_LEN}
    long = {(d, start, stop) for d, start, stop in long if lengths[d] >= SEQ_LEN}
    found = places(batches, bounds)
    assert sum(stop > SEQ_LEN for _, _, stop in long) > 20
    assert long <= found


def test_repeated_tokens_are_masked_and_nothing_else_is() -> None:
    lengths = heavy_tailed(200, seed=2)
    packer = Seamless(seq_len=SEQ_LEN, extra_capacity=0, mask_repeated=True)
    config = lane_config(lengths, packer, rows=3, row_format=MASKED)
    seen = np.zeros(sum(lengths), dtype=np.int64)
    for batch in run(Lane(config, 0)):
        rows = batch.rows
        assert rows.loss_mask is not None
        real = rows.tokens < PAD
        assert not rows.loss_mask[~real].any()
        counted = rows.tokens[rows.loss_mask]
        seen[counted] += 1
        assert (~rows.loss_mask[real]).sum() == rows.composition.repeated
        labels = derive_fields(rows)[0][2].ravel()
        assert (labels[~rows.loss_mask] == -100).all()
        assert (labels >= 0).sum() == rows.num_loss_tokens
    assert (seen == 1).all()


def test_concat_gives_the_stream_in_order_but_for_the_shuffling_of_atoms() -> None:
    lengths = heavy_tailed(300, seed=5)
    for atom in (SEQ_LEN // 4, SEQ_LEN, 2 * SEQ_LEN):
        packer = Concat(seq_len=SEQ_LEN, atom=atom)
        config = lane_config(lengths, packer, rows=4, shuffle=False, open_shards=1)
        rounds: dict[int, list[np.ndarray]] = {}
        for batch in run(Lane(config, 0)):
            rounds.setdefault(batch.start.number, []).append(batch.rows.tokens)
        done = 0
        for number, parts in rounds.items():
            tokens = np.concatenate(parts)
            tokens = tokens[tokens < PAD]
            np.testing.assert_array_equal(np.sort(tokens), np.arange(done, done + len(tokens)))
            starts = tokens[::atom] - done
            assert (starts % atom == 0).all(), number
            done += len(tokens)
        assert done == sum(lengths)


@pytest.mark.parametrize("atom_rows", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("window_rows", [6, 50])
def test_pad_cuts_documents_online_where_it_cuts_them_offline(
    atom_rows: int, rows: int, window_rows: int
) -> None:
    """Also where a batch ends inside an atom, or only a part of the document is held."""
    atom = atom_rows * SEQ_LEN
    edges = [atom - 1, atom, atom + 1, 2 * atom - 1, 2 * atom, 9 * atom - 8, 9 * atom - 7]
    lengths = np.array([*heavy_tailed(60, seed=9), *edges, 40 * SEQ_LEN + 5, 3, 61 * (atom - 1)])
    packer = Pad(seq_len=SEQ_LEN, atom=atom)
    whole = packer.plan(lengths, final=True, seed=0)
    config = WindowConfig(rows=window_rows)
    plan = stream_plan(lengths, packer, config, batch_tokens=rows * SEQ_LEN, seed=3)
    check_plan(plan, lengths)

    def cuts(plan: Plan) -> set[tuple[int, ...]]:
        columns = (plan.document, plan.start, plan.stop, plan.insert_eos)
        return set(zip(*(column.tolist() for column in columns), strict=True))

    assert cuts(plan) == cuts(whole)


@pytest.mark.parametrize(
    "packer",
    [
        Seamless(seq_len=SEQ_LEN, extra_capacity=5),
        FirstFitDecreasing(seq_len=SEQ_LEN, extra_capacity=5),
        BestFitCrop(seq_len=SEQ_LEN),
    ],
    ids=lambda packer: type(packer).__name__,
)
def test_tokens_dropped_by_packers_are_counted(packer: Packer) -> None:
    lengths = heavy_tailed(600, seed=6)
    batches = run(Lane(lane_config(lengths, packer, rows=3), 0))
    total = composition_of(batches)
    tokens: Any = np.unique(real_tokens(batches))
    assert total.dropped == sum(lengths) - len(tokens) > 0
    assert total.placed == len(tokens) + total.repeated
    assert total.documents + total.documents_lost == len(lengths)


@pytest.mark.parametrize("longest", [SEQ_LEN, 20 * SEQ_LEN])
def test_a_window_of_crops_loses_no_more_than_the_whole_stream(longest: int) -> None:
    lengths = heavy_tailed(6000, seed=7, longest=longest)
    array = np.array(lengths, dtype=np.int64)
    packer = BestFitCrop(seq_len=SEQ_LEN)
    whole = packer.plan(array, final=True, seed=0).metrics(array)
    config = lane_config(lengths, packer, window=WindowConfig(rows=320))
    total = composition_of(run(Lane(config, 0)))
    assert total.dropped_ratio < whole.dropped_ratio + 0.005
    assert total.padding_ratio < 0.001


@pytest.mark.parametrize(
    "packer",
    [FirstFitDecreasing(seq_len=SEQ_LEN, extra_capacity=31), BestFitCrop(seq_len=SEQ_LEN)],
    ids=lambda packer: type(packer).__name__,
)
def test_the_smallest_window_gives_batches_if_rows_drop_tokens(packer: Packer) -> None:
    smallest = WindowConfig(rows=44)
    config = lane_config([SEQ_LEN - 1] * 300, packer, rows=20, window=smallest)
    assert len(run(Lane(config, 0))) > 5
    with pytest.raises(ConfigError):
        WindowConfig(rows=25).resolve(packer, 20 * SEQ_LEN)
