"""Restoring after every single batch, for every source and every packer, gives the same rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from streampack import PackedDataset, SimilarityOrder, TokenRules, Topology, WindowConfig
from streampack.packing import Balance, BestFitDecreasing, Concat, Packer, Pad
from tests.support.every_source import (
    MIXTURES,
    PACKERS,
    SEQ_LEN,
    SOURCES,
)
from tests.support.restoring import assert_restores_everywhere, maker

pytestmark = pytest.mark.sampled


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "packer",
    [BestFitDecreasing(seq_len=SEQ_LEN), Concat(seq_len=SEQ_LEN), Pad(seq_len=SEQ_LEN)],
    ids=lambda packer: type(packer).__name__,
)
def test_restoring_a_balanced_run_after_every_batch_gives_the_same_rest(
    packer: Packer, tmp_path: Path
) -> None:
    source = SOURCES["mds-tokens"](tmp_path)
    source.prepare()
    assert_restores_everywhere(
        lambda: PackedDataset(
            source,
            packer=replace(packer, choice=Balance("attention")),  # type: ignore[type-var]
            batch_size=2,
            window=WindowConfig(rows=8),
            token_rules=TokenRules(eos_id=256),
            lanes=2,
            topology=Topology(),
        )
    )


PAIRS = [
    pytest.param(kind, packer, id=f"{kind}-{type(packer).__name__}{number}")
    for kind in SOURCES
    for number, packer in enumerate(PACKERS)
]


@pytest.mark.sampled("each")
@pytest.mark.parametrize(("kind", "packer"), PAIRS)
def test_restoring_after_every_batch_gives_the_same_rest(
    kind: str, packer: Packer, tmp_path: Path
) -> None:
    assert_restores_everywhere(maker(SOURCES[kind](tmp_path), packer))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", MIXTURES)
def test_restoring_mixtures_after_every_batch_gives_the_same_rest(
    kind: str, tmp_path: Path
) -> None:
    assert_restores_everywhere(maker(MIXTURES[kind](tmp_path), BestFitDecreasing(seq_len=SEQ_LEN)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["jsonl-gz", "mixture"])
def test_restoring_a_run_that_stops_at_its_first_dry_lane_stops_there_too(
    kind: str, tmp_path: Path
) -> None:
    make = maker(SOURCES[kind](tmp_path), BestFitDecreasing(seq_len=SEQ_LEN), batch_size=1)
    assert_restores_everywhere(make, end="stop")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["parquet-tokens", "chat", "mixture"])
def test_restoring_ordered_documents_after_every_batch_gives_the_same_rest(
    kind: str, tmp_path: Path
) -> None:
    order = SimilarityOrder(order_window_documents=24, first_window_documents=8)
    make = maker(SOURCES[kind](tmp_path), Concat(seq_len=SEQ_LEN), order=order, attention="row")
    assert_restores_everywhere(make)
