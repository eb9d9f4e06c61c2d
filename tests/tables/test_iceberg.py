"""An Iceberg table has at each snapshot the rows that pyiceberg finds there."""

from __future__ import annotations

import json
import pickle
import random
import struct
import zlib
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, WindowConfig, sources
from streampack.errors import ConfigError
from streampack.formats.tables.deletion_vectors import iceberg_rows
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.records import DamagedFileError
from tests.support.corpora import byte_tokenizer
from tests.tables import runs

pytestmark = pytest.mark.frameworks


def rows(first: int, stop: int, number: str = "score", **more: Any) -> pa.Table:
    keys = range(first, stop)
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "text": [f"document {key}" for key in keys],
            number: pa.array([key % 97 / 97 for key in keys], pa.float64()),
            "lang": [("de", "en", "fr")[key % 3] for key in keys],
            **more,
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """A table of 20 snapshots and more, with renamed, added, dropped and partition columns."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.expressions import EqualTo, GreaterThan, LessThan

    catalog = SqlCatalog(
        "test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    catalog.create_namespace("web")
    made = catalog.create_table("web.pages", schema=rows(0, 1).schema)
    made.append(rows(0, 200))
    made.append(rows(200, 260))
    made.delete(LessThan("key", 20))
    made.overwrite(rows(300, 310), overwrite_filter=EqualTo("lang", "fr"))
    with made.update_schema() as update:
        update.rename_column("score", "quality")
    made.append(rows(400, 420, "quality"))
    with made.update_schema() as update:
        update.add_column("score", update_type("double"))
        update.add_column("added", update_type("long"))
    added: Any = {"score": pa.array(map(float, range(20))), "added": pa.array(range(20))}
    made.append(rows(500, 520, "quality", **added))
    made.delete(GreaterThan("quality", 0.9))
    with made.update_spec() as spec:
        spec.add_identity("lang")
    for n in range(6):
        made.append(rows(600 + 20 * n, 620 + 20 * n, "quality", **added))
        made.delete(EqualTo("key", 600 + 20 * n))
    made.upsert(rows(605, 625, "quality", **added), join_cols=["key"])
    with made.update_schema() as update:
        update.delete_column("added")
    made.overwrite(rows(900, 950, "quality"), overwrite_filter=EqualTo("lang", "de"))
    return catalog.load_table("web.pages")


def update_type(name: str) -> Any:
    from pyiceberg.types import DoubleType, LongType

    return {"double": DoubleType(), "long": LongType()}[name]


def record(row: dict[str, Any]) -> dict[str, Any]:
    names = ("key", "text", "lang", "quality", "score", "added")
    return {"text": json.dumps([row.get(name) for name in names])}


def read(source: Any) -> list[str]:
    source.prepare()
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    return sorted(text for block, _ in lane.read(None, ErrorPolicy()) for text in block.texts)


def test_every_snapshot_has_the_rows_that_pyiceberg_finds(table: Any) -> None:
    snapshots = [each.snapshot_id for each in table.metadata.snapshots]
    assert len(snapshots) >= 20
    for snapshot in snapshots:
        source = sources.Iceberg(table.metadata_location, snapshot_id=snapshot)
        expected = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
        assert read(sources.open(source, records=record)) == sorted(
            record(row)["text"] for row in expected
        )


def test_a_condition_on_a_renamed_column_reads_its_rows(table: Any) -> None:
    answer = table.scan(row_filter="quality >= 0.5 and lang == 'en'").to_arrow()
    source = sources.Iceberg(table, where='quality >= 0.5 and lang == "en"', text="text")
    assert read(source) == sorted(answer["text"].to_pylist())
    assert pickle.loads(pickle.dumps(source)).describe() == source.describe()


def test_a_metadata_file_and_a_table_are_one_source(table: Any) -> None:
    by_file = sources.open(table.metadata_location, text="text")
    assert by_file.describe() == sources.Iceberg(table, text="text").describe()
    dataset = PackedDataset(by_file, seq_len=64, tokenizer=byte_tokenizer())
    assert sum(batch.num_tokens for batch in dataset) > 0
    folder = Path(table.metadata_location.removeprefix("file://")).parent.parent
    with pytest.raises(ConfigError):
        sources.open(str(folder), text="text")
    with pytest.raises(ConfigError) as caught:
        sources.Iceberg(table, snapshot_id=5).prepare()
    assert caught.value.setting == "snapshot_id"


def test_a_deletion_vector_has_the_rows_of_its_bitmap() -> None:
    import pyroaring

    deleted = [0, 5, *range(100, 90_000), 70_000 << 1]
    bitmap = pyroaring.BitMap(deleted)
    bitmap.run_optimize()
    inner = b"\xd1\xd3\x39\x64" + struct.pack("<qI", 1, 0) + bitmap.serialize()
    blob = struct.pack(">i", len(inner)) + inner + struct.pack(">I", zlib.crc32(inner))
    assert iceberg_rows(blob, len(set(deleted)), "a.puffin").tolist() == sorted({*deleted})
    for wrong in (blob[:-1], blob[:40] + b"x" + blob[41:]):
        with pytest.raises(DamagedFileError):
            iceberg_rows(wrong, len(set(deleted)), "a.puffin")


def test_rows_of_delete_files_are_left_out_and_equality_deletes_refused(
    table: Any, tmp_path: Path
) -> None:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table import FileScanTask
    from pyiceberg.typedef import Record

    def delete_file(content: DataFileContent, name: str) -> DataFile:
        return DataFile.from_args(
            content=content, file_path=f"file://{tmp_path}/{name}", file_format=FileFormat.PARQUET,
            partition=Record(), record_count=1, file_size_in_bytes=1,
        )  # fmt: skip

    tasks = list(table.scan().plan_files())
    first, second = (task.file.file_path for task in tasks[:2])
    for name, pairs in {"a": [(first, 3), (second, 0), (first, 1)], "b": [(first, 3)]}.items():
        deletes = {"file_path": [path for path, _ in pairs], "pos": [pos for _, pos in pairs]}
        pq.write_table(pa.table(deletes), tmp_path / name)
    by_position = {delete_file(DataFileContent.POSITION_DELETES, name) for name in "ab"}
    source = sources.Iceberg(table, text="text")
    rows = source._deleted([FileScanTask(task.file, by_position) for task in tasks])
    local = [path.removeprefix("file://") for path in (first, second)]
    assert {path: deleted.tolist() for path, deleted in rows.items()} == {
        local[0]: [1, 3],
        local[1]: [0],
    }
    by_value = {delete_file(DataFileContent.EQUALITY_DELETES, "a")}
    with pytest.raises(ConfigError):
        source._deleted([FileScanTask(tasks[0].file, by_value)])


@pytest.mark.parametrize("seed", range(3))
def test_a_run_over_snapshots_repeats_no_document_and_loses_none(table: Any, seed: int) -> None:
    rng = random.Random(seed)
    snapshots = [each.snapshot_id for each in table.metadata.snapshots]
    chosen = [snapshots[n] for n in sorted(rng.sample(range(len(snapshots)), 4))]
    live, parts, state = [], [], None
    for n, snapshot in enumerate(chosen):
        live.append({*table.scan(snapshot_id=snapshot).to_arrow()["key"].to_pylist()})
        source = sources.Iceberg(table, snapshot_id=snapshot, text="text", key="key")
        dataset = PackedDataset(
            source, seq_len=64, batch_size=2, tokenizer=byte_tokenizer(), lanes=3,
            document_fields={"key": np.int64}, window=WindowConfig(rows=6),
        )  # fmt: skip
        loader = PackedLoader(dataset)
        if state is not None:
            loader.load_state_dict(state, allow={"source"})
        batches = islice(loader, rng.randint(1, 4) if n < 3 else None)
        keys = Counter(key for b in batches for key in b.document_fields["key"].tolist())
        assert not keys.keys() - live[-1]
        parts.append(keys)
        state = json.loads(json.dumps(loader.state_dict()))
    total = sum(parts, Counter[int]())
    assert set(total.values()) == {1}
    assert live[-1] - total.keys() <= {k for a, b in pairwise(live) for k in a - b}


@pytest.fixture(params=["positional deletes", "deletion vectors"])
def deleted_from(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A table of 13 snapshots with delete files; see `write_iceberg`."""
    from tests.tables.write_iceberg import written

    return written(tmp_path, vectors=request.param == "deletion vectors")


