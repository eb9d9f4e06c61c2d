"""A Delta table has at each version the rows that its own library finds there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from streampack import sources
from streampack.errors import ConfigError
from streampack.sources.error_policy import ErrorPolicy
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
