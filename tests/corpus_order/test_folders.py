"""Folders of shards: one command at a time, and an error that names one that cannot be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streampack.conversion.convert import convert_source
from streampack.conversion.settings import Conversion
from streampack.conversion.shards import Destination
from streampack.corpus_order import run_job
from streampack.errors import ConfigError, StorageError
from streampack.sources.reading import ReadOptions
from streampack.sources.resolve import open as open_source
from tests.support.ordered_corpora import make_job, shards_of, write_topics


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "in", count=120)


def ordered(corpus: Path, out: str, report: Callable[..., Any] = lambda *_: None) -> None:
    run_job(make_job(corpus, out), workers=0, report=report)


def ordered_at_a_url(corpus: Path, out: str, report: Callable[..., Any] = lambda *_: None) -> None:
    job = make_job(corpus, f"memory://{out}", work=out)
    run_job(job, workers=0, report=report)


def converted(corpus: Path, out: str, report: Callable[..., Any] = lambda *_: None) -> None:
    source = open_source(str(corpus), reading=ReadOptions(open_shards=1))
    convert_source(Conversion(source=source, destination=Destination(out)), report=report)


WRITE = [ordered, ordered_at_a_url, converted]


@pytest.mark.parametrize("write", WRITE)
def test_a_second_command_in_a_destination_is_refused_and_the_first_ends(
    corpus: Path, tmp_path: Path, write: Callable[..., None]
) -> None:
    refused: list[ConfigError] = []

    def report(*_: Any) -> None:
        if not refused:
            with pytest.raises(ConfigError) as found:
                write(corpus, str(tmp_path / "out"))
            refused.append(found.value)

    write(corpus, str(tmp_path / "out"), report)
    assert [error.setting for error in refused] == ["destination"]
    write(corpus, str(tmp_path / "alone"))
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "alone")
    assert not list(tmp_path.rglob("lock"))


@pytest.mark.parametrize("write", WRITE)
def test_a_folder_that_cannot_be_written_is_named_and_the_remedy_is_not_space(
    corpus: Path, write: Callable[..., None]
) -> None:
    with pytest.raises(StorageError) as found:
        write(corpus, "/proc/streampack")
    assert str(found.value.path).startswith("/proc/streampack")
    assert "space" not in found.value.remedy