def test_delete_files_leave_out_the_rows_that_pyiceberg_leaves_out(deleted_from: Any) -> None:
    from pyiceberg.table import StaticTable

    path = deleted_from.path()
    table = StaticTable.from_metadata(path)
    assert table.metadata.format_version == (3 if deleted_from.vectors else 2)
    assert len(deleted_from.expected) == 13
    for snapshot, keys in deleted_from.expected.items():
        assert {*table.scan(snapshot_id=snapshot).to_arrow()["key"].to_pylist()} == keys
        source = sources.Iceberg(path, snapshot_id=snapshot, where='lang == "de"')
        texts = read(sources.open(source, records=runs.record))
        assert texts == sorted(f"{key}:document {key}" for key in keys if not key % 2)


@pytest.mark.parametrize("seed", range(3))
def test_no_deleted_row_is_in_a_run_over_snapshots_on_any_ranks(
    deleted_from: Any, seed: int
) -> None:
    rng, path = random.Random(seed), deleted_from.path()
    snapshots = [*deleted_from.expected]
    chosen = sorted(rng.sample(range(len(snapshots)), 4 if seed else 8))
    state, parts = None, []
    for n, number in enumerate(chosen):
        source = sources.Iceberg(path, snapshot_id=snapshots[number], key="key")
        keys, state = runs.run(
            sources.open(source, records=runs.record), state,
            rng.randint(1, 3) if n + 1 < len(chosen) else None,
            ranks=rng.choice([1, 2, 3]), num_workers=2 if (seed, n) == (1, 1) else 0,
        )  # fmt: skip
        parts.append(keys)
    known = {n: [[key] for key in deleted_from.expected[snapshots[n]]] for n in chosen}
    runs.check(chosen, parts, known)


