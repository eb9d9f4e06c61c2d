"""Files decoded once per host: by one process, whole or not at all, and never required."""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from streampack import PackedDataset, PackedLoader, Topology
from streampack.errors import StorageError
from streampack.sources.error_policy import ErrorPolicy
from streampack.storage.blocks import BLOCK_BYTES, BlockCache
from streampack.storage.files import LocalFile, StoredFile
from streampack.storage.growing import THREAD_NAME
from streampack.storage.locks import Lock
from streampack.storage.storage import Storage
from tests.support.whole_files import LAYOUTS, small_files_count

FORK = multiprocessing.get_context("fork")
CONTENT = bytes(range(256)) * 4000
WAIT_S = 60
LANES = 6


@pytest.fixture(autouse=True)
def _small_files_count(monkeypatch: pytest.MonkeyPatch) -> None:
    small_files_count(monkeypatch.setattr)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., PackedDataset]:
    write, kind, codec = LAYOUTS[request.param]
    path = tmp_path / request.param
    write(path, codec)

    def dataset(storage: Storage, lanes: int = LANES) -> PackedDataset:
        return PackedDataset(
            kind(path, storage=storage), seq_len=512, batch_size=2, lanes=lanes, topology=Topology()
        )

    return dataset


def batches(dataset: PackedDataset | PackedLoader) -> Iterator[list[int]]:
    for batch in dataset:
        yield batch.input_ids.flatten().tolist()


def finish() -> None:
    """Wait until files being decoded have their final names."""
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join(WAIT_S)


def logged(caplog: pytest.LogCaptureFixture, words: str) -> int:
    finish()
    return sum(words in message for message in caplog.messages)


def is_read_whole(tmp_path: Path) -> bool:
    """Tars, which are numbered from their first byte, and MDS, which has a table."""
    return bool([*tmp_path.glob("*.tar.*"), *tmp_path.glob("mds")])


