"""A conversion that is continued trusts no file of the destination that has changed since."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import convert
from streampack.conversion.convert import Progress, convert_source
from streampack.conversion.shards import Destination
from streampack.corpus_order.work import Work
from streampack.errors import ConfigError
from tests.support.conversions import content, conversion, documents_in, documents_of
from tests.support.program import output_of
from tests.support.servers import S3Server

SIZES: Any = {"part_bytes": 25_000, "shard_bytes": 9_000}


class StopError(Exception):
    pass


def stopped(lines: Path, out: Path | Destination, parts: int) -> None:
    """Convert this many parts."""

    def stop(progress: Progress) -> None:
        if progress.parts == parts:
            raise StopError

    with pytest.raises(StopError):
        convert_source(conversion(lines, out, **SIZES), workers=1, report=stop)


@pytest.fixture(scope="module")
def whole(lines: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    assert convert_source(conversion(lines, out, **SIZES), workers=1).parts == 4
    return out


@pytest.fixture(scope="module")
def begun(lines: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conversion with three of four parts."""
    stopped(lines, out := tmp_path_factory.mktemp("begun"), 3)
    return out


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "zeroed": lambda data: bytes(len(data)),
    "flipped": flipped,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("state", ["begun", "whole"])
def test_a_damaged_file_costs_its_part_or_is_an_error(
    state: str, damage: str, lines: Path, begun: Path, whole: Path, tmp_path: Path
) -> None:
    before = begun if state == "begun" else whole
    for name in content(before):
        out = Path(shutil.copytree(before, tmp_path / name.replace("/", "-")))
        (out / name).write_bytes(DAMAGES[damage]((out / name).read_bytes()))
        try:
            convert_source(conversion(lines, out, **SIZES), workers=1)
        except ConfigError:
            assert name in (".streampack/conversion.json", "_conversion.json")
            continue
        found = content(out)
        if name == "_conversion.json":
            found.pop(name)
        assert {**content(whole), **found} == content(whole)
        assert documents_of(out) == documents_in(lines)


def test_a_finished_part_with_whole_files_is_not_converted_twice(
    lines: Path, begun: Path, whole: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(begun, tmp_path / "out"))
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("part-0000[0-2]*")}
    (out / "part-00001-00000.parquet").write_bytes(b"")
    convert_source(conversion(lines, out, **SIZES), workers=1)
    again = {path for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp}
    assert again == {path for path in stamps if path.name.startswith("part-00001")}
    assert content(out) == content(whole)


def test_a_part_is_reconverted_if_its_input_was_rewritten(lines: Path, tmp_path: Path) -> None:
    source, out = Path(shutil.copytree(lines, tmp_path / "in")), tmp_path / "out"
    stopped(source, out, 3)
    text = (source / "0.jsonl").read_text()
    (source / "0.jsonl").write_text(text.replace("1", "2"))  # of the same size
    convert_source(conversion(source, out, **SIZES), workers=1)
    assert documents_of(out) == documents_in(source)


def test_other_items_in_memory_are_not_taken_for_the_converted_ones(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    first, second = ([rng.integers(0, 99, 50).tolist() for _ in range(400)] for _ in range(2))
    out = str(tmp_path / "out")
    done = convert(first, out, workers=1)
    assert convert(list(first), out, workers=1) == done
    with pytest.raises(ConfigError) as caught:
        convert(second, out, workers=1)
    assert caught.value.setting == "destination"
    assert documents_of(tmp_path / "out") == first


def test_a_conversion_begun_by_an_older_version_is_continued(
    lines: Path, begun: Path, whole: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(begun, tmp_path / "out"))
    for path in out.glob(".streampack/part-*.json"):
        note = json.loads(path.read_text())
        del note["checksum"], note["input"]
        note["shards"] = [shard[:5] for shard in note["shards"]]
        path.write_text(json.dumps(note))
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("part-0000[0-2]*")}
    convert_source(conversion(lines, out, **SIZES), workers=1)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert documents_of(out) == documents_in(lines)


def test_a_repeated_command_reports_that_it_has_ended(lines: Path, tmp_path: Path) -> None:
    command = ("convert", lines, tmp_path / "out", "--tokens", "ids", "--workers", "1")
    output_of(*command)
    before = content(tmp_path / "out")
    assert "already" in output_of(*command)
    assert content(tmp_path / "out") == before


def test_shards_in_a_store_are_checked_too(lines: Path, whole: Path, s3: S3Server) -> None:
    url = f"s3://{s3.bucket}/power/out"
    stopped(lines, Destination(url), 3)
    names = [name for name in Destination(url).names() if name.startswith("part-")]
    for name, damage in zip(names, DAMAGES.values(), strict=False):
        key = {"Bucket": s3.bucket, "Key": f"power/out/{name}"}
        data = s3.client.get_object(**key)["Body"].read()
        s3.client.put_object(**key, Body=damage(data))
    destination = Destination(url)
    convert_source(conversion(lines, destination, **SIZES), workers=1)
    assert {name: destination.read(name) for name in destination.names()} == content(whole)


def test_a_cut_note_of_an_order_counts_as_missing(tmp_path: Path) -> None:
    files = Work(tmp_path)
    files.note("a.json", {"documents": 3})
    assert files.read("a.json") == {"documents": 3}
    files.path("a.json").write_bytes(b"")
    assert files.read("a.json") == {}
    assert not files.has("a.json")
