"""Bad input of a conversion: named errors, and finished parts stay."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streampack.conversion.convert import Progress, convert_source
from streampack.conversion.shards import Destination
from streampack.errors import ConfigError, ContentError, StorageError
from tests.support.busy_store import busy_store
from tests.support.conversions import (
    content,
    conversion,
    documents_in,
    documents_of,
)  # fmt: skip
from tests.support.servers import S3Server


def test_a_broken_file_is_named_with_its_part_and_skipping_costs_its_documents_alone(
    lines: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "in"
    shutil.copytree(lines, source)
    data = gzip.compress((source / "1.jsonl").read_bytes())
    (source / "1.jsonl").unlink()
    (source / "1.jsonl.gz").write_bytes(data[:-2000])
    with pytest.raises(ContentError) as caught:
        convert_source(conversion(source, tmp_path / "raise"), workers=1)
    assert "part " in caught.value.fact
    assert caught.value.path == str(source / "1.jsonl.gz")
    out = tmp_path / "out"
    done = convert_source(conversion(source, out, on_error="skip"), workers=1)
    assert done.skipped >= 1
    named = [record.getMessage() for record in caplog.records if "skipped" in record.msg]
    assert any("1.jsonl.gz" in message for message in named)
    found, whole = documents_of(out), documents_in(lines)
    assert [row for row in found if row[0] != 1] == [row for row in whole if row[0] != 1]
    kept = [row for row in found if row[0] == 1]
    assert kept == [row for row in whole if row[0] == 1][: len(kept)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_is_a_named_error_and_finished_parts_stay(
    lines: Path, tmp_path: Path, small_disk: Path
) -> None:
    out = small_disk / "out"
    filler = small_disk / "filler"

    def fill(progress: Progress) -> None:
        if progress.parts == 2:
            with pytest.raises(OSError, match="No space"):
                filler.write_bytes(bytes(400_000))

    with pytest.raises(StorageError) as caught:
        convert_source(conversion(lines, out), workers=1, report=fill)
    assert caught.value.path is not None
    assert caught.value.path.startswith(str(out))
    filler.unlink()
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("part-0000[01]-*")}
    assert stamps
    convert_source(conversion(lines, out), workers=1)
    assert documents_of(out) == documents_in(lines)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_a_destination_with_files_is_refused(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "part-00000-00000.parquet").write_bytes(b"x")
    with pytest.raises(ConfigError) as caught:
        convert_source(conversion(lines, tmp_path), workers=1)
    assert caught.value.setting == "destination"
    assert content(tmp_path) == {"part-00000-00000.parquet": b"x"}


def test_a_finished_conversion_is_not_written_over(lines: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(lines, source)
    done = convert_source(conversion(source, out), workers=1)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}

    def assert_as_before() -> None:
        now = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}
        assert now == before

    assert convert_source(conversion(source, out), workers=1) == done
    assert_as_before()
    with pytest.raises(ConfigError) as caught:  # by other settings
        convert_source(conversion(source, out, shard_bytes=4_000), workers=1)
    assert caught.value.setting == "destination"
    text = (source / "1.jsonl").read_text()
    (source / "1.jsonl").write_text(text.replace("5", "6"))  # of the same size
    with pytest.raises(ConfigError) as caught:
        convert_source(conversion(source, out), workers=1)
    assert caught.value.setting == "destination"
    assert_as_before()


def test_a_store_that_refuses_is_a_named_error_and_the_same_call_goes_on(
    lines: Path, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"shard_bytes": 9_000, "part_bytes": 18_000}
    with busy_store(s3.endpoint) as busy:
        for name in ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"):
            monkeypatch.setenv(name, busy.url)
        url = f"s3://{s3.bucket}/out"
        busy.refused["part-00003-00000.parquet"] = 1000
        with pytest.raises(StorageError) as caught:
            convert_source(conversion(lines, Destination(url, retries=0), **few), workers=1)
        assert caught.value.path == f"{url}/part-00003-00000.parquet"
        busy.refused.clear()
        convert_source(conversion(lines, Destination(url), **few), workers=1)
        destination = Destination(url)
        found = {name: destination.read(name) for name in destination.names()}
    convert_source(conversion(lines, tmp_path / "out", **few), workers=1)
    assert found == content(tmp_path / "out")
