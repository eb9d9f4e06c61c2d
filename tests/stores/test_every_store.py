"""Claims about every object store, each a server process or thread on loopback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, sources
from streampack.errors import ConfigError, StateError, StorageError
from streampack.storage.storage import Storage
from tests.support.stores import Store


@pytest.fixture
def storage(store: Store, tmp_path: Path) -> Storage:
    return Storage(
        cache_dir=tmp_path / "cache", retries=0, timeout_s=20, storage_options=store.options
    )


def test_patterns_name_the_same_files_as_locally(
    store: Store, storage: Storage, tmp_path: Path
) -> None:
    for n, name in enumerate(("a.bin", "b.bin", "x.txt", "deep/c.bin", "deep/er/d.bin"), start=1):
        path = tmp_path / "local" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(n))
    store.write_folder(tmp_path / "local", "listed")
    local = Storage()

    def names(of: Storage, root: str, pattern: str) -> list[tuple[str, int]]:
        infos = of.list(f"{root}/{pattern}".rstrip("/"), endings=(".bin",))
        return [(info.path.partition(f"{root}/")[2], info.num_bytes) for info in infos]

    for pattern in ("", "*.bin", "**/*.bin", "{a,b}.bin", "deep", "deep/*/*.bin", "?.bin", "a.bin"):
        expected = names(local, str(tmp_path / "local"), pattern)
        assert names(storage, f"{store.root}/listed", pattern) == expected, pattern
        assert expected


def test_ranges_and_whole_files_are_read(store: Store, storage: Storage) -> None:
    data = np.random.default_rng(0).bytes(300_000)
    store.write("ranges/a.bin", data)
    url = f"{store.root}/ranges/a.bin"
    assert storage.size(url) == len(data)
    for start, stop in ((0, 1), (5, 70_000), (299_999, 300_000), (7, 7)):
        assert storage.read_range(url, start, stop) == data[start:stop]
    (listed,) = storage.list(f"{store.root}/ranges/*")
    with storage.open(listed) as file:
        assert file.read(0, file.num_bytes) == data


def test_the_start_of_a_file_and_all_of_it_are_read_without_its_size(
    store: Store, tmp_path: Path
) -> None:
    data = np.random.default_rng(0).bytes(300_000)
    for name, content in (("a", data), ("b", data[:9]), ("c", b"")):
        store.write(f"starts/{name}.bin", content)
        url = f"{store.root}/starts/{name}.bin"
        for most in (65_536, None, 400_000) if name == "a" else (1, None):
            storage = Storage(cache_dir=tmp_path, storage_options=store.options)
            assert storage.remote.read_start(url, most) == content[:most]
            assert storage.remote.read_start(url) == content


def test_names_with_marks_of_urls_name_their_files(store: Store, storage: Storage) -> None:
    names = [f"{name}.bin" for name in ("a b", "a+b", "a%20b", "a#b", "a&b=c", "ä,ü")]
    for name in names:
        store.write(f"names/{name}", name.encode())
    root = f"{store.root}/names"
    for pattern in ("", "*", "**/*.bin"):
        listed = storage.list(f"{root}/{pattern}")
        assert [info.path for info in listed] == sorted(f"{root}/{name}" for name in names)
    for info in listed:
        assert f"{root}/{storage.read_range(info, 0, info.num_bytes).decode()}" == info.path
        assert storage.list(info.path) == [info]


def test_a_key_with_a_url_in_it_is_read_from_the_store(store: Store, storage: Storage) -> None:
    if store.root.startswith("hf://"):
        pytest.skip("a repository has no empty names of folders")
    url = f"{store.root}/mirror/http://other/a.bin"
    store.write("mirror/http://other/a.bin", b"here")
    for pattern in ("", "**/*.bin"):
        listed = storage.list(f"{store.root}/mirror/{pattern}")
        assert [info.path for info in listed] == [url]
        assert storage.read_range(listed[0], 0, 4) == b"here"


def batches(source: Any) -> list[list[int]]:
    dataset = PackedDataset(source, seq_len=64, batch_size=2, lanes=2)
    return [batch.input_ids.flatten().tolist() for batch in PackedLoader(dataset)]


def test_batches_match_the_local_files(store: Store, storage: Storage, tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 60)
    documents = [[i] * n for i, n in enumerate(lengths)]
    (tmp_path / "local").mkdir()
    for shard in range(3):
        table = pa.table({"tokens": pa.array(documents[shard::3], pa.list_(pa.int32()))})
        pq.write_table(table, tmp_path / "local" / f"{shard}.parquet", row_group_size=7)
    store.write_folder(tmp_path / "local", "shards")
    expected = batches(sources.Parquet(tmp_path / "local", tokens="tokens"))
    assert len(expected) > 4
    remote = sources.Parquet(f"{store.root}/shards", tokens="tokens", storage=storage)
    assert batches(remote) == expected


def test_a_file_that_is_replaced_is_refused(store: Store, storage: Storage, tmp_path: Path) -> None:
    store.write("replaced/a.bin", b"before")
    (listed,) = storage.list(f"{store.root}/replaced/*")
    assert listed.version
    store.write("replaced/a.bin", b"after.")
    again = Storage(cache_dir=tmp_path / "again", storage_options=store.options)
    with pytest.raises(StateError, match="was replaced"):
        again.read_range(listed, 0, 6)


def test_a_missing_file_and_a_missing_bucket_are_errors(store: Store, storage: Storage) -> None:
    store.write("there.bin", b"x")
    with pytest.raises(StorageError) as caught:
        storage.size(f"{store.root}/missing.bin")
    assert caught.value.failure == "missing"
    for pattern in ("missing.bin", "missing/*.bin", "missing/**/*.bin", "missing"):
        with pytest.raises(ConfigError, match="No file"):
            storage.list(f"{store.root}/{pattern}")
    for act in ALL:
        with pytest.raises((ConfigError, StorageError)):
            act(storage, store.other_root)


def test_a_store_that_is_not_there_is_an_error(store: Store, tmp_path: Path) -> None:
    storage = Storage(cache_dir=tmp_path, retries=0, storage_options=store.elsewhere)
    for act in ALL:
        with pytest.raises(StorageError) as caught:
            act(storage, store.root)
        assert caught.value.failure == "transient"


ALL: list[Callable[[Storage, str], Any]] = [
    lambda storage, root: storage.size(f"{root}/a.bin"),
    lambda storage, root: storage.list(f"{root}/*.bin"),
    lambda storage, root: storage.list(f"{root}/**/*.bin"),
    lambda storage, root: storage.list(f"{root}/a.bin"),
]
