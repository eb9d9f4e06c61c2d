"""A Delta table has at each version the rows that its own library finds there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streampack import PackedDataset, PackedLoader, sources
from streampack.errors import ConfigError, StateError
from streampack.sources.error_policy import ErrorPolicy
from tests.support.corpora import byte_tokenizer
from tests.support.source_contract import assert_source_contract
from tests.tables.conftest import Unpacked


def rows_of(source: Any) -> list[list[Any]]:
    """Key, text and partition of every row of a source with `record`."""
    source.prepare()
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    texts = [text for block, _ in lane.read(None, ErrorPolicy()) for text in block.texts]
    return sorted(json.loads(text) for text in texts)


def record(row: dict[str, Any]) -> dict[str, Any]:
    day = row["day"] and str(row["day"])
    return {"text": json.dumps([row["key"], row["text"], row["lang"], day])}


VERSIONS = 23


@pytest.fixture
def table(unpacked: Callable[[str], Unpacked]) -> Unpacked:
    return unpacked("delta")


def test_every_version_has_the_rows_that_deltalake_finds(table: Unpacked) -> None:
    path, expected = table
    assert len(expected) == VERSIONS
    for version, rows in expected.items():
        source = sources.Delta(str(path), version=version)
        found = rows_of(sources.open(source, records=record))
        assert found == sorted(rows), version


def test_a_table_with_deletion_vectors_is_a_source_like_others(table: Unpacked) -> None:
    path, expected = table
    source = sources.Delta(str(path), version=VERSIONS - 1, text="text")
    source.prepare()
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    named = [
        (int(origin["shard"]), int(origin["index"]), text)
        for block, _ in lane.read(None, ErrorPolicy())
        for origin, text in zip(block.origin, block.texts, strict=True)
    ]
    assert_source_contract(source, [text for *_, text in sorted(named)])
    assert sorted(text for *_, text in named) == sorted(row[1] for row in expected[VERSIONS - 1])


def test_the_folder_of_a_table_is_read_at_its_newest_version(table: Unpacked) -> None:
    path, _ = table
    source = sources.open(str(path), text="text")
    assert isinstance(source, sources.Delta)
    assert source.describe()["version"] == VERSIONS - 1
    for other in (path.parent, path / "lang=de", path / "*.parquet"):
        with pytest.raises(ConfigError) as caught:
            sources.open(str(other), text="text")
        assert str(path) in caught.value.remedy or other == path / "*.parquet"


def test_a_path_resumes_at_the_version_of_its_state_and_another_version_is_refused(
    table: Unpacked,
) -> None:
    path, _ = table
    later = [path / "_delta_log" / f"{version:020}.json" for version in range(17, VERSIONS)]
    for commit in later:
        commit.rename(commit.with_suffix(".away"))

    def loader(source: Any) -> PackedLoader:
        options: Any = {"seq_len": 64, "batch_size": 2, "tokenizer": byte_tokenizer()}
        return PackedLoader(PackedDataset(source, text="text", lanes=2, **options))

    run = loader(str(path))
    batches = iter(run)
    for _ in range(7):
        next(batches)
    state, rest = run.state_dict(), [batch.input_ids.tolist() for batch in batches]
    for commit in later:
        commit.with_suffix(".away").rename(commit)
    again = loader(str(path))
    again.load_state_dict(state)
    assert [batch.input_ids.tolist() for batch in again] == rest
    newer = sources.Delta(str(path), version=VERSIONS - 1, text="text")
    more: Any = {"seq_len": 64, "batch_size": 2, "tokenizer": byte_tokenizer(), "lanes": 2}
    other = PackedLoader(PackedDataset(newer, **more))
    for allow, settings in (((), ("source.version", "source.manifest")), (("source",), ("key",))):
        with pytest.raises(StateError) as caught:
            other.load_state_dict(state, allow=allow)
        assert caught.value.setting in settings


def appended(path: Path, *actions: dict[str, Any]) -> None:
    """Commit these actions."""
    log = path / "_delta_log"
    (log / f"{VERSIONS:020}.json").write_text("\n".join(map(json.dumps, actions)))


def metadata(path: Path) -> dict[str, Any]:
    """The latest metadata of a table."""
    actions = [
        json.loads(line)
        for commit in sorted((path / "_delta_log").glob("*.json"))
        for line in commit.read_text().splitlines()
    ]
    latest: dict[str, Any] = [each["metaData"] for each in actions if "metaData" in each][-1]
    return latest


def test_features_that_are_not_supported_are_refused_by_name(table: Unpacked) -> None:
    path, _ = table
    mapped = {**metadata(path), "configuration": {"delta.columnMapping.mode": "name"}}
    reader = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": []}
    for actions, word in [
        ([{"metaData": mapped}], "columnMapping"),
        ([{"protocol": {**reader, "readerFeatures": ["typeWidening"]}}], "typeWidening"),
        ([{"protocol": {**reader, "minReaderVersion": 4}}], "version 4"),
    ]:
        appended(path, *actions)
        with pytest.raises(ConfigError) as caught:
            sources.open(str(path), text="text")
        assert caught.value.path == str(path)
        assert word in caught.value.fact
        assert sources.open(sources.Delta(str(path), version=VERSIONS - 1, text="text"))
    (path / "_delta_log" / f"{VERSIONS:020}.json").unlink()
    for version in (VERSIONS, 10**9):
        with pytest.raises(ConfigError) as caught:
            sources.Delta(str(path), version=version).prepare()
        assert caught.value.setting == "version"
    for version in range(6):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(ConfigError) as caught:  # the checkpoint of version 6 stays
        sources.Delta(str(path), version=5).prepare()
    assert caught.value.setting == "version"
    sources.Delta(str(path), version=7, text="text").prepare()


def test_a_checkpoint_of_version_2_is_refused_by_name(table: Unpacked) -> None:
    path, _ = table
    log = path / "_delta_log"
    for version in range(7):
        (log / f"{version:020}.json").unlink()
    name = "00000000000000000006.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (log / f"{6:020}.checkpoint.parquet").rename(log / name)
    with pytest.raises(ConfigError) as caught:
        sources.Delta(str(path), version=8).prepare()
    assert "v2Checkpoint" in caught.value.fact


def test_a_damaged_log_or_deletion_vector_reads_no_deleted_row(table: Unpacked) -> None:
    path, _ = table
    (vector,) = sorted(path.glob("deletion_vector_*.bin"))[:1]
    data = bytearray(vector.read_bytes())
    data[20] ^= 1
    vector.write_bytes(data)
    refused = 0
    for version in range(20, VERSIONS):
        try:
            sources.Delta(str(path), version=version, text="text").prepare()
        except ConfigError as error:
            refused += error.path is not None
    assert refused
    commit = path / "_delta_log" / f"{1:020}.json"
    commit.write_text(commit.read_text()[:-40])
    with pytest.raises(ConfigError) as caught:
        sources.Delta(str(path), version=2, text="text").prepare()
    assert caught.value.path == str(commit)


def test_where_is_pushed_to_partitions_and_statistics_of_the_log(table: Unpacked) -> None:
    path, expected = table
    condition = 'lang == "de" and key >= 700 and day >= date("2024-01-08")'
    source = sources.Delta(str(path), version=VERSIONS - 1, text="text", where=condition)
    rows = [r for r in expected[VERSIONS - 1] if r[2] == "de" and r[0] >= 700 and r[3]]
    rows = [text for _, text, _, day in rows if day >= "2024-01-08"]
    source.prepare()
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    texts = [text for block, _ in lane.read(None, ErrorPolicy()) for text in block.texts]
    assert sorted(texts) == sorted(rows)
    whole = sources.Delta(str(path), version=VERSIONS - 1, text="text")
    whole.prepare()
    assert len(source.manifest) < len(whole.manifest) // 3
    with pytest.raises(ConfigError) as caught:
        sources.Delta(str(path), text="text", where='lang == "xx"').prepare()
    assert caught.value.setting == "where"
