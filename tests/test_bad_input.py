"""Bad input, as a user meets it: a clear error or the declared policy; nothing lost silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, StreampackError, Topology, sources
from streampack.errors import ConfigError, ContentError, PlanError, StorageError
from streampack.packing import BestFitDecreasing, Concat, Pad
from tests.corpora import byte_tokenizer, write_mds, write_tar
from tests.memory_source import MemorySource


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
        load(sources.MDS(str(folder), column="t"))
    says(raised.value)


def test_a_truncated_tar_is_named_or_skipped_with_nothing_else_lost(tmp_path: Path) -> None:
    good = write_tar(tmp_path / "good.tar", ids(*[40] * 10))
    bad = write_tar(tmp_path / "bad.tar", ids(*[40] * 10))
    bad.write_bytes(bad.read_bytes()[: 4 * 1024 + 700])  # four documents and a part of the fifth
    urls = [str(good), str(bad)]
    with pytest.raises(ContentError, match=r"bad\.tar") as raised:
        load(sources.WebDataset(urls, key="npy"))
    says(raised.value)
    loader = load(sources.WebDataset(urls, key="npy"), on_error="skip")
    metrics = loader.metrics()
    assert metrics.skipped == 1
    assert metrics.composition.placed == 10 * 40 + 4 * 40
    assert "bad.tar" in json.dumps(loader.state_dict())


def test_an_index_that_leaves_its_directory_is_refused(tmp_path: Path) -> None:
    folder = Path(write_mds(tmp_path, ids(5, 6)))
    (tmp_path / "secret.mds").write_bytes(next(folder.glob("*.mds")).read_bytes())
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = "../secret.mds"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"\.\./secret") as raised:
        load(sources.MDS(str(folder), column="t"))
    says(raised.value)


def test_an_absent_column_is_refused_and_those_that_exist_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"], "id": [1]}), path)
    with pytest.raises(ConfigError, match="body"):
        load(sources.Parquet(str(path), text="text"), tokenizer=byte_tokenizer())
    with pytest.raises(ConfigError, match="t"):
        load(sources.MDS(write_mds(tmp_path, ids(3)), column="tokens"))
    (tmp_path / "a.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(ConfigError, match="body"):
        load(sources.JSONL(str(tmp_path / "a.jsonl")), tokenizer=byte_tokenizer())


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32])
def test_a_token_id_beyond_the_vocabulary_is_named_or_skipped(dtype: Any) -> None:
    documents = [tokens.astype(dtype) for tokens in ids(5, 5, 5)]
    documents[1] = documents[1] + dtype(100)
    with pytest.raises(ContentError, match=r"document 1 of .* token id 100") as raised:
        load(MemorySource([documents]), vocab_size=50)
    says(raised.value)
    metrics = load(MemorySource([documents]), vocab_size=50, on_error="skip").metrics()
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
    loader = load(MemorySource([ids(3, 60_000, 5)]), packer=packer(seq_len=16), eos_id=1)
    assert loader.metrics().composition.placed == 60_008


def test_a_tokenizer_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    for wrong in (tmp_path / "tokenizer.json", "gpt2", 3):
        with pytest.raises(ConfigError) as raised:
            load(["a text"], tokenizer=wrong)
        says(raised.value)


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tokenizer"):
        load(["a text"])


def test_ranks_that_do_not_divide_the_lanes_are_refused() -> None:
    with pytest.raises(ConfigError, match="Use 1, 2, 4, 8 ranks") as raised:
        load(MemorySource([ids(5)]), lanes=8, topology=Topology(2, 3))
    says(raised.value)


def test_overlong_documents_can_be_an_error_that_names_them() -> None:
    packer = BestFitDecreasing(seq_len=16, overflow="error")
    with pytest.raises(PlanError, match="Document 1 of shard 0 has 40 tokens"):
        load(MemorySource([ids(5, 40)]), packer=packer, shuffle=False)
    with pytest.raises(PlanError, match="Document 0 of shard 0 has 9999 tokens"):
        load(MemorySource([ids(9999)]), packer=packer)  # more than the window could hold


def test_pad_without_an_eos_id_is_refused_because_it_would_insert_one() -> None:
    with pytest.raises(ConfigError, match="Pass eos_id="):
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
        {"window": 3},
        {"packer": 3},
        {"topology": (0, 1)},
        {"attention": "diagonal"},
        {"pad_id": -1},
        {"pad_id": 1 << 32},
        {"eos_id": 1.5},
        {"eos_id": -5, "eos": "append"},
        {"vocab_size": 0},
        {"epochs": 0},
        {"lanes": -1},
        {"on_error": "ignore"},
        {"eos": "append"},
        {"packer": BestFitDecreasing(seq_len=16), "batch_tokens": 8},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        load(MemorySource([ids(5)]), **options)
    says(raised.value)


def test_a_corpus_broken_throughout_does_not_pass_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' + "not json\n" * 1500)
    with pytest.raises(ContentError, match="1000 broken documents"):
        load(str(path), tokenizer=byte_tokenizer(), on_error="skip")
