"""Damage in every format: files cut short, flipped, empty, replaced or missing."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from streampack.errors import ConfigError, ContentError, StateError, StorageError, StreampackError
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions
from streampack.sources.sharded import ShardedSource
from tests.support.drawn import sampled
from tests.support.every_source import SOURCES
from tests.support.source_contract import Document, read_all

#: All formats in files. In an "open" format a file that ends early may be complete.
FORMATS = {
    "mds-tokens": "closed",
    "mds-text": "closed",
    "mds-zstd": "closed",
    "tar": "closed",
    "tar-gz": "closed",
    "parquet-tokens": "closed",
    "parquet-text": "closed",
    "arrow-stream": "closed",
    "arrow-file": "closed",
    "jsonl": "open",
    "jsonl-gz": "closed",
    "json-array": "closed",
    "megatron": "closed",
    "npy": "closed",
    "raw": "open",
    "datatrove": "closed",
    "chat": "open",
    "chat-parquet": "closed",
}

Corpus = tuple[Callable[[], ShardedSource], list[Document], list[Path]]


def corpus(kind: str, folder: Path) -> Corpus:
    """A function that opens it anew, its documents and its files."""
    unopened = pickle.dumps(SOURCES[kind](folder))

    def make() -> ShardedSource:
        return pickle.loads(unopened)  # type: ignore[no-any-return]

    documents = read_all(make())
    return make, documents, sorted(path for path in folder.rglob("*") if path.is_file())


def assert_named(error: StreampackError, path: Path) -> None:
    """The error names the file, by the part of the name that an index and its data share."""
    assert path.name.split(".")[0] in str(error)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_truncated_file_is_named_and_read_up_to_the_cut(kind: str, tmp_path: Path) -> None:
    make, whole, files = corpus(kind, tmp_path)
    for path in files:
        content = path.read_bytes()
        step = max(1, len(content) // 9)
        for size in sorted({*range(1, len(content), step), len(content) - 1}):
            path.write_bytes(content[:size])
            try:
                found = read_all(make())
            except (ConfigError, ContentError) as error:
                assert_named(error, path)
            else:
                if found == whole:
                    continue  # of a tar only the padding behind its end was cut
                assert FORMATS[kind] == "open", f"a cut at byte {size} of {path} went unnoticed"
                assert found[:-1] == whole[: len(found) - 1]
            skips = ErrorPolicy("skip")
            try:
                found = read_all(make(), skips)
            except ConfigError as error:
                assert_named(error, path)
            else:
                assert skips.counts.skipped or FORMATS[kind] == "open"
                assert len(found) <= len(whole)
                assert FORMATS[kind] == "open" or {*found} <= {*whole}
        path.write_bytes(content)
    assert read_all(make()) == whole


@pytest.mark.sampled
@pytest.mark.parametrize("kind", FORMATS)
def test_flipped_bytes_give_a_named_error_or_other_documents(kind: str, tmp_path: Path) -> None:
    make, whole, files = corpus(kind, tmp_path)
    rng = random.Random(0)
    for path in files:
        content = path.read_bytes()
        for _ in sampled(
            range(120 if "parquet" in kind else 40)
        ):  # bytes that Arrow decodes are hit too
            damaged = bytearray(content)
            for _ in range(rng.randint(1, 3)):
                damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            skips = ErrorPolicy("skip")
            try:
                found = read_all(make(), skips)
            except StreampackError:
                continue
            assert FORMATS[kind] == "open" or len(found) <= len(whole)
        path.write_bytes(content)
    assert read_all(make()) == whole


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_file_is_named_or_gives_nothing(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, whole, files = corpus(kind, tmp_path)
    path = files[-1]
    path.write_bytes(b"")
    try:
        found = read_all(make())
    except (ConfigError, ContentError) as error:
        if len(files) > 1 or FORMATS[kind] == "closed":
            assert_named(error, path)
    else:
        assert len(found) < len(whole)
        assert path.name in caplog.text


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_replaced_after_it_was_listed_is_refused(kind: str, tmp_path: Path) -> None:
    make, _, files = corpus(kind, tmp_path)
    source = make()
    source.prepare()
    path = max(files, key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes() + path.read_bytes())
    with pytest.raises((StateError, ContentError)) as caught:
        read_all(source)
    assert_named(caught.value, path)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_goes_missing_after_it_was_listed_is_named(kind: str, tmp_path: Path) -> None:
    make, _, files = corpus(kind, tmp_path)
    source = make()
    source.prepare()
    path = max(files, key=lambda path: path.stat().st_size)
    path.unlink()
    with pytest.raises(StorageError) as caught:
        read_all(source)
    assert_named(caught.value, path)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_document_longer_than_the_limit_is_one_skip(kind: str, tmp_path: Path) -> None:
    make, whole, _ = corpus(kind, tmp_path)
    lengths = sorted(map(len, whole))
    source = make()
    source.reading = ReadOptions(block_documents=9, max_document_bytes=12 * lengths[-1] // 10)
    skips = ErrorPolicy("skip")
    found = read_all(source, skips)
    assert [document for document in whole if document in found] == found
    assert skips.counts.skipped == len(whole) - len(found)
    with pytest.raises(ContentError) if skips.counts.skipped else nullcontext():
        read_all(source)
    assert FORMATS[kind] == "open" or lengths[0] == min(map(len, found))
