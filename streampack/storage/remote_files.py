"""Remote files of one process: connections, look-ups, and the fetcher of their blocks."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from streampack.errors import StorageError
from streampack.file_info import FileInfo, Range, replaced, shown, split_url
from streampack.keep_last import KeepLast
from streampack.metrics import fetched
from streampack.names.listing import WITH_HOST
from streampack.names.remote_listing import RemoteFolders
from streampack.remote.catalogs import Catalog, FsspecCatalog, S3Catalog, WebCatalog
from streampack.remote.clients import S3Client, WebClient, client_of
from streampack.remote.first_fetch import first_fetch
from streampack.remote.pace import Pace
from streampack.remote.ranges import OverFsspec, OverHttp, Reader
from streampack.remote.retries import with_retries
from streampack.remote.versions import info_from, is_another_version
from streampack.storage.blocks import BLOCK_BYTES, BlockCache
from streampack.storage.fetching import Fetcher
from streampack.storage.ranged_file import RangedFile
from streampack.threads import awaited, pause

if TYPE_CHECKING:
    from streampack.storage.storage import Storage

logger = logging.getLogger(__name__)

T = TypeVar("T")

_START = secrets.token_hex(8)  # of a process and its forks

_ASKED_ANEW_S = (0.1, 0.5)  # pauses after an answer that is no range, as of a cold cache
_BEFORE_S = (0.05,) * 5  # before them, if the server has sent ranges
_WHOLE_S = 60.0  # time for which a server without ranges is taken for one
_MOST_LOOKED_UP = 4096  # files with size and version remembered by a process


class RemoteFiles:
    """The remote files of a storage in one process.

    Args:
        storage: the storage with the settings.
        cache: cache of blocks.

    Attributes:
        fetcher: fetcher of blocks.
    """

    def __init__(self, storage: Storage, cache: BlockCache) -> None:
        self._storage = storage
        self._opening = threading.RLock()
        self._filesystems: dict[str, Any] = {}
        self._stores: dict[str, tuple[Reader, Catalog]] = {}  # by protocol
        # Servers that answered with whole files, and the times until which they are not asked anew.
        self._whole: dict[str, float] = {}
        self._with_ranges: set[str] = set()  # servers that sent a range last
        # Sizes and versions of the last files that were looked up, by URL.
        self._looked_up: KeepLast[str, FileInfo] = KeepLast(_MOST_LOOKED_UP)
        self._asked: dict[str, Future[FileInfo]] = {}  # by URL that is looked up now
        self.pace = Pace(storage.timeout_s, storage.min_bytes_per_s)
        if not storage.cache_blocks:
            from streampack.storage.memory_blocks import MemoryBlocks

            cache = MemoryBlocks(cache.folder, cache.limit_bytes, storage.read_ahead_bytes)
        ahead = min(storage.read_ahead_bytes, cache.ahead_bytes)
        self.fetcher = Fetcher(
            cache, storage._growings, self._get, self._get_whole, self._attempts, ahead
        )

    def list(
        self, protocol: str, names: Sequence[str], endings: Sequence[str]
    ) -> list[list[FileInfo]]:
        """Return the files of each of these URLs; see `RemoteFolders.files`."""
        folders = RemoteFolders(self.catalog(protocol), self._storage.retries)
        files = folders.files(names, endings)
        for info in chain.from_iterable(files):
            self._looked_up.pop(info.path, None)  # the entry is older than the listing
        return files

    def missing_container(self, url: str) -> str:
        """Return a sentence if the bucket or repository of a URL does not exist, or ""."""
        protocol, path = split_url(url)
        kind = WITH_HOST.get(protocol or "", "server")
        if protocol is None or kind == "server":
            return ""
        container = f"{protocol}://{path.partition('/')[0]}"
        try:
            if kind == "repository":
                ask = partial(self.filesystem(protocol).resolve_path, url)
            else:
                ask = partial(self.catalog(protocol).is_folder, container)
            with_retries(ask, doing="Looking up", url=url, retries=self._storage.retries)
        except StorageError as error:
            if error.failure == "missing":
                if kind == "repository":
                    return f"{shown(url)} leads nowhere: {error.__cause__}."
                return f"There is no {kind} {shown(container)}."
        return ""

    def open(self, file: str | FileInfo) -> RangedFile:
        """Open a file by URL, or as it was listed."""
        return RangedFile(self.listed(file), lambda: self._storage.remote.fetcher)

    def forget(self, file: str | FileInfo) -> bool:
        """Remove a file from the cache; return False if the cache has none of it."""
        listed = self.listed(file)
        blocks = -(-listed.num_bytes // BLOCK_BYTES)
        return self.fetcher.cache.forget(listed.key, blocks)

    def keep(self, name: str, files: Callable[[], Iterable[FileInfo]]) -> None:
        """Let a thread keep the cached files of a list for a later epoch; see `Room.keep`."""
        fetcher = self.fetcher

        def keep() -> None:
            fetcher.cache.room.keep(name, lambda: (file.key for file in files()))

        fetcher.plans.soon(keep)

    def plan(self, key: Hashable, ranges: Iterable[Range], *, later: bool) -> None:
        """See `Storage.plan`."""
        opened = ((self.open(part.file), part.start, part.stop) for part in ranges)
        self.fetcher.plans.plan(key, opened, later=later)

    def read_range(self, file: str | FileInfo, start: int, stop: int) -> bytes:
        """See `Storage.read_range`."""
        listed = self.listed(file)

        def attempt() -> memoryview | None:
            if stop > listed.num_bytes:
                raise ValueError(f"the file ends before byte {stop}")
            return self._get(listed, start, stop)

        data = self._attempts(listed, attempt)
        if data is not None:
            return data.tobytes()
        with closing(self.open(listed)) as opened:
            return opened.read(start, stop)

    def read_start(
        self, url: str, most_bytes: int | None = None, *, doing: str = "Reading"
    ) -> bytes:
        """Read the first bytes of a file, or all of it; fewer at its end.

        It takes one request, also if the size is unknown (by fsspec one more), and caches nothing.
        See `with_retries` for `doing`.

        Raises:
            StateError: the file was replaced since this process read it.
            StorageError: the bytes could not be read, after all retries.
        """
        if url not in self._looked_up:
            try:
                part = with_retries(
                    lambda: self._reader(url).start(url, most_bytes),
                    doing=doing,
                    url=url,
                    retries=self._storage.retries,
                )
            except StorageError as error:
                if error.failure != "other":  # as for a range of an empty file
                    raise
            else:
                if part is not None:
                    info = self._with_start(FileInfo(url, part.size, part.version))
                    self._looked_up.keep(url, lambda: info)
                    fetched.append(len(part.data))
                    return part.data
        size = self.look_up(url).num_bytes
        return self._storage.read_range(
            url, 0, size if most_bytes is None else min(most_bytes, size)
        )

    def _attempts(
        self, listed: FileInfo, attempt: Callable[[], T], retries: int | None = None
    ) -> T:
        """Return the result of `attempt`; None for `retries` is the default."""
        retries = self._storage.retries if retries is None else retries
        try:
            return with_retries(attempt, doing="Reading", url=listed.path, retries=retries)
        except StorageError as error:
            if error.failure == "other":  # for example a range beyond the end of a shorter file
                self._check_unchanged(listed, error)
            raise

    def _get(self, listed: FileInfo, start: int, stop: int) -> memoryview | None:
        """Fetch bytes [start, stop) of the listed version of a remote file, in one attempt.

        Return None if the server sends whole files only.
        """
        url, server = listed.path, _server(listed.path)
        whole = (start, stop) == (0, listed.num_bytes)
        if not whole and time.monotonic() < self._whole.get(server, 0):
            return None
        reader = self._reader(url)
        for pause_s in (*(_BEFORE_S if server in self._with_ranges else ()), *_ASKED_ANEW_S, 0):
            data = reader.range(listed, start, stop)
            if data is not None:
                if not whole:
                    self._with_ranges.add(server)
                fetched.append(len(data))
                return data
            pause(pause_s)
        self._with_ranges.discard(server)
        if server not in self._whole:
            logger.warning(
                "Files of %s are downloaded whole before they are read: it sends no ranges.", server
            )
        self._whole[server] = time.monotonic() + _WHOLE_S
        return None

    def _get_whole(self, listed: FileInfo, out: IO[bytes]) -> str:
        """Write a whole file as it comes; check its size and version, again at its end."""
        done = 0

        def attempt() -> None:
            nonlocal done
            at = 0
            with closing(self._reader(listed.path).parts(listed)) as parts:
                for data in parts:
                    new = data[max(done - at, 0) :]  # of a second attempt
                    at += len(data)
                    if new:
                        done = at
                        out.write(new)

        self._attempts(listed, attempt)
        fetched.append(listed.num_bytes)
        return ""

    def _check_unchanged(self, listed: FileInfo, error: StorageError) -> None:
        """Raise `StateError` from an error if a file changed since it was listed."""
        url = listed.path
        with suppress(StorageError):
            now = self._ask(url, retries=0)
            if now.num_bytes != listed.num_bytes:
                raise replaced(url, f"{listed.num_bytes} bytes", f"{now.num_bytes}") from error
            if is_another_version(now.version, listed.version):
                raise replaced(url, listed.version, now.version) from error

    def listed(self, file: str | FileInfo) -> FileInfo:
        """Return a remote file with its version, which is looked up if unknown."""
        if isinstance(file, str):
            return self.look_up(file)
        return file if file.version else self.look_up(file.path)

    def _reader(self, url: str) -> Reader:
        first_fetch().begin(url)
        return self._opened(split_url(url)[0] or "")[0]

    def catalog(self, protocol: str) -> Catalog:
        """Return the names in the stores of a protocol."""
        return self._opened(protocol)[1]

    def _opened(self, protocol: str) -> tuple[Reader, Catalog]:
        with self._opening:
            if protocol not in self._stores:
                filesystem = partial(self.filesystem, protocol)
                try:
                    client = client_of(
                        protocol, self._storage.storage_options, self.pace, filesystem
                    )
                except ImportError as error:
                    from streampack.remote.filesystems import not_installed

                    raise not_installed(protocol, error) from error
                if isinstance(client, WebClient):
                    catalog: Catalog = WebCatalog(client)
                elif isinstance(client, S3Client):
                    catalog = S3Catalog(client, self._storage.retries)
                else:
                    catalog = FsspecCatalog(filesystem(), self.pace)

                def version_now(url: str) -> str:
                    return info_from(url, catalog.info(url)).version

                reader: Reader = (
                    OverFsspec(filesystem(), self.pace, version_now)
                    if client is None
                    else OverHttp(client, version_now)
                )
                self._stores[protocol] = reader, catalog
        return self._stores[protocol]

    def filesystem(self, protocol: str) -> Any:
        """Return the fsspec file system of a protocol, opened once."""
        with self._opening:
            if protocol not in self._filesystems:
                from streampack.remote.filesystems import open_filesystem

                options, timeout_s = self._storage.storage_options, self._storage.timeout_s
                self._filesystems[protocol] = open_filesystem(protocol, options, timeout_s)
        return self._filesystems[protocol]

    def look_up(self, url: str) -> FileInfo:
        """Look up size and version of a remote file; a process remembers the last ones."""
        asked = Future[FileInfo]()
        try:
            while (other := self._asked.setdefault(url, asked)) is not asked:
                with suppress(CancelledError):  # its thread was interrupted
                    return awaited(other)  # lanes open a file at the same time
            info = self._looked_up.keep(url, lambda: self._ask(url, self._storage.retries))
            asked.set_result(info)
            return info
        except Exception as error:
            asked.set_exception(error)
            raise
        finally:
            if self._asked.get(url) is asked:
                del self._asked[url]
            asked.cancel()

    def _ask(self, url: str, retries: int | None) -> FileInfo:
        ask = partial(self.catalog(split_url(url)[0] or "").info, url)
        info = with_retries(ask, doing="Looking up", url=url, retries=retries)
        return self._with_start(info_from(url, info))

    def _with_start(self, info: FileInfo) -> FileInfo:
        """Return a file of this process and its forks in place of one without a version.

        The cache has no other content for it then: not of an earlier start, when the file may have
        been another one, nor of other `storage_options`. Listings, which ranks compare, lack it.
        """
        if info.version:
            return info
        options = repr(sorted(self._storage.storage_options.items()))
        digest = hashlib.blake2b(f"{_START} {options}".encode(), digest_size=8)
        return replace(info, version=f"start {digest.hexdigest()}")


def _server(url: str) -> str:
    """Return the server of a URL, or its protocol, for messages."""
    protocol = split_url(url)[0] or ""
    over_http = protocol in ("http", "https")
    return urlsplit(url).netloc.rpartition("@")[2] if over_http else f"{protocol}://"
