"""Parts decide the result of a conversion, and processes do not; a kill costs the parts in hand."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.conversion.convert import Progress, convert_source
from streampack.conversion.shards import Destination
from streampack.errors import ConfigError, ContentError, StateError, WorkerError
from tests.support.conversions import (
    OPTIONS,
    Dying,
    content,
    conversion,
    documents_in,
    documents_of,
    written,
)  # fmt: skip
from tests.support.drawn import drawn
from tests.support.program import output_of


@pytest.fixture(scope="module")
def whole(lines: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    done = convert_source(conversion(lines, out), workers=1)
    assert done.parts == done.num_parts > 8
    return out


def test_shards_are_named_by_part_and_hold_every_document_once_in_order(
    lines: Path, whole: Path
) -> None:
    names = sorted(content(whole).keys() - {"_conversion.json"})
    assert names[:2] == ["part-00000-00000.parquet", "part-00000-00001.parquet"]
    found = [row for name in names for row in pq.read_table(whole / name)["tokens"].to_pylist()]
    assert found == documents_in(lines)


def test_three_workers_write_the_bytes_of_one(lines: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[Progress] = []
    done = convert_source(conversion(lines, out), workers=3, report=seen.append)
    assert content(out) == content(whole)
    assert done.documents == len(documents_in(lines))
    assert [progress.parts for progress in seen] == [*range(done.num_parts + 1)]


@drawn(30)
@given(
    part_bytes=st.integers(300, 40_000),
    shard_bytes=st.integers(100, 20_000),
    rows=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=40), min_size=1, max_size=80),
)
def test_any_sizes_of_parts_and_shards_keep_all_documents_in_order(
    tmp_path_factory: pytest.TempPathFactory, part_bytes: int, shard_bytes: int, rows: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "in").mkdir()
    (folder / "in" / "a.jsonl").write_text("".join(json.dumps({"ids": r}) + "\n" for r in rows))
    sizes = {"part_bytes": part_bytes, "shard_bytes": shard_bytes}
    convert_source(conversion(folder / "in", folder / "out", **sizes), workers=1)
    shards = sorted((folder / "out").glob("*.parquet"))
    found = [row for shard in shards for row in pq.read_table(shard)["tokens"].to_pylist()]
    assert found == rows
    for shard in shards:
        ids = pq.read_table(shard)["tokens"].to_pylist()
        assert len(ids) == 1 or sum(16 + 4 * len(i) for i in ids) <= shard_bytes


def test_all_parts_have_the_dtype_of_the_first_block(tmp_path: Path) -> None:
    rows = pa.array([[n, 7] * 20 for n in range(300)], pa.list_(pa.uint16()))
    pq.write_table(pa.table({"ids": rows}), tmp_path / "in.parquet", row_group_size=50)
    job = conversion(tmp_path / "in.parquet", tmp_path / "out", part_bytes=500)
    assert convert_source(job, workers=1).parts > 3
    schemas = {pq.read_schema(shard) for shard in (tmp_path / "out").glob("*.parquet")}
    assert [str(schema.field("tokens").type.value_type) for schema in schemas] == ["uint16"]


def worker_killed(lines: Path, folder: Path, at: int) -> dict[str, bytes]:
    out, marker = folder / f"out-{at}", folder / f"marker-{at}"
    job = conversion(lines, Dying(out, marker, at))
    convert_source(job, workers=2)
    assert len([*marker.iterdir()]) == 1
    return content(out)


def test_a_killed_worker_costs_the_parts_in_hand(lines: Path, whole: Path, tmp_path: Path) -> None:
    assert worker_killed(lines, tmp_path, 4) == content(whole)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(10))
def test_a_worker_that_is_killed_at_any_of_ten_files_changes_nothing(
    lines: Path, whole: Path, tmp_path: Path, at: int
) -> None:
    assert worker_killed(lines, tmp_path, at) == content(whole)


@pytest.mark.slow
def test_workers_that_die_repeatedly_are_an_error_and_finished_parts_stay(
    lines: Path, whole: Path, tmp_path: Path
) -> None:
    out, marker = tmp_path / "out", tmp_path / "marker"
    with pytest.raises(WorkerError):
        convert_source(conversion(lines, Dying(out, marker, 0, times=100)), workers=2)
    assert len([*marker.iterdir()]) >= 4
    convert_source(conversion(lines, out), workers=1)
    assert content(out) == content(whole)


def driver_killed(lines: Path, out: Path, files: int) -> None:
    """Kill the command once there are this many shards and notes, and run it to its end."""
    command = [sys.executable, "-m", "streampack", "convert", str(lines), str(out), *OPTIONS]
    with subprocess.Popen([*command, "--workers", "2"], stderr=subprocess.PIPE) as process:
        while process.poll() is None and written(out) < files:
            time.sleep(0.001)
        process.kill()
        process.stderr.read()  # its workers hold it open until they end
    assert process.returncode == -signal.SIGKILL
    finished = {path.stem for path in out.glob(".streampack/part-*")}
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    output_of(*command[3:], "--workers", "1")
    for path, stamp in stamps.items():
        if path.stem[:10] in finished:
            assert path.stat().st_mtime_ns == stamp


def test_a_killed_command_ends_its_workers_and_goes_on_after_the_finished_parts(
    lines: Path, whole: Path, tmp_path: Path
) -> None:
    driver_killed(lines, tmp_path / "out", 12)
    assert documents_of(tmp_path / "out") == documents_of(whole)


@pytest.mark.slow
@pytest.mark.parametrize("files", range(1, 29, 3))
def test_a_command_that_is_killed_at_any_of_ten_places_goes_on(
    lines: Path, whole: Path, tmp_path: Path, files: int
) -> None:
    driver_killed(lines, tmp_path / "out", files)
    assert documents_of(tmp_path / "out") == documents_of(whole)


def stopped(lines: Path, out: Path, **options: Any) -> None:
    """Convert three parts."""

    class StopError(Exception):
        pass

    def report(progress: Progress) -> None:
        if progress.parts == 3:
            raise StopError

    with pytest.raises(StopError):
        convert_source(conversion(lines, out, **options), workers=1, report=report)


def test_another_size_of_parts_or_another_source_is_an_error(lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stopped(lines, out)
    before = content(out)
    other = tmp_path / "other"
    other.mkdir()
    (other / "0.jsonl").write_bytes((lines / "0.jsonl").read_bytes())
    for setting, source, options in (
        ("part_bytes", lines, {"part_bytes": 9_001}),
        ("source", other, {}),
        ("shard_bytes", lines, {"shard_bytes": 7_000}),
        ("dtype", lines, {"dtype": "uint16"}),
    ):
        with pytest.raises(ConfigError) as caught:
            convert_source(conversion(source, out, **options), workers=1)
        assert caught.value.setting == setting
        assert caught.value.path == str(out)
    assert content(out) == before


def test_a_conversion_of_before_parts_is_not_misread(lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / ".streampack").mkdir(parents=True)
    (out / "part-00000.parquet").write_bytes(b"x")
    (out / ".streampack" / "progress.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        convert_source(conversion(lines, out), workers=1)
    assert caught.value.setting == "destination"
    assert (out / "part-00000.parquet").read_bytes() == b"x"


def test_too_many_parts_are_refused_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"ids": [1]}\n' + " " * 100_000)
    with pytest.raises(ConfigError) as caught:
        conversion(tmp_path / "a.jsonl", tmp_path / "out", part_bytes=1)
    assert caught.value.setting == "part_bytes"


def test_a_broken_document_stops_the_workers_and_finished_parts_stay(
    lines: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for path in sorted(lines.iterdir()):
        (source / path.name).write_bytes(path.read_bytes())
    rows = (source / "1.jsonl").read_text().splitlines()
    whole_row = rows[90]
    rows[90] = whole_row[:-2] + "{}"
    (source / "1.jsonl").write_text("\n".join(rows) + "\n")
    out = tmp_path / "out"
    with pytest.raises(ContentError) as caught:
        convert_source(conversion(source, out), workers=2)
    assert "1.jsonl" in str(caught.value)
    notes = [*out.glob(".streampack/part-*.json")]
    assert notes
    rows[90] = whole_row
    (source / "1.jsonl").write_text("\n".join(rows) + "\n")  # of the same size
    finished = {path.stem for path in notes}
    stamps = {p: p.stat().st_mtime_ns for p in out.glob("part-*") if p.stem[:10] in finished}
    stamps = {p: time for p, time in stamps.items() if p.stem <= "part-00003"}  # of the first file
    assert stamps
    convert_source(conversion(source, out), workers=1)
    assert documents_of(out) == documents_in(lines)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_a_shard_that_disappears_is_rewritten_and_a_foreign_one_is_an_error(
    lines: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    stopped(lines, out)
    (out / "part-00001-00000.parquet").unlink()
    foreign = out / "part-99999.parquet"
    foreign.write_bytes(b"x")
    with pytest.raises(StateError) as caught:
        convert_source(conversion(lines, out), workers=1)
    assert caught.value.path == str(foreign)
    foreign.unlink()
    convert_source(conversion(lines, out), workers=1)
    assert content(out) == content(whole)


def test_a_source_that_cannot_be_sent_to_workers_is_a_named_error(tmp_path: Path) -> None:
    class Local(Destination):
        pass

    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"ids": [1, 2, 3]}\n' * 1000)
    with pytest.raises(ConfigError) as caught:
        convert_source(conversion(folder, Local(str(tmp_path / "out"))), workers=2)
    assert caught.value.setting == "workers"