def test_a_run_over_a_compaction_needs_no_key(deleted_from: Any) -> None:
    path, snapshots = deleted_from.path(), [*deleted_from.expected]
    chosen = [4, 5, 6]  # an append, deleted rows of it, and a compaction without them
    state, parts = None, []
    for n in chosen:
        source = sources.Iceberg(path, snapshot_id=snapshots[n])
        source = sources.open(source, records=runs.record)
        keys, state = runs.run(source, state, 2 if n < 6 else None, ranks=2)
        parts.append(keys)
    known = {n: [[key] for key in deleted_from.expected[snapshots[n]]] for n in chosen}
    runs.check(chosen, parts, known)


def test_a_snapshot_with_equality_deletes_is_refused_and_the_ones_before_are_read(
    tmp_path: Path,
) -> None:
    from pyiceberg.table.snapshots import Operation

    from tests.tables.write_iceberg import Written

    table = Written(tmp_path, vectors=False)
    table.commit(Operation.APPEND, add=range(20))
    table.commit(Operation.DELETE, by_value=True)
    before, after = table.expected
    with pytest.raises(ConfigError) as refused:
        PackedDataset(
            sources.Iceberg(table.path(), snapshot_id=after), seq_len=64,
            tokenizer=byte_tokenizer(),
        )  # fmt: skip
    assert "equality deletes" in str(refused.value)
    source = sources.Iceberg(table.path(), snapshot_id=before)
    assert len(read(sources.open(source, records=runs.record))) == 20