@pytest.mark.sampled(3)
def test_lanes_that_share_a_file_decode_it_once_and_a_single_lane_copies_no_lines_or_rows(
    layout: Callable[..., PackedDataset], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    alone = Storage(cache_dir=tmp_path / "alone")
    assert list(batches(layout(alone, lanes=1)))
    assert logged(caplog, "decoded into the cache") == is_read_whole(tmp_path)
    caplog.clear()
    first = list(batches(layout(Storage(cache_dir=tmp_path / "cache"))))
    assert logged(caplog, "decoded into the cache") == 1
    assert list(batches(layout(Storage(cache_dir=tmp_path / "cache")))) == first
    assert logged(caplog, "decoded into the cache") == 1


def test_a_row_group_of_few_parts_is_not_copied_and_has_the_same_documents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write, kind, codec = LAYOUTS["rows.parquet"]
    write(tmp_path / "rows.parquet", codec)
    read = []
    for lanes, copies in ((1, 0), (3, 0), (4, 0), (9, 1)):
        caplog.clear()
        storage = Storage(cache_dir=tmp_path / str(lanes))
        parts = kind(tmp_path / "rows.parquet", storage=storage).lanes(
            lanes, seed=0, epoch=0, shuffle=False
        )
        blocks = (block for part in parts for block, _ in part.read(None, ErrorPolicy()))
        read.append([token for block in blocks for token in block.tokens.tolist()])
        assert logged(caplog, "decoded into the cache") == copies
    assert read[1:] == read[:1] * 3


@pytest.mark.sampled(3)
def test_without_room_the_batches_are_the_same_with_one_line_on_the_cost_or_an_error_is_named(
    layout: Callable[..., PackedDataset], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = list(batches(layout(Storage(cache_dir=tmp_path / "cache"))))
    (tmp_path / "no-folder").touch()
    for storage in (
        Storage(cache_dir=tmp_path / "small", cache_limit_bytes=1 << 18),
        Storage(cache_dir=tmp_path / "no-folder"),
    ):
        caplog.clear()
        if is_read_whole(tmp_path):
            with pytest.raises(StorageError, match="cache"):
                list(batches(layout(storage)))
        else:
            assert list(batches(layout(storage))) == expected
        assert logged(caplog, "cache_limit_bytes") == 1
    assert blocks(tmp_path / "small") == []


def blocks(cache: Path) -> list[Path]:
    return [*cache.glob("blocks/*/[!.]*")]


@pytest.mark.sampled(3)
def test_a_cache_that_is_removed_under_a_run_changes_no_batch(
    layout: Callable[..., PackedDataset], tmp_path: Path
) -> None:
    expected = list(batches(layout(Storage(cache_dir=tmp_path / "cache"))))
    found = []
    for batch in batches(layout(Storage(cache_dir=tmp_path / "again"))):
        found.append(batch)
        if len(found) % 20 == 15:
            shutil.rmtree(tmp_path / "again", ignore_errors=True)
    assert found == expected


@pytest.mark.sampled(3)
def test_states_resume_with_the_cache_and_without_it(
    layout: Callable[..., PackedDataset], tmp_path: Path
) -> None:
    storage = Storage(cache_dir=tmp_path / "cache")
    loader = PackedLoader(layout(storage))
    every, states = [], []
    for batch in loader:
        every.append(batch.input_ids.flatten().tolist())
        states.append(loader.state_dict() if len(every) in (8, 51) else None)
    without = Storage(cache_dir=tmp_path / "other", cache_limit_bytes=1)
    for step, other in ((7, storage), (50, storage if is_read_whole(tmp_path) else without)):
        resumed = PackedLoader(layout(other))
        resumed.load_state_dict(states[step])
        assert list(batches(resumed)) == every[step + 1 :]


# One file, several processes


Make = Callable[[StoredFile, IO[bytes]], None]


def read(storage: Storage, path: Path, make: Make) -> bytes | None:
    copy = storage.decoded(LocalFile(path), "twice", make)
    try:
        assert not copy.fault()
        found = copy.read(0, copy.num_bytes)
    except StorageError:
        found = None
    finish()
    return found


def whole(_file: StoredFile, out: IO[bytes]) -> None:
    out.write(CONTENT)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "shard"
    path.write_bytes(b"x")
    return path


def ended(child: Any) -> int | None:
    child.start()
    child.join(WAIT_S)
    return child.exitcode  # type: ignore[no-any-return]


def test_who_is_killed_while_decoding_leaves_nothing_that_is_read(
    shard: Path, tmp_path: Path
) -> None:
    storage = Storage(cache_dir=tmp_path / "cache")

    def half(_file: StoredFile, out: IO[bytes]) -> None:
        out.write(b"y" * (len(CONTENT) * 2))
        os.kill(os.getpid(), signal.SIGKILL)

    assert ended(FORK.Process(target=read, args=(storage, shard, half))) == -signal.SIGKILL
    assert blocks(tmp_path / "cache")
    (tmp_path / "cache" / "blocks").rename(tmp_path / "kept")

    def right(_file: StoredFile, out: IO[bytes]) -> None:
        out.write(b"y" * (len(CONTENT) * 2))
        out.write(CONTENT)

    expected = read(storage, shard, right)
    (tmp_path / "cache" / "blocks").rename(tmp_path / "other")
    (tmp_path / "kept").rename(tmp_path / "cache" / "blocks")
    assert read(Storage(cache_dir=tmp_path / "cache"), shard, right) == expected


def test_a_file_is_read_as_it_grows_and_its_maker_may_be_killed_meanwhile(
    shard: Path, tmp_path: Path
) -> None:
    storage, half = Storage(cache_dir=tmp_path / "cache"), len(CONTENT) // 2

    def stopped(_file: StoredFile, out: IO[bytes]) -> None:
        out.write(CONTENT[:half])
        signal.pause()  # for ever, so the bytes read next come from an incomplete file

    maker = FORK.Process(target=read, args=(storage, shard, stopped))
    maker.start()
    while not blocks(tmp_path / "cache"):
        maker.join(0.01)
        assert maker.is_alive()
    copy = storage.decoded(LocalFile(shard), "twice", whole)
    assert copy.has(BLOCK_BYTES)
    assert copy.view(0, BLOCK_BYTES) == CONTENT[:BLOCK_BYTES]
    os.kill(maker.pid or 0, signal.SIGKILL)
    assert copy.has(len(CONTENT))
    assert not copy.has(len(CONTENT) + 1)
    assert copy.view(0, len(CONTENT)) == CONTENT
    maker.join(WAIT_S)


def test_a_block_that_is_evicted_or_damaged_is_remade(shard: Path, tmp_path: Path) -> None:
    storage = Storage(cache_dir=tmp_path / "cache")
    assert read(storage, shard, whole) == CONTENT
    first, second, *_ = sorted(blocks(tmp_path / "cache"), key=lambda path: path.name)[1:]
    first.unlink()
    second.write_bytes(bytes(second.stat().st_size))
    assert read(Storage(cache_dir=tmp_path / "cache"), shard, whole) == CONTENT


def test_an_interrupt_before_a_content_is_made_leaves_it_to_others(
    shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(cache_dir=tmp_path / "cache")
    making = BlockCache.making
    copy = storage.decoded(LocalFile(shard), "twice", whole)

    with monkeypatch.context() as patch:

        def then_interrupted(cache: BlockCache, key: str) -> Lock | None:
            lock = making(cache, key)
            patch.setattr(BlockCache, "get", lambda *_: signal.raise_signal(signal.SIGINT))
            return lock

        patch.setattr(BlockCache, "making", then_interrupted)
        with pytest.raises(KeyboardInterrupt):
            copy.begin(0)
    lock = Storage(cache_dir=tmp_path / "cache")._cache().making(copy.version[0])
    assert lock is not None
    lock.remove()


def test_processes_that_need_a_file_at_once_make_it_once(shard: Path, tmp_path: Path) -> None:
    storage = Storage(cache_dir=tmp_path / "cache")

    def counted(file: StoredFile, out: IO[bytes]) -> None:
        with open(tmp_path / "made", "a") as made:
            made.write("once\n")
        whole(file, out)

    def check() -> None:
        assert read(storage, shard, counted) == CONTENT

    children = [FORK.Process(target=check) for _ in range(6)]
    for child in children:
        child.start()
    for child in children:
        child.join(WAIT_S)
    assert [child.exitcode for child in children] == [0] * 6
    assert (tmp_path / "made").read_text() == "once\n"


def test_a_full_disk_makes_nothing(shard: Path, tmp_path: Path) -> None:
    storage = Storage(cache_dir=tmp_path / "cache")

    def check() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES // 2, resource.RLIM_INFINITY))
        assert read(storage, shard, whole) is None

    assert ended(FORK.Process(target=check)) == 0
    assert blocks(tmp_path / "cache") == []
    assert read(storage, shard, whole) == CONTENT


def test_a_file_that_is_replaced_is_redecoded(shard: Path, tmp_path: Path) -> None:
    storage = Storage(cache_dir=tmp_path / "cache")
    assert read(storage, shard, whole) == CONTENT
    other = tmp_path / "other"
    other.write_bytes(b"z")
    other.rename(shard)

    def new(_file: StoredFile, out: IO[bytes]) -> None:
        out.write(b"new")

    assert read(storage, shard, new) == b"new"
