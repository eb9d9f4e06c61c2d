"""An estimate of the number of batches holds, with the error it names."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampack import (
    Hook,
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    WindowConfig,
    sources,
)
from streampack.forecasts import contents
from streampack.packing import BestFitDecreasing, Buckets, Pad
from tests.support.corpora import byte_tokenizer
from tests.support.every_source import SOURCES
from tests.support.memory_source import MemorySource
from tests.support.simulated_ranks import on_ranks

SEQ_LEN = 64


def corpus(count: int, seed: int = 0, **options: Any) -> MemorySource:
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(3.0, 1.0, count)).astype(int) + 1
    documents = [rng.integers(0, 999, n).astype(np.uint16) for n in lengths]
    shards = [documents[i : i + 300] for i in range(0, count, 300)]
    return MemorySource(shards, block_documents=32, **options)


def dataset(source: Any, topology: Topology | None = None, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=SEQ_LEN),
        "window": WindowConfig(rows=20),
        "lanes": 4,
        "topology": topology or Topology(),
    }
    return PackedDataset(source, **{**values, **options})


def assert_estimated(make: Callable[[Topology], PackedDataset], ranks: int = 1) -> None:
    def run(rank: int, member: Any) -> int:
        return sum(1 for _ in PackedLoader(make(Topology(rank, ranks)), ranks=member))

    counts = set(on_ranks(ranks, run))
    assert len(counts) == 1
    estimate = make(Topology(0, ranks)).estimate_steps()
    assert estimate is not None
    (count,) = counts
    assert abs(estimate.steps - count) <= estimate.error
    assert estimate.error <= 0.45 * count + 8 / ranks


def no_long(documents: Any, seeds: Any) -> Any:
    return documents.lengths < 40


@pytest.mark.sampled("each")
@pytest.mark.parametrize("count", [50, 700, 8000])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_estimate_is_within_its_error(count: int, ranks: int) -> None:
    source = corpus(count)
    assert_estimated(lambda topology: dataset(source, topology), ranks)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [
        {"packer": Pad(seq_len=SEQ_LEN), "token_rules": TokenRules(eos_id=1)},
        {"packer": Buckets(seq_lens=(16, 32, SEQ_LEN)), "batch_size": 2},
        {"packer": BestFitDecreasing(seq_len=SEQ_LEN, overflow="drop")},
        {"filter": Hook("no-long", no_long)},
        {"epochs": 3},
    ],
    ids=["Pad", "Buckets", "drop", "filter", "epochs"],
)
def test_packers_hooks_and_epochs_count(options: dict[str, Any]) -> None:
    source = corpus(5000)
    assert_estimated(lambda topology: dataset(source, topology, **options))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [
        {"weights": {"a": 1, "b": 1}},
        {"weights": {"a": 1, "b": 1}, "at_end": "stop"},
        {"weights": {"a": 1, "b": 3}, "epochs": {"b": None}},
        {"weights": [(0, {"a": 1, "b": 0}), (20_000, {"a": 0, "b": 1})], "at_end": "stop"},
    ],
    ids=["share", "stop", "endless", "schedule"],
)
def test_mixtures_are_followed_to_their_end(options: dict[str, Any]) -> None:
    mixture = sources.Mixture({"a": corpus(2000), "b": corpus(3000, seed=1)}, **options)
    assert_estimated(lambda topology: dataset(mixture, topology))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["mds-text", "tar", "jsonl-gz", "parquet-text"])
def test_files_of_every_kind(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path)
    source.prepare()
    # The documents of these tars are mostly headers: a first deal between lanes would go by a rate
    # of tokens that is far from theirs.
    lanes = 1 if kind == "tar" else 2
    options: dict[str, Any] = {"lanes": lanes, "packer": BestFitDecreasing(seq_len=16)}
    if not source.tokenized:
        options["tokenizer"] = byte_tokenizer()
    assert_estimated(lambda topology: dataset(source, topology, **options))


def test_reports_of_lanes_sharpen_the_estimate() -> None:
    made = dataset(corpus(20_000))
    loader = PackedLoader(made)
    before, found = loader.estimate_steps(), []
    assert before == made.estimate_steps()
    assert before is not None
    for number, _ in enumerate(loader):
        if number in (before.steps // 10, before.steps // 2):
            found.append(loader.estimate_steps())
    errors = [before.error]
    for estimate in found:
        assert estimate is not None
        assert abs(estimate.steps - number - 1) <= 0.015 * number
        assert abs(estimate.steps - number - 1) <= estimate.error
        errors.append(estimate.error)
    assert errors == sorted(errors, reverse=True)
    state = loader.state_dict()
    again = PackedLoader(dataset(corpus(20_000)))
    again.load_state_dict(state)
    assert again.estimate_steps() == loader.estimate_steps()


def test_reports_count_the_epochs_that_follow() -> None:
    loader = PackedLoader(dataset(corpus(4_000), epochs=2))
    for number, _ in enumerate(loader):
        if number == 250:
            estimate = loader.estimate_steps()
    assert estimate is not None
    assert abs(estimate.steps - number - 1) <= min(estimate.error, 0.2 * number)


def test_no_unknown_figure_is_invented() -> None:
    assert dataset(corpus(50), epochs=None).estimate_steps() is None
    assert dataset(lambda: iter([[1, 2, 3]] * 9000), lanes=1).estimate_steps() is None
    once = dataset(iter([[1, 2, 3]] * 9), lanes=1)
    assert once.estimate_steps() is None
    assert sum(batch.num_tokens for batch in PackedLoader(once)) == 27


class Numbered:
    """A map-style dataset."""

    def __init__(self, documents: list[list[int]]) -> None:
        self.documents = documents

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, number: int) -> list[int]:
        return self.documents[number]


def as_pair(documents: list[list[int]]) -> Any:
    ends = np.cumsum([0, *map(len, documents)])
    return np.concatenate([np.array(ids, dtype=np.uint16) for ids in documents]), ends


KINDS: dict[str, Callable[[list[list[int]]], Any]] = {
    "lists of ids": lambda documents: documents,
    "texts": lambda documents: ["ab " * len(ids) for ids in documents],
    "records": lambda documents: [{"input_ids": ids} for ids in documents],
    "arrays": lambda documents: [np.array(ids) for ids in documents],
    "rows of an array": lambda documents: np.ones((len(documents), 20), dtype=np.int64),
    "(tokens, offsets)": as_pair,
    "a map-style dataset": Numbered,
    "a frame": lambda documents: pytest.importorskip("pandas").DataFrame({"input_ids": documents}),
    "a column": lambda documents: pytest.importorskip("pandas").Series(
        documents, index=range(9, 9 + len(documents))
    ),
    "a mixture": lambda documents: sources.Mixture(
        {"a": documents, "b": Numbered(documents)}, weights={"a": 2, "b": 1}
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "count"), [("lists of ids", 3000), *((kind, 9000) for kind in KINDS)]
)
def test_documents_in_memory_are_estimated(kind: str, count: int) -> None:
    documents = [[1] * (1 + (i * 7 + i // 900) % 40) for i in range(count)]
    source = KINDS[kind](documents)
    tokenizer = byte_tokenizer() if kind == "texts" else None
    assert_estimated(lambda topology: dataset(source, topology, lanes=1, tokenizer=tokenizer))


@cache
def _constant(count: int, seed: int) -> bytes:
    """Lines of ids that all are one id each: a kilobyte of them becomes some tens of bytes."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(4.0, 0.8, count).astype(int) + 1
    ids = rng.integers(1, 999, count).tolist()
    return b"".join(
        json.dumps({"input_ids": [i] * n}).encode() + b"\n"
        for i, n in zip(ids, lengths, strict=True)
    )


