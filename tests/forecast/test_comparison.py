from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streampack.dataset import PackedDataset
from streampack.errors import ConfigError
from streampack.forecast.comparison import (
    bucket_lengths,
    measure,
    smallest_window,
    window_curve,
    window_rows,
)
from streampack.forecast.dry_run import stream_plan
from streampack.forecast.recommendation import recommend
from streampack.job.topology import Topology
from streampack.packing import (
    BestFitCrop,
    BestFitDecreasing,
    Buckets,
    Concat,
    FirstFitDecreasing,
    Packer,
    Pad,
    Seamless,
    check_plan,
)
from streampack.packing.rng import derive_seed
from streampack.window.config import WindowConfig
from tests.support.memory_source import MemorySource, numbered_documents

SIZES = (512, 1024, 2048)


def lognormal(mu: float, sigma: float, n: int) -> NDArray[np.int64]:
    return np.exp(np.random.default_rng(3).normal(mu, sigma, n)).astype(np.int64) + 1


WEB = lognormal(5.0, 1.0, 6000)
CHATS = lognormal(4.0, 0.6, 6000)
LONG = lognormal(8.6, 0.5, 400)
AWKWARD = np.random.default_rng(4).integers(1100, 1900, 2000)


def told(lengths: NDArray[np.int64], sizes: tuple[int, ...] = SIZES) -> Any:
    return recommend(lengths, measure(lengths, sizes))


@pytest.mark.parametrize(
    "packer",
    [
        BestFitDecreasing(seq_len=512),
        BestFitDecreasing(seq_len=512, overflow="drop"),
        BestFitDecreasing(seq_len=512, overflow="truncate"),
        FirstFitDecreasing(seq_len=512),
        Seamless(seq_len=512),
        BestFitCrop(seq_len=512),
        Concat(seq_len=512),
        Pad(seq_len=512),
        Buckets(seq_lens=(256, 512), shares=(0.5, 0.5)),
    ],
    ids=lambda packer: type(packer).__name__,
)
def test_what_a_window_emits_is_a_plan_that_accounts_for_every_token(packer: Packer) -> None:
    lengths = WEB[:1500]
    config = WindowConfig(rows=8)
    plan = stream_plan(lengths, packer, config, batch_tokens=1024, seed=5)
    check_plan(plan, lengths)
    again = stream_plan(lengths, packer, config, batch_tokens=1024, seed=5)
    assert np.array_equal(plan.document, again.document)
    if packer.overflow == "split" and not isinstance(packer, (Seamless, BestFitCrop)):
        assert plan.dropped.sum() == 0


def test_a_window_emits_what_a_real_run_does() -> None:
    lengths = WEB[:1500]
    config = WindowConfig(rows=8)
    dataset = PackedDataset(
        MemorySource([numbered_documents(lengths.tolist())]),
        seq_len=512,
        batch_rows=1,
        window=config,
        shuffle=False,
        lanes=1,
        topology=Topology(0, 1),
    )
    fills = [int((batch.document_ids >= 0).sum()) for batch in dataset]
    packer = BestFitDecreasing(seq_len=512)
    plan = stream_plan(lengths, packer, config, batch_tokens=512, seed=derive_seed(0, 2, 0))
    assert plan.row_fill().tolist() == fills


def test_a_window_that_holds_everything_is_close_to_planning_at_once() -> None:
    packer = BestFitDecreasing(seq_len=512)
    windows = window_rows(WEB, 512)
    assert windows[-1] * 512 >= WEB.sum() or windows[-1] == 1024
    (utilisation,) = window_curve(WEB, packer, windows[-1:])
    whole = packer.plan(WEB, final=True, seed=0).metrics(WEB).utilisation
    assert abs(whole - utilisation) <= 0.0005


