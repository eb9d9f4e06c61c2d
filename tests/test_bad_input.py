"""Bad input, as a user meets it: a clear error or the declared policy; nothing lost silently."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import (
    PackedDataset,
    PackedLoader,
    StreampackError,
    TokenRules,
    Topology,
    WindowConfig,
    sources,
)
from streampack.errors import ConfigError, ContentError, PlanError, StorageError
from streampack.packing import BestFitDecreasing, Buckets, Concat, Pad, Seamless
from streampack.reading.skips import Skips
from tests.support.corpora import byte_tokenizer, write_mds, write_tar
from tests.support.memory_source import MemorySource
from tests.support.source_contract import read_all


def load(source: Any, **options: Any) -> PackedLoader:
    values: dict[str, Any] = {"seq_len": 16, "lanes": 1, "topology": Topology(), **options}
    if "packer" in values:
        del values["seq_len"]
    loader = PackedLoader(PackedDataset(source, **values))
    for _ in loader:
        pass
    return loader


def ids(*lengths: int) -> list[Any]:
    return [np.arange(n).astype(np.uint16) for n in lengths]


def says(error: StreampackError) -> None:
    """Fact, consequence and remedy, each a sentence."""
    for part in (error.fact, error.consequence, error.remedy):
        assert part.strip().endswith((".", "`.", ")."))
        assert part in str(error)


def test_an_empty_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError) as raised:
        load(str(tmp_path / "empty.jsonl"), tokenizer=byte_tokenizer())
    says(raised.value)
    with pytest.raises(ConfigError, match="matches"):
        load(str(tmp_path / "*.parquet"), tokenizer=byte_tokenizer())


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = Path(write_mds(tmp_path, ids(*[300] * 20)))
    victim = sorted(folder.glob("*.mds"))[2]
    victim.unlink()
    with pytest.raises(StorageError, match=victim.name) as raised:
        load(sources.MDS(str(folder)))
    says(raised.value)


def test_a_truncated_tar_is_named_or_skipped_with_nothing_else_lost(tmp_path: Path) -> None:
    good = write_tar(tmp_path / "good.tar", ids(*[40] * 10))
    bad = write_tar(tmp_path / "bad.tar", ids(*[40] * 10))
    bad.write_bytes(bad.read_bytes()[: 4 * 1024 + 700])  # four documents and a part of the fifth
    urls = [str(good), str(bad)]
    with pytest.raises(ContentError, match=r"bad\.tar") as raised:
        load(sources.WebDataset(urls, tokens="npy"))
    says(raised.value)
    loader = load(sources.WebDataset(urls, tokens="npy"), on_error="skip")
    metrics = loader.metrics()
    assert metrics.skipped == 1
    assert metrics.composition.placed == 10 * 40 + 4 * 40
    assert "bad.tar" in json.dumps(loader.state_dict())


@pytest.mark.parametrize("codec", ["gz", "bz2", "zst"])
def test_a_compressed_tar_that_is_cut_short_loses_only_what_is_behind_the_cut(
    tmp_path: Path, codec: str
) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 60_000, 5000).astype(np.uint16) for _ in range(200)]
    stored = write_tar(tmp_path / "a.tar", documents).read_bytes()
    compress: Any = {"gz": gzip, "bz2": bz2, "zst": pa.Codec("zstd")}[codec].compress
    packed = bytes(compress(stored))
    path = tmp_path / f"a.tar.{codec}"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    source = sources.WebDataset(str(path), tokens="npy")
    with pytest.raises(ContentError, match="breaks off"):
        read_all(source)
    skips = Skips("skip")
    found = read_all(source, skips)
    kept = 80 if codec == "bz2" else 140  # bzip2 unpacks by blocks of 900 kB
    assert len(found) >= kept
    assert found == [tuple(document.tolist()) for document in documents[: len(found)]]
    assert [record[1] for record in skips.records] == [len(found)]


def test_a_shard_that_is_lost_says_how_many_documents_it_had(tmp_path: Path) -> None:
    folder = Path(write_mds(tmp_path, ids(5, 6, 7), compression="gz"))
    victim = next(folder.glob("*.gz"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    with pytest.raises(ContentError, match="None of its 3 documents can be read"):
        load(sources.MDS(str(folder)))


def test_an_index_that_leaves_its_directory_is_refused(tmp_path: Path) -> None:
    folder = Path(write_mds(tmp_path, ids(5, 6)))
    (tmp_path / "secret.mds").write_bytes(next(folder.glob("*.mds")).read_bytes())
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = "../secret.mds"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"\.\./secret") as raised:
        load(sources.MDS(str(folder)))
    says(raised.value)


def test_an_absent_column_is_refused_and_those_that_exist_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"], "id": [1]}), path)
    with pytest.raises(ConfigError, match="body"):
        load(sources.Parquet(str(path), text="text"), tokenizer=byte_tokenizer())
    with pytest.raises(ConfigError, match="t"):
        load(sources.MDS(write_mds(tmp_path, ids(3)), tokens="tokens"))
    (tmp_path / "a.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(ConfigError, match="body"):
        load(sources.JSONL(str(tmp_path / "a.jsonl"), text="text"), tokenizer=byte_tokenizer())


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32])
def test_a_token_id_beyond_the_vocabulary_is_named_or_skipped(dtype: Any) -> None:
    documents = [tokens.astype(dtype) for tokens in ids(5, 5, 5)]
    documents[1] = documents[1] + dtype(100)
    with pytest.raises(ContentError, match=r"Document 1 of .* token id 100") as raised:
        load(MemorySource([documents]), token_rules=TokenRules(vocab_size=50))
    says(raised.value)
    metrics = load(
        MemorySource([documents]), token_rules=TokenRules(vocab_size=50), on_error="skip"
    ).metrics()
    assert (metrics.skipped, metrics.composition.placed) == (1, 10)


def test_a_negative_token_id_is_named() -> None:
    with pytest.raises(ContentError, match="token id -7, which is negative"):
        load(MemorySource([[np.array([1, -7, 3], dtype=np.int32)]]))


def test_empty_documents_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in ["ab", "", "cde", ""]))
    metrics = load(str(path), tokenizer=byte_tokenizer()).metrics()
    assert metrics.empty_documents == 2
    assert metrics.composition.placed == 2 + 3 + 2  # with an EOS each


@pytest.mark.parametrize("packer", [BestFitDecreasing, Concat, Pad])
def test_a_document_longer_than_the_window_loses_nothing(packer: Any) -> None:
    loader = load(
        MemorySource([ids(3, 60_000, 5)]),
        packer=packer(seq_len=16),
        token_rules=TokenRules(eos_id=1),
    )
    assert loader.metrics().composition.placed == 60_008


def test_a_tokenizer_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    for wrong in (tmp_path / "tokenizer.json", "gpt2", 3):
        with pytest.raises(ConfigError) as raised:
            load(["a text"], tokenizer=wrong)
        says(raised.value)


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tokenizer"):
        load(["a text"])


def test_overlong_documents_can_be_an_error_that_names_them(tmp_path: Path) -> None:
    packer = BestFitDecreasing(seq_len=16, overflow="error")
    with pytest.raises(PlanError, match=r"^Document 1 of memory-0 has 40 tokens"):
        load(MemorySource([ids(5, 40)]), packer=packer, shuffle=False)
    with pytest.raises(PlanError, match=r"^Document 0 of memory-0 has 9999 tokens"):
        load(MemorySource([ids(9999)]), packer=packer)  # more than the window could hold
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"ids": [1, 2]}\n' + json.dumps({"ids": [1] * 40}))
    with pytest.raises(
        PlanError, match=rf"^The line at byte 16 of {lines} \(line 2\) has 40 tokens"
    ):
        load(sources.JSONL(lines, tokens="ids"), packer=packer)
    two = {"a": [[1]], "b": [[1], [1] * 40]}
    with pytest.raises(PlanError, match=r'^Item 1 of the list of source "b" has 40 tokens'):
        load(sources.Mixture(two, weights={"a": 0.5, "b": 0.5}), packer=packer)


def test_pad_without_an_eos_id_is_refused_because_it_would_insert_one() -> None:
    with pytest.raises(ConfigError, match=r"Pass token_rules=TokenRules\(eos_id=\.\.\.\)"):
        load(MemorySource([ids(5)]), packer=Pad(seq_len=16))
    load(MemorySource([ids(5)]), packer=Pad(seq_len=16, overflow="truncate"))


@pytest.mark.parametrize(
    "options",
    [
        {"seq_len": 1},
        {"batch_tokens": 17},
        {"batch_tokens": 1 << 31},
        {"batch_tokens": 16.0},
        {"seed": "x"},
        {"lanes": 2.5},
        {"lanes": True},
        {"seq_len": True},
        {"seq_len": 16.0},
        {"epochs": 1.5},
        {"seed": 0.5},
        {"window": 3},
        {"packer": 3},
        {"topology": (0, 1)},
        {"attention": "diagonal"},
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"batch_size": 1 << 28},
        {"batch_size": 2, "batch_tokens": 32},
        {"batch_size": 2, "packer": Buckets(seq_lens=(8, 16))},
        {"token_rules": {"eos_id": 1}},
        {"epochs": 0},
        {"lanes": -1},
        {"on_error": "ignore"},
        {"token_rules": TokenRules(eos="append")},
        {"packer": BestFitDecreasing(seq_len=16), "batch_tokens": 8},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        load(MemorySource([ids(5)]), **options)
    says(raised.value)


@pytest.mark.parametrize(
    "rules",
    [
        {"pad_id": -1},
        {"pad_id": 1 << 32},
        {"eos_id": 1.5},
        {"eos_id": -5, "eos": "append"},
        {"pad_id": 50, "vocab_size": 50},
        {"eos_id": 51, "vocab_size": 50},
        {"pad_id": 0, "vocab_size": "x"},
        {"vocab_size": 0},
        {"eos": "sometimes"},
    ],
    ids=str,
)
def test_token_rules_that_cannot_work_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        TokenRules(**rules)
    says(raised.value)


def test_a_batch_has_eight_rows_unless_its_size_is_given() -> None:
    def shape(**options: Any) -> tuple[int, int]:
        dataset = PackedDataset(MemorySource([ids(5)]), topology=Topology(), lanes=1, **options)
        (batch,) = PackedLoader(dataset)
        return batch.rows, batch.seq_len

    assert shape(seq_len=16) == (8, 16)
    assert shape(seq_len=16, batch_size=3) == (3, 16)
    assert shape(seq_len=16, batch_tokens=32) == (2, 16)
    buckets = Buckets(seq_lens=(8, 16), shares=(1, 0))
    assert shape(packer=buckets) == (2, 8)  # as many as one row of the longest takes
    assert shape(packer=buckets, batch_tokens=64) == (8, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"device": "nonsense"},
        {"device": "cpu", "pin_memory": True},
        {"device": 1.5},
        {"device": "cuda:99"},
    ],
    ids=str,
)
def test_a_loader_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    dataset = PackedDataset(MemorySource([ids(5)]), seq_len=16, lanes=1, topology=Topology())
    with pytest.raises(ConfigError, match=next(iter(options))) as raised:
        PackedLoader(dataset, **options)
    says(raised.value)


@pytest.mark.parametrize("batches", [-1, 1.5, "x", None, True])
def test_groups_and_skips_of_no_number_of_batches_are_refused(batches: Any) -> None:
    loader = load(MemorySource([ids(5, 16, 16)]), batch_size=1)
    for refusing in (loader.accumulate, loader.skip):
        with pytest.raises(ConfigError, match="batches is") as raised:
            refusing(batches)
        says(raised.value)
    with pytest.raises(ConfigError, match="batches is 0"):
        loader.accumulate(0)
    assert len(list(loader)) == 3  # nothing has moved


@pytest.mark.parametrize(
    "options",
    [
        {"min_fill": "x"},
        {"min_fill": 1.5},
        {"min_fill": float("nan")},
        {"carry": None},
        {"carry": 0.99},
        {"rows": 4.5},
        {"rows": 0},
        {"documents": 1000.5},
        {"documents": None},
        {"max_carries": 2.5},
        {"max_carries": True},
        {"max_carries": -1},
        {"memory_limit": 0},
        {"memory_limit": 2e9},
    ],
    ids=str,
)
def test_a_window_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))) as raised:
        WindowConfig(**options)
    says(raised.value)


@pytest.mark.parametrize("value", ["x", 0, -1, 1.5, True])
@pytest.mark.parametrize(
    "name", ["block_documents", "block_bytes", "open_shards", "max_document_bytes"]
)
def test_a_reading_that_could_not_read_a_document_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name) as raised:
        sources.Reading(**{name: value})
    says(raised.value)


@pytest.mark.parametrize("reading", [8, {"open_shards": 3}])
def test_every_source_refuses_what_is_no_reading(reading: Any) -> None:
    for make in (
        lambda reading: sources.Parquet("a.parquet", reading=reading),
        lambda reading: sources.JSONL("a.jsonl", reading=reading),
        lambda reading: sources.MDS("a", reading=reading),
        lambda reading: sources.WebDataset("a.tar", tokens="npy", reading=reading),
        lambda reading: sources.Chat("a.jsonl", reading=reading),
        lambda reading: sources.Iterable(ids(5), reading=reading),
        lambda reading: sources.TextFiles("a.txt", reading=reading),
    ):
        with pytest.raises(ConfigError, match="reading is") as raised:
            make(reading)
        says(raised.value)
        make(sources.Reading(open_shards=2))  # what the remedy says


@pytest.mark.parametrize(
    "options",
    [
        {"cache_limit_bytes": "x"},
        {"retries": 1.5},
        {"retries": -1},
        {"timeout_s": None},
        {"read_ahead_bytes": 0.5},
    ],
    ids=str,
)
def test_storage_that_cannot_be_read_with_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))) as raised:
        sources.Storage(**options)
    says(raised.value)


@pytest.mark.parametrize(
    "place", [(0, 1.5), (0.0, 1), (0, 0), (1, 1), (-1, 1), ("0", 1), (0, True)]
)
def test_a_place_that_is_not_among_the_ranks_is_refused(place: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        Topology(*place)
    says(raised.value)


def test_an_evaluation_takes_a_whole_number_of_lanes() -> None:
    for lanes in (True, 1.5, 0, "x"):
        with pytest.raises(ConfigError, match="lanes is") as raised:
            PackedDataset.evaluation(
                MemorySource([ids(5)]), seq_len=16, topology=Topology(), lanes=lanes
            )
        says(raised.value)


def test_integers_of_numpy_count_as_integers_and_the_state_stays_json() -> None:
    def states(i: Any, number: Any) -> list[str]:
        source = MemorySource(
            [ids(5, 9, 16, 3)], open_shards=i(1), block_documents=i(2), block_bytes=i(1 << 20)
        )
        dataset = PackedDataset(
            source,
            packer=BestFitDecreasing(seq_len=i(16), align=i(1), extra_capacity=i(0)),
            batch_tokens=i(16),
            token_rules=TokenRules(eos="append", eos_id=i(18), pad_id=i(19), vocab_size=i(20)),
            window=WindowConfig(
                rows=i(32),
                documents=i(64),
                min_fill=number(0.5),
                max_carries=i(4),
                memory_limit=i(1 << 30),
            ),
            seed=i(3),
            epochs=i(1),
            lanes=i(1),
            topology=Topology(i(0), i(1)),
        )
        loader = PackedLoader(dataset, num_workers=i(0), timeout=i(9))
        groups = loader.accumulate(i(1))
        next(groups)
        made = [json.dumps(loader.state_dict())]
        assert loader.skip(i(1)) == 1
        return [*made, json.dumps(loader.state_dict())]

    assert states(np.int64, np.float32) == states(int, float)
    for packer in (
        Concat(seq_len=np.int64(16), atom=np.int32(4)),
        Pad(seq_len=np.int64(16), atom=np.int32(4)),
        Seamless(seq_len=np.int64(16), extra_capacity=np.int64(2)),
        Buckets(seq_lens=(np.int64(16),), align=np.int64(2), warm_up=np.int64(1)),
    ):
        json.dumps(packer.describe())


def test_a_corpus_broken_throughout_does_not_pass_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' + "not json\n" * 1500)
    with pytest.raises(ContentError, match="1000 broken documents"):
        load(str(path), tokenizer=byte_tokenizer(), on_error="skip")
