"""Files that a pattern or folder names, on this machine and in a store, and refused names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import sources
from streampack.errors import ConfigError, StorageError
from streampack.file_info import FileInfo
from streampack.remote import catalogs
from streampack.remote.catalogs import S3Catalog, _Page
from streampack.remote.failures import RefusedError
from streampack.remote.wire import Request, Wire
from streampack.storage.storage import Storage
from tests.support.raw_server import Connection, raw_server
from tests.support.servers import HTTPServer, S3Server

#: Writes files of these names, and lists patterns and folders among them, by their names.
Corpus = Callable[..., "Names"]


class Names:
    """Files of a folder, local or remote."""

    def __init__(self, root: str, storage: Storage) -> None:
        self.root, self.storage = root, storage

    def __call__(self, *patterns: str) -> list[str]:
        infos = self.storage.list([f"{self.root}/{p}".rstrip("/") for p in patterns])
        return [info.path.removeprefix(f"{self.root}/") for info in infos]

    def refused(self, *patterns: str) -> str:
        with pytest.raises(ConfigError) as caught:
            self(*patterns)
        return str(caught.value.path).removeprefix(self.root).strip("/")


@pytest.fixture(params=["local", "s3", "memory"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path, storage: Storage) -> Iterator[Corpus]:
    kind = request.param
    memory = fsspec.filesystem("memory")

    def write(*names: str) -> Names:
        for name in names:
            if kind == "local":
                (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "c" / name).write_text("x")
            elif kind == "s3":
                request.getfixturevalue("s3").put(f"c/{name}", b"x")
            else:
                memory.pipe(f"/c/{name}", b"x")
        root = {"local": str(tmp_path / "c"), "s3": "s3://bucket/c", "memory": "memory://c"}[kind]
        return Names(root, storage)

    yield write
    if memory.exists("/c"):
        memory.rm("/c", recursive=True)


def test_wildcards_leave_out_hidden_names_in_every_storage(corpus: Corpus) -> None:
    names = corpus(
        "a.txt", "d/b.txt", ".x.txt", "._a.txt", ".ipynb_checkpoints/a-1.txt", "d/.y/z.txt",
        "_temporary/0/c.txt", "d/_temporary/e.txt", "_s.txt",
    )  # fmt: skip
    assert names("") == ["a.txt", "d/b.txt"]
    assert names("**") == names("**/*.txt") == ["_s.txt", "a.txt", "d/b.txt"]
    assert names("*.txt") == names("?*.txt") == names("[!q]*.txt") == ["_s.txt", "a.txt"]
    assert names("*/*.txt") == ["d/b.txt"]


def test_hidden_names_are_read_where_a_pattern_writes_them(corpus: Corpus) -> None:
    names = corpus("a/.x/1.txt", "a/.x/_y/2.txt", "_b/3.txt", ".4.txt", "a/5.txt")
    assert names(".*.txt") == [".4.txt"]
    assert names("_b/*.txt") == names("_*/*.txt") == ["_b/3.txt"]
    assert names("**/.x/*.txt") == names("*/.x/*.txt") == ["a/.x/1.txt"]
    assert names("**/.x/**") == ["a/.x/1.txt"]
    assert names("**/.x/**/_y/*") == ["a/.x/_y/2.txt"]


def test_a_name_with_marks_of_patterns_that_exists_is_that_file(corpus: Corpus) -> None:
    names = corpus("a[1].txt", "a1.txt", "b?.txt", "bc.txt", "d*/x.txt", "de/x.txt", "f[1]/g.txt")
    assert names("a[1].txt") == ["a[1].txt"]
    assert names.storage.read_range(f"{names.root}/a[1].txt", 0, 1) == b"x"
    assert names("b?.txt") == ["b?.txt"]
    assert names("d*/*.txt") == names("d*/x.txt") == names("d*") == ["d*/x.txt"]
    assert names("f[1]") == names("f[1]/*") == names("f[[]1]/*") == ["f[1]/g.txt"]
    assert names("a[0-9].txt") == ["a1.txt"]
    assert names("[bx]?.txt") == ["b?.txt", "bc.txt"]


def test_a_file_that_is_named_twice_is_refused(corpus: Corpus) -> None:
    names = corpus("a/1.txt", "b/2.txt")
    for again in ("a/1.txt", "a", "*/*.txt", "**"):
        assert names.refused(again, "a/1.txt") == "a/1.txt"


def test_other_ways_to_write_a_url_name_the_same_file(
    s3: S3Server, http: HTTPServer, storage: Storage
) -> None:
    s3.put("a.txt", b"x")
    memory = fsspec.filesystem("memory")
    memory.pipe("/c/a.txt", b"x")
    (http.folder / "a b").write_bytes(b"x")
    for twice in (
        [f"{http.url}/a b", f"{http.url}/a%20b"],
        ["s3://bucket/a.txt", "s3a://bucket/a.txt"],
        ["memory://c", "memory:///c/a.txt"],
    ):
        with pytest.raises(ConfigError) as caught:
            storage.list(twice)
        assert caught.value.path == twice[1]
    memory.rm("/c", recursive=True)


def test_links_to_named_files_are_refused(tmp_path: Path, storage: Storage) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "a.txt").write_text("x")
    (tmp_path / "latest").symlink_to("v1")
    (tmp_path / "b.txt").symlink_to("v1/a.txt")
    assert len(storage.list(tmp_path / "latest")) == len(storage.list(tmp_path / "b.txt")) == 1
    for patterns in (["*/*.txt"], ["v1", "latest"], ["**"], [""], ["b.txt", "v1/*"]):
        with pytest.raises(ConfigError) as caught:
            storage.list([f"{tmp_path}/{pattern}" for pattern in patterns])
        assert caught.value.path is not None
        assert Path(caught.value.path).resolve() == tmp_path / "v1" / "a.txt"


def test_links_to_files_that_are_gone_are_refused(tmp_path: Path, storage: Storage) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.txt").symlink_to("blobs/b")
    (tmp_path / ".#a.txt").symlink_to("editor@host")
    (tmp_path / "latest").symlink_to("v2")
    for pattern in ("", "*.txt", "**", "?.txt"):
        with pytest.raises(ConfigError) as caught:
            storage.list(str(tmp_path / pattern))
        assert caught.value.path == str(tmp_path / "b.txt")
    assert len(storage.list(str(tmp_path / "a*"))) == 1
    (tmp_path / "b.txt").unlink()
    assert len(storage.list(tmp_path)) == len(storage.list(str(tmp_path / "*"))) == 1


def test_two_stars_and_folders_follow_each_link_to_a_folder_once(tmp_path: Path) -> None:
    corpus, other = tmp_path / "corpus", tmp_path / "other"
    for folder in (corpus, other):
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "1.txt").write_text("x")
    (corpus / "b").symlink_to(other)
    (corpus / "c").symlink_to(corpus / "a")
    for k in range(20):  # 2 ** 20 ways, if each link were followed wherever it leads
        (corpus / "a" / f"loop{k}").symlink_to(corpus)
        (other / f"loop{k}").symlink_to(tmp_path if k % 2 else other)
    expected = [str(corpus / "a" / "1.txt"), str(corpus / "b" / "a" / "1.txt")]
    for pattern in (corpus / "**" / "*.txt", corpus / "**" / "**" / "1.txt", corpus):
        assert [info.path for info in Storage().list(str(pattern))] == expected
    os.unlink(corpus / "a" / "1.txt")
    assert [info.path for info in Storage().list(str(corpus))] == expected[1:]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, storage: Storage) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "lost+found").mkdir()  # of the file system, for nobody to read
    (tmp_path / "lost+found" / "a.txt").write_text("x")
    assert [info.path for info in storage.list(tmp_path)] == [str(tmp_path / "a.txt")]
    assert len(storage.list(str(tmp_path / "**"))) == 1
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(17):  # a path of more than 4,096 bytes
        os.mkdir("d" * 250, dir_fd=folder)
        inside = os.open("d" * 250, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inside
    os.close(os.open("b.txt", os.O_CREAT, dir_fd=folder))
    os.close(folder)
    for pattern in ("", "**/*.txt"):
        with pytest.raises(StorageError) as caught:
            storage.list(str(tmp_path / pattern))
        assert caught.value.failure == "other"
        assert "ddd" in str(caught.value.path)


def test_a_folder_that_may_be_a_table_is_not_taken_for_another(storage: Storage) -> None:
    def respond(connection: Connection) -> None:
        if "_delta_log" in connection.path:
            connection.answer("503 Slow Down")
        else:
            connection.answer("200 OK", "", PAGES[1].replace("p/b", "p/q/b").encode())

    with raw_server(respond) as server:
        options = {"endpoint_url": server.url, "key": "a", "secret": "b"}
        with pytest.raises(StorageError) as caught:
            Storage(retries=0, storage_options=options).list("s3://bucket/p/q")
        assert caught.value.failure == "transient"


TABLES = {
    "Delta": (
        "_delta_log/00000000000000000000.json",
        "part-0.parquet",
        "date=1/hour=2/part-1.parquet",
    ),
    "Iceberg": ("metadata/00001-a.metadata.json", "data/part-0.parquet", "data/date=1/x.parquet"),
    "Hudi": (".hoodie/hoodie.properties", "part-0.parquet", "date=1/hour=2/part-1.parquet"),
    "Lance": ("_versions/1.manifest", "data/part-0.lance"),
    "unfinished": (".streampack/progress.json", "part-00000.parquet"),
}


@pytest.mark.sampled("each")
@pytest.mark.parametrize("kind", TABLES)
def test_a_folder_of_a_table_or_of_an_unfinished_job_is_refused(corpus: Corpus, kind: str) -> None:
    mark, *files = TABLES[kind]
    names = corpus(f"lake/t/{mark}", *(f"lake/t/{file}" for file in files), "lake/other/a.txt")
    for pattern in ("lake", "lake/t", "lake/**", "lake/t/**/*", "lake/*/**"):
        assert names.refused(pattern) == "lake/t"
    with pytest.raises(ConfigError) as caught:  # there is nothing else of that ending
        names.storage.list(f"{names.root}/lake/t", endings=(".jsonl",))
    assert caught.value.path == f"{names.root}/lake/t"
    every = [f"lake/t/{file}" for file in files]
    assert names(*every, "lake/other") == sorted([*every, "lake/other/a.txt"])


@pytest.mark.sampled("each")
@pytest.mark.parametrize("kind", ["Delta", "Hudi", "Iceberg"])
def test_partitions_of_a_table_are_refused(corpus: Corpus, kind: str) -> None:
    mark, _, file = TABLES[kind]
    names = corpus(f"t/{mark}", f"t/{file}")
    folder = file.rpartition("/")[0]
    while folder:
        assert names.refused(f"t/{folder}") == "t"
        folder = folder.rpartition("/")[0]
    assert names.refused(f"t/{file.rpartition('/')[0]}/*.parquet") == "t"
    assert names(f"t/{file}") == [f"t/{file}"]


def test_other_files_beside_a_table_are_read(corpus: Corpus) -> None:
    names = corpus("c/notes.jsonl", "c/t/_delta_log/0.json", "c/t/part-0.parquet")
    infos = names.storage.list(f"{names.root}/c", endings=(".jsonl",))
    assert [info.path for info in infos] == [f"{names.root}/c/notes.jsonl"]
    assert names("c/*.jsonl") == ["c/notes.jsonl"]


@pytest.mark.parametrize(
    "url",
    [
        "s3:///bucket/a.jsonl",
        "gs:///bucket/*.jsonl",
        "https:///host/a.jsonl",
        "simplecache::s3://bucket/a.jsonl",
        "zip://a.jsonl::s3://bucket/a.zip",
        "zip://a.jsonl::/data/a.zip",
    ],
)
def test_a_url_that_names_no_file_is_refused_before_anything_is_asked(
    url: str, storage: Storage
) -> None:
    for read in (storage.list, sources.open, sources.MDS):
        with pytest.raises(ConfigError) as caught:
            read(url)
        assert caught.value.path == url


def test_colons_in_a_key_are_not_a_chain(s3: S3Server, storage: Storage) -> None:
    s3.put("a::b.txt", b"x")
    for pattern in ("a::b.txt", "a::*.txt"):
        assert [info.path for info in storage.list(f"s3://bucket/{pattern}")] == [
            "s3://bucket/a::b.txt"
        ]


def test_many_objects_of_a_folder_are_listed_and_none_is_looked_up(
    s3: S3Server, storage: Storage, asked_for: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(300):
        s3.put(f"p/{i:03d}.bin", b"x" * i)
    every = [FileInfo(f"s3://bucket/p/{i:03d}.bin", i) for i in range(300)]
    for pattern in ("p", "p/", "p/*.bin", "p/{000..299}.bin", "p/{0,1,2}??.bin"):
        asked_for.clear()
        assert storage.list(f"s3://bucket/{pattern}", endings=(".bin",)) == every
        # The other request is about a table above the folder.
        assert [url for url in asked_for if "prefix=_delta_log" not in url] == [
            f"{s3.endpoint}/bucket/?list-type=2&prefix=p%2F&encoding-type=url"
            + ("&delimiter=%2F" if "." in pattern else "")
        ]
        assert len(asked_for) <= 2
    with pytest.raises(ConfigError, match=r"300\.bin"):
        storage.list("s3://bucket/p/{000..300}.bin")
    page, asked_for[:] = S3Catalog._page, []
    in_short = partialmethod(_in_short, page)
    monkeypatch.setattr(S3Catalog, "_page", in_short)
    assert storage.list("s3://bucket/p/*") == every
    assert sum("continuation-token" in url for url in asked_for) == 1  # the others are guessed


def _in_short(catalog: S3Catalog, page: Any, folder: str, asked_for: dict[str, str]) -> Any:
    return page(catalog, folder, {"max-keys": "20", **asked_for})


class KeysInMemory(S3Catalog):
    """A bucket with some keys, and pages of a few."""

    def __init__(self, keys: Iterable[str], most: int, *, starts_after: bool | None = True) -> None:
        self._keys, self._most, self._starts_after = sorted(keys), most, starts_after
        self._retries = 0
        self.guessed = 0

    def _page(self, folder: str, asked_for: dict[str, str]) -> _Page:
        self.guessed += "start-after" in asked_for
        if "start-after" in asked_for and self._starts_after is None:
            raise RefusedError(501, "this store begins at no name")
        start = asked_for.get("start-after", "") if self._starts_after else ""
        start = asked_for.get("continuation-token", start)
        keys = [key for key in self._keys if key > start]
        page = keys[: self._most]
        return _Page([(key, {}) for key in page], page, page[-1] if keys > page else "")

    def listed(self) -> list[str]:
        return [name for name, _ in self.inside("s3://bucket", deep=True)]


@given(st.sets(st.integers(0, 400)), st.sets(st.text("0a-z9", max_size=4)), st.integers(1, 9))
def test_every_name_is_listed_whichever_numbers_are_missing(
    numbers: set[int], others: set[str], most: int
) -> None:
    keys = {*(f"part-{number:03}-of-400" for number in numbers), *others} - {""}
    for starts_after in (True, False, None):
        catalog = KeysInMemory(keys, most, starts_after=starts_after)
        assert sorted({*catalog.listed()}) == sorted(keys)
        first, _ = catalog.guessed, catalog.listed()
        assert starts_after or first == catalog.guessed <= 15  # asked in one round, and never again


def test_a_page_is_guessed_only_from_numbers_with_leading_zeros() -> None:
    assert KeysInMemory(map(str, range(1000)), 100).listed() == sorted(map(str, range(1000)))
    catalog = KeysInMemory((f"{number:04}.bin" for number in range(1000)), 100)
    assert catalog.listed() == [f"{number:04}.bin" for number in range(1000)]
    assert catalog.guessed == 15


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """URLs of the requests of this process, in their order."""
    urls: list[str] = []
    asked = Wire.asked

    def noted(self: Wire, request: Request) -> Any:
        urls.append(request.url)
        return asked(self, request)

    monkeypatch.setattr(Wire, "asked", noted)
    return urls


def test_keys_of_s3_are_listed_as_they_are(s3: S3Server, storage: Storage) -> None:
    keys = ["a b", "a+b", "a%20b", "ä/ü&<>\"'", "t\tb", "//two", "d/", "d/e", "d/f/", "z"]
    keys += ["http://other/a", "file:///other/a"]  # no URLs, although a page may look like one
    for key in keys:
        s3.put(f"p/{key}.bin" if key[-1] != "/" else f"p/{key}", key.encode())
    named = [f"s3://bucket/p/{key}.bin" for key in keys if key[-1] != "/"]
    assert [info.path for info in storage.list("s3://bucket/p")] == sorted(named)
    for info in storage.list("s3://bucket/p"):
        assert storage.read_range(info, 0, info.num_bytes).decode() in info.path
        assert storage.list(info.path) == [info]
    tops = [url for url in named if "/" not in url.removeprefix("s3://bucket/p/")]
    assert [info.path for info in storage.list("s3://bucket/p/*")] == sorted(tops)
    s3.put("q", b"")  # some tools mark folders so
    s3.put("q/a.bin", b"a")
    assert [info.path for info in storage.list("s3://bucket/q")] == ["s3://bucket/q/a.bin"]


PAGES = [
    "<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><IsTruncated>true"
    "</IsTruncated><NextContinuationToken>b&amp;=</NextContinuationToken><Contents><Key>p/a.bin"
    "</Key><Size>3</Size><ETag>&quot;x&quot;</ETag></Contents></ListBucketResult>",
    "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated><Contents>"
    "<Key>p/b%2B+c.bin</Key><Size>4</Size></Contents></ListBucketResult>",
]


def test_a_listing_of_several_pages_is_followed_to_its_end(tmp_path: Path) -> None:
    answers: list[bytes] = []

    def respond(connection: Connection) -> None:
        if "_delta_log" in connection.path:
            connection.answer("200 OK", "", b"<ListBucketResult/>")
            return
        page = PAGES["continuation-token=b%26%3D" in connection.path].encode()
        # Some answers break off, or come from a portal; their pages alone are repeated.
        answers.append(page)
        page = {1: page[:100], 2: b"<html><br>", 4: page[:50]}.get(len(answers), page)
        connection.answer("200 OK", "", page)

    with raw_server(respond) as server:
        options = {"endpoint_url": server.url, "key": "a", "secret": "b"}
        storage = Storage(cache_dir=tmp_path, storage_options=options)
        listed = storage.list("s3://bucket/p")
        assert listed == [FileInfo("s3://bucket/p/a.bin", 3), FileInfo("s3://bucket/p/b+ c.bin", 4)]
        assert listed[0].version == "ETag x"
        assert len(answers) == 5


@pytest.mark.parametrize("is_truncated", ["True", ""])
def test_a_page_with_a_token_is_followed_also_if_its_mark_is_not_the_usual_one(
    is_truncated: str,
) -> None:
    def respond(connection: Connection) -> None:
        page = PAGES["continuation-token=b" in connection.path]
        connection.answer("200 OK", "", page.replace("true", is_truncated).encode())

    with raw_server(respond) as server:
        options = {"endpoint_url": server.url, "key": "a", "secret": "b"}
        storage = Storage(retries=0, storage_options=options)
        assert len(storage.list("s3://bucket/p/*.bin")) == 2


@pytest.mark.parametrize(
    ("page", "failure"),
    [
        (b"<html><body>Sign in</body></html>", "transient"),
        (PAGES[0].encode(), "other"),  # its own token
        (
            PAGES[0].replace("b&amp;=", "c").encode(),
            "other",
        ),  # the token of a page before the first
        (PAGES[0].replace("NextContinuationToken", "Marker").encode(), "other"),  # no token
        (PAGES[1].replace("p/b", "q/b").encode(), "other"),  # a key outside the folder
        (PAGES[1].encode() + b" " * 20_000, "transient"),
    ],
)
def test_a_listing_that_cannot_be_followed_is_an_error(
    page: bytes, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "_MOST_PAGE_BYTES", 10_000)

    def respond(connection: Connection) -> None:
        is_second = "continuation-token=b" in connection.path
        connection.answer("200 OK", "", page if is_second else PAGES[0].encode())

    with raw_server(respond) as server:
        options = {"endpoint_url": server.url, "key": "a", "secret": "b"}
        storage = Storage(retries=0, storage_options=options)
        with pytest.raises(StorageError) as caught:
            storage.list("s3://bucket/p/*.bin")
        assert caught.value.failure == failure
