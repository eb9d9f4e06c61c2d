"""Lanes over documents in memory, and checks of their batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from streampack.forecasts.origins import Provenance
from streampack.lane.config import LaneConfig
from streampack.lane.lane import Lane
from streampack.lane.state import LaneBatch, LaneEnd
from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import BestFitCrop, Concat, Packer, PackingStats, Pad, Seamless
from streampack.stages.preparation import Preparation
from streampack.window.config import WindowConfig
from streampack.window.gather import RowFormat
from tests.support.memory_source import MemorySource, numbered_documents
from tests.support.restoring import WHOLE

SEQ_LEN = 32
PAD = 4_000_000
EOS = 4_000_001
ONE_OF_EACH = [with_rows(kind, SEQ_LEN) for kind in packer_kinds().values()]
LOSSY = (BestFitCrop, Seamless)  # as they are by default
#: Packers with rows of one length that lose nothing, and variants of them.
PACKERS: list[Packer] = [
    *(p for p in ONE_OF_EACH if len(p.seq_lens) == 1 and not isinstance(p, LOSSY)),
    Concat(seq_len=SEQ_LEN, restart=True),
    Concat(seq_len=SEQ_LEN, atom=SEQ_LEN // 4),
    Concat(seq_len=SEQ_LEN, atom=2 * SEQ_LEN),
    Pad(seq_len=SEQ_LEN, atom=SEQ_LEN // 4),
    Pad(seq_len=SEQ_LEN, atom=4 * SEQ_LEN),
    BestFitCrop(seq_len=SEQ_LEN, keep_cropped=True),
    Seamless(seq_len=SEQ_LEN, extra_capacity=0),
    Seamless(seq_len=SEQ_LEN, extra_capacity=5, keep_tails=True),
]


def lane_config(
    lengths: list[int], packer: Packer, *, lanes: int = 1, rows: int = 2, **changes: Any
) -> LaneConfig:
    documents = numbered_documents(lengths)
    third = max(len(documents) // 3, 1)
    shards = [documents[:third], documents[third : 2 * third], documents[2 * third :]]
    source = MemorySource(
        [shard for shard in shards if shard],
        block_documents=changes.pop("block_documents", 5),
        open_shards=changes.pop("open_shards", 2),
    )
    source.prepare()
    window = changes.pop("window", WindowConfig(rows=8))
    settings: dict[str, Any] = {
        "source": source,
        "lanes": lanes,
        "preparation": Preparation(),
        "packer": packer,
        "window": window.resolve(packer, rows * SEQ_LEN),
        "batch_tokens": rows * SEQ_LEN,
        "row_format": RowFormat(pad_id=PAD, eos_id=EOS, stages=(Provenance(),)),
        "seed": 5,
    }
    return LaneConfig(**{**settings, **changes})


def run(lane: Lane) -> list[LaneBatch]:
    batches = []
    while isinstance(batch := lane.next(), LaneBatch):
        batches.append(batch)
    return batches


def real_tokens(batches: list[LaneBatch]) -> np.ndarray:
    tokens = np.concatenate([batch.rows.tokens for batch in batches] or [np.zeros(0)])
    return tokens[tokens < PAD]


def assert_equal(left: Sequence[Any], right: Sequence[LaneBatch]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.step == b.step
        for name in ("tokens", "boundaries", "piece", "cu_seqlens", "provenance"):
            np.testing.assert_array_equal(getattr(a.rows, name), getattr(b.rows, name))
        assert a.rows.composition == b.rows.composition
        assert a.start.state(a.emitted) == b.start.state(b.emitted)


def assert_lane_restores(config: LaneConfig, batches: list[LaneBatch], every: int = 1) -> None:
    """Restore a lane after every batch, or every few, and compare the following batches.

    As in `assert_restores_everywhere`, until the lane has planned its next round; of one state in
    twenty all that follows.
    """
    for i in range(0, len(batches), every):
        start, emitted = batches[i].start, batches[i].emitted
        following = batches[i + 1 :]
        if i // every % WHOLE:
            planned = (
                k for k, batch in enumerate(following, 1) if batch.start.number > start.number
            )
            following = following[: next(planned, None)]
        restored = Lane(config, 0, json.loads(json.dumps(start.state(emitted))))
        assert_equal([restored.next() for _ in following], following)
        if i + len(following) + 1 == len(batches):
            assert isinstance(restored.next(), LaneEnd)


def assert_delivered(batches: list[LaneBatch], num_tokens: int, times: int = 1) -> None:
    """Every token `times` times, and tokens that packers repeat by design as often as counted."""
    tokens, counts = np.unique(real_tokens(batches), return_counts=True)
    np.testing.assert_array_equal(tokens, np.arange(num_tokens))
    assert counts.min() >= times
    total = composition_of(batches)
    assert counts.sum() - times * num_tokens == total.repeated
    assert total.placed == counts.sum()


def composition_of(batches: list[LaneBatch]) -> PackingStats:
    total = PackingStats()
    for batch in batches:
        total += batch.rows.composition
        if batch.metrics is not None:
            total += batch.metrics.composition
    return total