@pytest.mark.parametrize("lengths", [WEB, CHATS, LONG], ids=["web", "chats", "long"])
def test_the_smallest_window_is_close_and_the_next_smaller_is_not(
    lengths: NDArray[np.int64],
) -> None:
    packer = BestFitDecreasing(seq_len=512)
    whole = packer.plan(lengths, final=True, seed=0).metrics(lengths).utilisation
    windows = window_rows(lengths, 512)
    rows = smallest_window(windows, window_curve(lengths, packer, windows), whole)
    assert rows is not None
    assert rows > windows[0]
    close, not_close = window_curve(lengths, packer, [rows, rows // 2])
    assert 100 * (whole - close) <= 0.05 < 100 * (whole - not_close)


def test_no_window_is_named_if_the_largest_is_not_close() -> None:
    assert smallest_window([4, 8], [0.9, 0.95], 0.99) is None
    assert smallest_window([4, 8, 16], [0.99, 0.95, 0.99], 0.99) == 16
    assert smallest_window([4, 8], [0.995, 0.99], 0.99) == 4


def test_short_chats_get_best_fit_and_the_shortest_row() -> None:
    found = told(CHATS)
    assert found.code == "BestFitDecreasing(seq_len=512)"
    assert "fit a row of 512 tokens" in found.reasons[0]
    assert "longer rows would keep hardly more of them whole" in found.reasons[0]


def test_a_wider_corpus_gets_the_row_that_keeps_all_but_a_hundredth_whole() -> None:
    found = told(WEB)
    (size,) = found.figures.seq_lens
    shorter = SIZES[SIZES.index(size) - 1]
    assert isinstance(found.packer, BestFitDecreasing)
    cut, cut_before = ((lengths > rows).mean() for lengths, rows in ((WEB, size), (WEB, shorter)))
    assert cut <= 0.01 < cut_before
    assert f"rows of {shorter:,} would cut" in found.reasons[0]


def test_buckets_are_named_where_a_few_long_documents_ask_for_long_rows() -> None:
    few = np.concatenate([CHATS, np.full(180, 1900)])
    found = told(few)
    assert found.code == "BestFitDecreasing(seq_len=2048)"
    assert "Buckets(seq_lens=(512, 1024, 2048)) puts" in found.reasons[-1]
    assert not any("Buckets" in reason for reason in told(CHATS).reasons)


def test_documents_longer_than_every_row_get_seamless_where_it_keeps_context() -> None:
    found = told(LONG)
    assert found.code == "Seamless(seq_len=2048)"
    assert "longer than the longest row tried (2,048 tokens)" in found.reasons[0]
    assert "overlap" in found.reasons[1]
    best = next(f for f in measure(LONG, (2048,)) if f.name == "BestFitDecreasing")
    assert found.figures.composition.mean_context > 1.01 * best.composition.mean_context


def test_gaps_are_filled_by_cutting_where_that_costs_less_than_padding() -> None:
    found = told(AWKWARD, (2048,))
    assert isinstance(found.packer, Buckets)
    assert "best fit pads 26" in found.reasons[1]
    assert "costs less than the padding" in found.reasons[2]
    assert found.figures.composition.utilisation > 0.99


def test_a_longer_row_with_few_gaps_comes_before_cutting_documents() -> None:
    found = told(AWKWARD, (2048, 4096, 8192))
    assert found.code == "BestFitDecreasing(seq_len=8192)"
    assert found.figures.composition.truncation_ratio == 0
    assert "costs less than filling the gaps: Concat would cut 18" in found.reasons[2]
    assert told(AWKWARD, (2048, 32768)).code == "BestFitDecreasing(seq_len=32768)"


def test_longer_rows_than_those_tried_are_named_where_they_halve_a_high_price() -> None:
    (*_, last) = told(AWKWARD, (2048,)).reasons
    assert "compare with seq_len 8192 too" in last
    for sizes in ((2048, 32768), (2048, 4096, 8192, 16384)):
        assert not any("compare with" in reason for reason in told(AWKWARD, sizes).reasons)
    few = AWKWARD[:20]  # not enough to fill ten such rows
    assert not any("compare with" in reason for reason in told(few, (2048,)).reasons)


def test_every_strategy_is_measured_at_every_row_length() -> None:
    figures = measure(WEB, (1024, 512, 512), clock=iter(range(1000)).__next__)
    names = [(f.name, f.seq_lens) for f in figures]
    assert len(names) == len(set(names)) == 6 * 2 + 2
    assert {f.documents_per_second for f in figures} == {len(WEB)}
    buckets = next(f for f in figures if f.name == "Buckets")
    assert isinstance(buckets.packer, Buckets)
    plan = buckets.packer.plan(WEB, final=True, seed=0)
    shares = [plan.seq_len[plan.seq_len == size].sum() / plan.seq_len.sum() for size in (512, 1024)]
    assert shares == pytest.approx(buckets.packer.shares, abs=1e-6)


def test_one_row_length_still_gives_buckets() -> None:
    assert bucket_lengths((2048,)) == (512, 1024, 2048)
    assert bucket_lengths((2,)) == (2,)
    assert [f.name for f in measure(WEB, (2,))].count("Buckets") == 0


@pytest.mark.parametrize(("lengths", "sizes"), [([], (512,)), ([3], ()), ([3], (1,))])
def test_nothing_to_compare_is_refused(lengths: list[int], sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        measure(np.array(lengths, dtype=np.int64), sizes)


def test_one_document_is_enough() -> None:
    for length in (1, 512, 100_000):
        lengths = np.array([length], dtype=np.int64)
        found = told(lengths)
        assert found.figures.composition.documents == 1
        assert found.figures.composition.placed == length
        whole = found.packer.plan(lengths, final=True, seed=0).metrics(lengths)
        assert window_curve(lengths, found.packer, [400]) == [whole.utilisation]
