"""Images by URL: many at a time, ahead of their batch, in few requests."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from streampack import PackedLoader
from streampack.errors import ContentError, StorageError
from streampack.images import Images, fetching
from streampack.sources import Storage
from tests.images.test_own import Means
from tests.support.servers import HTTPServer, S3Server
from tests.support.vision import drawn, png
from tests.support.vision_runs import dataset, documents_of

WAIT_S = 60.0
COUNT = 24


def image(number: int) -> bytes:
    return png(drawn(number, 16 + number % 5, 24))


def records(images: list[Any], **columns: list[int]) -> list[dict[str, Any]]:
    given = [{"text": f"{i}:<image>z", "images": [each]} for i, each in enumerate(images)]
    return [
        {**record, **{name: values[i] for name, values in columns.items()}}
        for i, record in enumerate(given)
    ]


def images_of(storage: Storage, urls: list[str], sizes: Any = None, **columns: list[int]) -> Images:
    """Records of URLs in a file, with a storage of their own."""
    assert storage.cache_dir is not None
    path = storage.cache_dir.parent / "records.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records(urls, **columns)))
    return Images(str(path), text="text", sizes=sizes, storage=storage)


def served(http: HTTPServer, count: int = COUNT) -> list[str]:
    for number in range(count):
        (http.folder / f"{number}.png").write_bytes(image(number))
    return [f"{http.url}/{number}.png" for number in range(count)]


@pytest.mark.parametrize("where", ["http", "s3", "memory"])
def test_images_by_url_are_as_their_bytes(
    where: str, http: HTTPServer, s3: S3Server, storage: Storage
) -> None:
    import fsspec

    urls = served(http)
    if where == "s3":
        urls = [s3.put(f"{number}.png", image(number)) for number in range(COUNT)]
    if where == "memory":
        urls = [f"memory://urls/{number}.png" for number in range(COUNT)]
        for number, url in enumerate(urls):
            fsspec.filesystem("memory").pipe(url, image(number))
    own = Images(records([image(number) for number in range(COUNT)]), text="text")
    remote = images_of(storage, urls)
    assert documents_of(dataset(remote, Means())) == documents_of(dataset(own, Means()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(("sizes", "requests"), [(None, 2), (("height", "width"), 1)])
def test_an_image_takes_one_request_where_its_size_is_known_and_two_else(
    ranges: bool, sizes: Any, requests: int, http: HTTPServer, storage: Storage
) -> None:
    http.ranges = ranges
    columns = {"height": [24] * COUNT, "width": [16 + i % 5 for i in range(COUNT)]}
    batches = list(dataset(images_of(storage, served(http), sizes, **columns), Means()))
    assert sum(batch.num_documents for batch in batches) == COUNT
    assert http.count("GET") == requests * COUNT
    assert http.count("HEAD") == 0
    assert storage.cache_dir is not None
    assert not any(path.is_file() for path in storage.cache_dir.rglob("*"))


def test_heads_and_pixels_of_several_images_are_fetched_together(
    http: HTTPServer, storage: Storage
) -> None:
    urls, together = served(http, 16), threading.Barrier(8)
    http.gate = lambda _: together.wait(WAIT_S) and None  # each waits for seven others
    (batch,) = dataset(images_of(storage, urls), Means(), seq_len=512)
    assert batch.num_documents == 16


def numbers(batch: Any) -> list[int]:
    return sorted(int(name) for name in documents_of([batch]))


def test_images_of_a_lanes_next_batch_are_fetched_before_it_is_asked_for(
    http: HTTPServer, storage: Storage
) -> None:
    urls = served(http)
    columns = {"height": [24] * COUNT, "width": [16 + i % 5 for i in range(COUNT)]}
    source = images_of(storage, urls, ("height", "width"), **columns)
    settings: dict[str, Any] = {"seq_len": 32, "lanes": 1}
    order = [numbers(batch) for batch in dataset(source, Means(), **settings)]
    assert len(order) > 2
    there = {f"{number}.png": threading.Event() for number in range(COUNT)}
    http.gate = lambda name: there[name].set()
    batches = iter(PackedLoader(dataset(source, Means(), **settings)))
    assert numbers(next(batches)) == order[0]
    for number in order[1]:
        assert there[f"{number}.png"].wait(WAIT_S)
    assert not any(there[f"{number}.png"].is_set() for number in order[2])
    assert [numbers(batch) for batch in batches] == order[1:]


def test_bytes_ahead_of_batches_have_a_limit_and_are_dropped(
    http: HTTPServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_MOST_AHEAD_BYTES", 0)
    urls = served(http)
    settings: dict[str, Any] = {"seq_len": 32, "lanes": 1}
    source = images_of(storage, urls)
    batches = iter(PackedLoader(dataset(source, Means(), **settings)))
    first = next(batches).num_documents
    assert http.count("GET") == COUNT + first  # heads, and the pixels of one batch
    list(batches)
    assert http.count("GET") == 2 * COUNT
    assert sum(each.num_bytes for each in fetching._fetching) == 0


def test_damage_behind_a_url_is_named(http: HTTPServer, storage: Storage) -> None:
    urls = served(http, 3)
    second = len(json.dumps(records(urls)[0])) + 1
    (http.folder / "1.png").write_bytes(b"")
    with pytest.raises(ContentError) as caught:
        list(dataset(images_of(storage, urls), Means()))
    assert caught.value.index == second
    missing = images_of(storage, [urls[0], f"{http.url}/no.png"])
    with pytest.raises(ContentError) as caught:
        list(dataset(missing, Means()))
    assert caught.value.index == second


def test_a_server_that_fails_is_not_a_broken_image(http: HTTPServer, tmp_path: Path) -> None:
    urls = served(http, 3)
    http.fail_next = 1000
    once = Storage(cache_dir=tmp_path / "cache", retries=0)
    source = images_of(once, urls)
    with pytest.raises(StorageError) as caught:
        list(dataset(source, Means(), on_error="skip"))
    assert caught.value.failure == "transient"


def test_a_failed_request_for_an_image_is_repeated(http: HTTPServer, storage: Storage) -> None:
    urls = served(http, 3)
    http.fail_next, http.cut_next = 2, 2
    (batch,) = dataset(images_of(storage, urls), Means())
    assert batch.num_documents == 3