@cache
def _mixed(count: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(1, 50_000, n).tolist() for n in rng.integers(1, 100, count).tolist()]
    return b"".join(json.dumps({"input_ids": document}).encode() + b"\n" for document in ids)


def _zstd(content: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(content)
    compressed: bytes = out.getvalue().to_pybytes()
    return compressed


def _members(content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(gzip.compress(b"".join(lines[i : i + 500])) for i in range(0, len(lines), 500))


COMPRESSED: dict[str, Callable[[Path], Any]] = {
    "gz": lambda f: (f / "0.jsonl.gz").write_bytes(gzip.compress(_constant(9000, 0))),
    "members": lambda f: (f / "0.json.gz").write_bytes(_members(_constant(9000, 0))),
    "zst": lambda f: (f / "0.jsonl.zst").write_bytes(_zstd(_constant(9000, 0))),
    "bz2": lambda f: (f / "0.jsonl.bz2").write_bytes(bz2.compress(_constant(4000, 0))),
    "two halves": lambda f: (f / "0.jsonl.gz").write_bytes(
        gzip.compress(_constant(4000, 0) + _mixed(4000, 1))
    ),
    "files": lambda f: [
        (f / f"{i}.jsonl.gz").write_bytes(gzip.compress((_mixed if i % 3 else _constant)(900, i)))
        for i in range(8)
    ],
    "beside plain": lambda f: [
        (f / "0.jsonl.gz").write_bytes(gzip.compress(_constant(4000, 0))),
        (f / "1.jsonl").write_bytes(_constant(4000, 1)),
    ],
}

#: In three lanes in the gate, and in one at night; the others the other way round.
MANY_LANES = ("two halves", "files")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "lanes"),
    [
        pytest.param(
            kind, lanes, marks=() if (lanes > 1) == (kind in MANY_LANES) else pytest.mark.slow
        )
        for kind in COMPRESSED
        for lanes in (1, 3)
    ],
)
def test_compressed_lines_are_estimated_within_a_tenth(
    kind: str, lanes: int, tmp_path: Path
) -> None:
    COMPRESSED[kind](tmp_path)
    made = dataset(str(tmp_path), lanes=lanes, packer=BestFitDecreasing(seq_len=256))
    loader = PackedLoader(made)
    estimates = [made.estimate_steps()]
    for number, _ in enumerate(loader):
        if number == 40:  # lanes have reported by then
            estimates.append(loader.estimate_steps())
    for estimate in estimates:
        assert estimate is not None
        assert abs(estimate.steps - number - 1) <= estimate.error <= 0.1 * number


def test_long_compressed_files_are_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MOST_STORED", 200_000)
    (tmp_path / "0.jsonl.gz").write_bytes(gzip.compress(_mixed(6000, 1) + _constant(4000, 0)))
    made = dataset(str(tmp_path), lanes=1, packer=BestFitDecreasing(seq_len=256))
    estimate, count = made.estimate_steps(), sum(1 for _ in PackedLoader(made))
    assert estimate is not None
    assert abs(estimate.steps - count) <= estimate.error


def test_documents_that_rows_cut_are_estimated() -> None:
    rng = np.random.default_rng(2)
    lengths = rng.lognormal(5.5, 0.9, 8_000).astype(int) + 1
    source = MemorySource([[np.ones(n, dtype=np.uint16) for n in lengths]], block_documents=32)
    packer = BestFitDecreasing(seq_len=SEQ_LEN * 4, overflow="truncate")
    assert_estimated(lambda topology: dataset(source, topology, packer=packer, lanes=1))
