"""A run goes on with later versions of a table: every document once, none that was deleted."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, WindowConfig, sources
from streampack.errors import StateError
from tests.tables.conftest import Unpacked
from tests.tables.runs import TOKENIZER, check, record, run

VERSIONS = 23


@pytest.fixture
def table(unpacked: Callable[[str], Unpacked]) -> Unpacked:
    return unpacked("delta")


def at(path: Path, version: int | None, **more: Any) -> Any:
    source = sources.Delta(str(path), version=version, **{"key": "key", **more})
    return sources.open(source, records=record)


@pytest.mark.parametrize(
    "seed",  # 5 has deletion vectors alone, 4 rewrites and a worker
    [4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1, 2, 3, 5, 6, 7))],
)
def test_a_run_over_versions_repeats_no_document_and_loses_none(seed: int, table: Unpacked) -> None:
    path, rows = table
    rng = random.Random(seed)
    versions = sorted(rng.sample(range(VERSIONS), 5))
    state, parts = None, []
    for n, version in enumerate(versions):
        steps = rng.randint(1, 4) if n < 4 else None
        workers = 2 if seed == 4 and n == 2 else 0
        ranks, lanes = rng.choice([1, 2, 3]), 6
        keys, state = run(
            at(path, version), state, steps, ranks=ranks, lanes=lanes, num_workers=workers
        )
        parts.append(keys)
    check(versions, parts, rows)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("epochs", [1, 3])
def test_one_lane_reads_added_files_in_each_epoch_that_it_has_not_ended(
    epochs: int, table: Unpacked
) -> None:
    path, rows = table
    first, state = run(at(path, 1), None, 4, lanes=1, epochs=epochs)
    second, state = run(at(path, 3), state, 3, lanes=1, epochs=epochs)
    third, _ = run(at(path, 8), state, None, lanes=1, epochs=epochs)
    total = first + second + third
    known = [{row[0] for row in rows[version]} for version in (1, 3, 8)]
    assert all(total[key] == epochs for key in known[2])
    assert not third.keys() - known[2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("lanes", "ranks"), [(1, 1), (3, 3)])
def test_an_endless_run_reads_all_files_in_each_epoch(
    lanes: int, ranks: int, table: Unpacked
) -> None:
    path, rows = table
    _, state = run(at(path, 1), None, 40, lanes=lanes, epochs=None, ranks=ranks)
    _, state = run(at(path, 4), state, 60, lanes=lanes, epochs=None)
    keys, _ = run(at(path, 8), state, 400, lanes=lanes, epochs=None)
    live = {row[0] for row in rows[8]}
    assert keys.keys() == live
    counts = np.array([keys[key] for key in live])
    assert lanes > 1 or counts.max() - counts.min() <= 2  # the first and the last are in part


def test_a_state_that_grew_resumes_without_allow_and_gives_the_same_batches(
    table: Unpacked,
) -> None:
    path, _ = table

    def loader(version: int | None, state: Any, allow: Any = ()) -> PackedLoader:
        settings: Any = {"seq_len": 64, "batch_size": 2, "window": WindowConfig(rows=6)}
        dataset = PackedDataset(at(path, version), tokenizer=TOKENIZER, lanes=3, **settings)
        loader = PackedLoader(dataset)
        loader.load_state_dict(json.loads(json.dumps(state)), allow=allow)
        return loader

    _, state = run(at(path, 8), None, 5, lanes=3)
    grown = loader(17, state, {"source"})
    list(islice(grown, 4))
    saved = grown.state_dict()
    rest = [batch.input_ids.tolist() for batch in grown]
    for version in (17, None):
        assert [b.input_ids.tolist() for b in loader(version, saved)] == rest
    with pytest.raises(StateError) as other:
        loader(20, saved)
    assert other.value.setting is not None
    with pytest.raises(StateError) as earlier:
        loader(9, saved, {"source"})
    assert earlier.value.setting == "version"
    assert loader(20, saved, {"source"}).state_dict()["fingerprint"]["source"]["earlier"] == [8, 17]


def test_rewritten_files_need_a_key_and_its_values_differ(table: Unpacked) -> None:
    path, rows = table
    _, state = run(at(path, 0), None, 3)
    parts = [run(at(path, 1, key=None), state, None)[0]]  # an append needs none
    assert parts[0].keys() <= {row[0] for row in rows[1]}
    for key in (None, "lang", "absent"):
        with pytest.raises(StateError) as refused:
            run(at(path, 3, key=key), state, 1)
        assert refused.value.setting == "key"


def test_compaction_is_passed_over_and_files_that_expired_are_refused(table: Unpacked) -> None:
    path, rows = table
    first, state = run(at(path, 4, key=None), None, 3)
    second, _ = run(at(path, 5, key=None), state, None)  # optimize
    check([4, 5], [first, second], rows)
    logged = (path / "_delta_log" / f"{5:020}.json").read_text().splitlines()
    removed = [each["remove"]["path"] for each in map(json.loads, logged) if "remove" in each]
    (path / removed[0]).unlink()
    with pytest.raises(StateError) as expired:
        run(at(path, 5, key=None), state, 1)
    assert expired.value.path == str(path / removed[0])


def test_a_mixture_goes_on_with_later_versions_of_its_tables(table: Unpacked) -> None:
    path, rows = table

    def mixture(version: int) -> Any:
        parts = {"table": at(path, version), "fixed": at(path, 0, where="key < 100")}
        return sources.Mixture(parts, weights={"table": 4, "fixed": 1})

    first, state = run(mixture(4), None, 3, ranks=2)
    second, state = run(mixture(9), state, 3, ranks=3)
    third, _ = run(mixture(16), state, None)
    twice = {row[0] for row in rows[0] if row[0] < 100}
    total = first + second + third
    assert all(total[key] == 1 + (key in twice) for key in {row[0] for row in rows[16]})
    live = {row[0] for row in rows[16]} | twice
    assert not third.keys() - live


def test_documents_are_taken_out_and_rows_left_out_of_every_version(table: Unpacked) -> None:
    path, rows = table
    out = [*range(0, 1100, 7)]

    def source(version: int) -> Any:
        return sources.Delta(
            str(path), version=version, key="key", where="key < 600 or key >= 650", text="text"
        )

    def keys(version: int, state: Any, steps: int | None) -> tuple[Counter[int], Any]:
        dataset = PackedDataset(
            source(version), seq_len=64, batch_size=2, tokenizer=TOKENIZER, lanes=3,
            exclude={"key": out}, document_fields={"key": np.int64}, window=WindowConfig(rows=6),
        )  # fmt: skip
        loader = PackedLoader(dataset)
        if state is not None:
            loader.load_state_dict(state, allow={"source"})
        read = (batch.document_fields["key"].tolist() for batch in islice(loader, steps))
        return Counter(key for some in read for key in some), loader.state_dict()

    known = {
        version: [row for row in of_version if row[0] % 7 and not 600 <= row[0] < 650]
        for version, of_version in rows.items()
    }
    parts, state = [], None
    for version, steps in ((2, 5), (7, 5), (16, 9), (21, None)):
        read, state = keys(version, state, steps)
        parts.append(read)
    check([2, 7, 16, 21], parts, known)


def test_ids_of_rows_are_keys_in_a_table_with_row_tracking(tmp_path: Path) -> None:
    def file(name: str, keys: Iterable[int], first_id: int, **more: Any) -> dict[str, Any]:
        keys = list(keys)
        columns = {"key": keys, "text": [f"document {key}" for key in keys], **more}
        pq.write_table(pa.table(columns), tmp_path / name)
        size = (tmp_path / name).stat().st_size
        return {"path": name, "size": size, "partitionValues": {}, "baseRowId": first_id}

    def commit(version: int, *actions: dict[str, Any]) -> None:
        log = tmp_path / "_delta_log"
        log.mkdir(exist_ok=True)
        (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))

    fields = [{"name": "key", "type": "long"}, {"name": "text", "type": "string"}]
    ids = "_row-id-col-7"
    metadata = {
        "id": "1", "schemaString": json.dumps({"fields": fields}), "partitionColumns": [],
        "configuration": {
            "delta.enableRowTracking": "true",
            "delta.rowTracking.materializedRowIdColumnName": ids,
        },
    }  # fmt: skip
    commit(
        0, {"protocol": {"minReaderVersion": 1}}, {"metaData": metadata},
        {"add": file("a.parquet", range(400), 0)}, {"add": file("b.parquet", range(400, 500), 400)},
    )  # fmt: skip
    kept = [key for key in range(400) if key % 5]
    rewritten = file("c.parquet", [*kept, 900, 901], 500, **{ids: [*kept, None, None]})
    commit(1, {"remove": {"path": "a.parquet", "dataChange": True}}, {"add": rewritten})
    first, state = run(at(tmp_path, 0, key=None), None, 3, lanes=2)
    second, _ = run(at(tmp_path, 1, key=None), state, None, lanes=2)
    now = {*kept, *range(400, 500), 900, 901}
    check([0, 1], [first, second], {0: [[k] for k in range(500)], 1: [[k] for k in now]})
    assert {900, 901} <= second.keys()
