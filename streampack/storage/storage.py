"""One small interface to local and remote files.

Local files are used in place. Remote files are read by range, through a cache directory that any
number of processes share. If a server sends no ranges, whole files are downloaded into it. A
`Storage` may be pickled or forked at any time: each process makes its own
connections, threads and locks.
"""

from __future__ import annotations

import builtins
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from streampack.arguments import explained, real_number, whole_number
from streampack.errors import ConfigError, StorageError
from streampack.metrics import fetched
from streampack.storage.ahead import Hint
from streampack.storage.blocks import BLOCK_BYTES, BlockCache, default_cache_dir
from streampack.storage.fetching import Fetcher
from streampack.storage.files import LocalFile, RangedFile, StoredFile
from streampack.storage.growing import BlockWriter, GrowingFile, Growings
from streampack.storage.listing import (
    expand_braces,
    has_ending,
    list_local,
    list_remote,
    local_names,
    named_paths,
    real_files,
    refuse_repeated,
)
from streampack.storage.remote import (
    FileInfo,
    Pace,
    info_of,
    is_another_version,
    look_up,
    replaced,
    shown,
    split_url,
    with_retries,
)

logger = logging.getLogger(__name__)

R = TypeVar("R")

_MOST_LOOKED_UP = 4096  # files with size and version remembered by a process

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class _Process:
    """State of a storage in one process: connections, look-ups, threads."""

    def __init__(self, storage: Storage) -> None:
        self.filesystems: dict[str, Any] = {}
        self.looked_up: OrderedDict[str, FileInfo] = OrderedDict()
        self.whole: set[str] = set()  # servers that do not support ranges
        folder = storage.cache_dir or default_cache_dir()
        blocks = BlockCache(folder / "blocks", storage.cache_limit_bytes)
        ahead = min(storage.read_ahead_bytes, storage.cache_limit_bytes // 2)
        self.fetcher = Fetcher(blocks, storage._get, storage._get_whole, ahead)
        self.growings = Growings(blocks)


@explained
class Storage:
    """List, read and cache files at local paths and any URL that fsspec supports.

    Args:
        cache_dir: directory of fetched data; use a local disk. Any number of processes and datasets
            may share it. Default: ``$XDG_CACHE_HOME/streampack`` or ``~/.cache/streampack``, or a
            private temporary directory if that cannot be written.
        cache_limit_bytes: maximum size of the cache; the least recently used data is removed first.
        retries: attempts after the first, with random waits of up to 0.25 s, 0.5 s, ... 30 s.
        timeout_s: seconds without an answer after which an attempt fails.
        min_bytes_per_s: minimum rate over `timeout_s` seconds, below which an attempt fails, so
            that a server that sends a byte now and then causes no hang. 0 is no limit. It does not
            apply to listings, which have many answers, nor to protocols that fsspec reads without
            asyncio, such as sftp:// and hf://.
        read_ahead_bytes: bytes that a process may fetch ahead of all of its readers together; 0
            turns reading ahead off.
        storage_options: passed to the fsspec file system (credentials, ``endpoint_url``, ...). An
            S3 endpoint is also taken from ``S3_ENDPOINT_URL`` or ``AWS_ENDPOINT_URL``.
    """

    def __init__(
        self,
        *,
        cache_dir: str | Path | None = None,
        cache_limit_bytes: int = 64 << 30,
        retries: int = 5,
        timeout_s: float = 60.0,
        min_bytes_per_s: float = 1024.0,
        read_ahead_bytes: int = 256 << 20,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser().absolute()
        self.cache_limit_bytes = whole_number("cache_limit_bytes", cache_limit_bytes)
        self.retries = whole_number("retries", retries, least=0)
        self.timeout_s = real_number("timeout_s", timeout_s, least=0.001)
        self.min_bytes_per_s = real_number("min_bytes_per_s", min_bytes_per_s, least=0)
        self.read_ahead_bytes = whole_number("read_ahead_bytes", read_ahead_bytes, least=0)
        self.storage_options = dict(storage_options or {})
        self._processes: dict[int, _Process] = {}

    def __repr__(self) -> str:  # without storage_options, which may hold secrets
        return f"Storage(cache_dir={str(self.cache_dir) if self.cache_dir else None!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_processes": {}}

    @property
    def _process(self) -> _Process:
        # A forked child keeps the connections of its parent, unused: closing them would close them
        # for the parent too, whose event loop shares their descriptors.
        process = self._processes.get(_forks)
        if process is None:
            process = self._processes.setdefault(_forks, _Process(self))
        return process

    def list(
        self, patterns: str | Path | Sequence[str | Path], *, endings: Sequence[str] = ()
    ) -> builtins.list[FileInfo]:
        """List the files that match patterns, sorted by path.

        Args:
            patterns: paths or URLs; each may be a file, a directory (everything below it that is
                not hidden), a glob (``*``, ``**``, ``?``, ``[..]``) or a brace expansion
                (``{000..127}``, ``{a,b}``). HTTP has no listing: files are named one by one, or
                with braces.
            endings: endings of the files to take from directories.

        Raises:
            ConfigError: a pattern, or a name of its brace expansion, matches nothing; two names
                lead to the same file; a folder is a table of another library, or holds an
                unfinished conversion; or a protocol needs a package.
            StorageError: the listing failed after all retries.
        """
        by_protocol: dict[str | None, builtins.list[str]] = {}
        for pattern in named_paths(patterns):
            protocol, path = split_url(pattern)
            names = local_names(path) if protocol is None else expand_braces(pattern)
            by_protocol.setdefault(protocol, []).extend(names)
        files: builtins.list[FileInfo] = []
        for protocol, names in by_protocol.items():
            if protocol is None:
                listed = list_local(names, endings)
            else:
                filesystem = self._filesystem(protocol)
                listed = list_remote(
                    filesystem, names, endings, pace=self._pace, retries=self.retries
                )
                for info in chain.from_iterable(listed):
                    # The entry is older than the listing.
                    self._process.looked_up.pop(info.path, None)
            for name, infos in zip(names, listed, strict=True):
                if not infos:
                    is_named = not endings or has_ending(name, endings)
                    kinds = "" if is_named else f" that ends in {' or '.join(endings)}"
                    raise ConfigError(
                        f'No file{kinds} matches "{shown(name)}".',
                        remedy="Check the path or URL.",
                        path=shown(name),
                    )
                files += {info.path: info for info in infos}.values()  # ** may find a file twice
        self.refuse_repeated([info.path for info in files])
        return sorted(files, key=lambda info: info.path)

    def refuse_repeated(self, paths: Sequence[str]) -> None:
        """Raise `ConfigError` if two paths lead to one file, which an epoch would read twice."""
        refuse_repeated(paths, real_files(paths, self._filesystem))

    @contextmanager
    def open(self, file: str | FileInfo) -> Iterator[StoredFile]:
        """Open a file inside a context.

        Args:
            file: path or URL; or a listed file, which fixes the version.

        Raises (as its methods do):
            StateError: the file was replaced since it was listed.
            StorageError: the file cannot be read, after all retries.
        """
        path = file if isinstance(file, str) else file.path
        protocol, local = split_url(path)
        if protocol is None:
            yield self._attempt("Reading", path, lambda: LocalFile(Path(local)))
            return
        ranged = RangedFile(self._listed(file), self._process.fetcher)
        try:
            yield ranged
        finally:
            ranged.close()

    def decoded(
        self, file: StoredFile, what: str, make: Callable[[StoredFile, IO[bytes]], bool | None]
    ) -> GrowingFile:
        """Return a content derived from a file, made once for all processes of a host.

        Args:
            file: the original, opened with `open`.
            what: name of the derived content.
            make: reads the original and writes the content, in a thread; it must write the same
                bytes on every call. It returns False if the original is cut short.
        """
        name, *version = map(str, file.version)
        identity = FileInfo(name, 0, "\0".join([*version, what]))

        def write(out: IO[bytes]) -> bool:
            with self.open(file.listed or name) as opened:
                return make(opened, out) is not False

        process = self._process
        return GrowingFile(process.growings, process.fetcher.key(identity), shown(name), write)

    def forget(self, file: str | FileInfo) -> bool:
        """Remove a remote file from the cache, so that the next use fetches it.

        Return False if the cache has none of it.
        """
        path = file if isinstance(file, str) else file.path
        if split_url(path)[0] is None:
            return False
        fetcher = self._process.fetcher
        listed = self._listed(file)
        blocks = -(-listed.num_bytes // BLOCK_BYTES)
        return fetcher.cache.forget(fetcher.key(listed), blocks)

    def prefetch(self, file: FileInfo, start: int, stop: int) -> None:
        """Start to fetch bytes [start, stop) of a listed file, which are read next; return at once.

        A range that begins below zero counts from the end of the file.
        """
        if self.read_ahead_bytes and split_url(file.path)[0] is not None:
            self._process.fetcher.ahead.add_hint(Hint(self._begin, file, start, stop))

    def _begin(self, listed: FileInfo, start: int, stop: int) -> None:
        fetcher = self._process.fetcher
        file = RangedFile(self._listed(listed), fetcher)
        if start < 0:
            start, stop = max(file.num_bytes + start, 0), file.num_bytes
        fetcher.fetch_ahead(
            file, start // BLOCK_BYTES, -(-min(stop, file.num_bytes) // BLOCK_BYTES)
        )

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        protocol, local = split_url(path)
        if protocol is not None:
            return self._look_up(path).num_bytes
        return self._attempt("Reading", path, lambda: os.path.getsize(local))

    def read_range(self, file: str | FileInfo, start: int, stop: int) -> bytes:
        """Read bytes [start, stop) of a file, which must have them, without caching them.

        Raises:
            StateError: the file was replaced since it was listed.
            StorageError: the bytes could not be read, after all retries.
        """
        path = file if isinstance(file, str) else file.path
        protocol, local = split_url(path)
        if start >= stop:
            return b""
        if protocol is None:
            return self._attempt("Reading", path, lambda: _read_exactly(local, start, stop))
        listed = self._listed(file)
        data = self._get(listed, start, stop)
        if data is None:
            with self.open(listed) as opened:
                return opened.read(start, stop)
        return data

    def _get(
        self, listed: FileInfo, start: int, stop: int, retries: int | None = None
    ) -> bytes | None:
        """Fetch bytes [start, stop) of the listed version of a remote file.

        Return None if the server sends whole files only.
        """
        from streampack.storage.ranges import fetch_range

        url, pace = listed.path, self._pace
        filesystem = self._filesystem(split_url(url)[0] or "")

        def read() -> bytes | None:
            part = fetch_range(filesystem, url, start, stop, listed.num_bytes, pace)
            if part is None:
                return None
            if listed.version and is_another_version(part.version, listed.version):
                raise replaced(url, listed.version, part.version)
            return part.data

        data, server = None, _server(url)
        if server not in self._process.whole or (start, stop) == (0, listed.num_bytes):
            retries = self.retries if retries is None else retries
            try:
                data = with_retries(read, doing="Reading", url=url, retries=retries)
            except StorageError as error:
                if error.failure == "other":  # for example a range beyond the end of a shorter file
                    self._check_unchanged(listed, error)
                raise
        if data is not None:
            fetched.append(len(data))
            return data
        if server not in self._process.whole:
            self._process.whole.add(server)
            logger.warning(
                "Files of %s are downloaded whole before they are read: it sends no ranges.", server
            )
        return None

    def _get_whole(self, listed: FileInfo, begin: Callable[[], BlockWriter]) -> BlockWriter:
        """Write a whole file, and check its size and version."""
        from streampack.storage.ranges import whole_file

        url, pace = listed.path, self._pace
        filesystem = self._filesystem(split_url(url)[0] or "")

        def download() -> BlockWriter:
            writer = begin()
            for data in whole_file(filesystem, url, listed.num_bytes, pace):
                writer.write(data)
            writer.finish()
            now = FileInfo.of(url, info_of(filesystem, url, pace))
            if listed.version and is_another_version(now.version, listed.version):
                raise replaced(url, listed.version, now.version)
            return writer

        writer = with_retries(download, doing="Downloading", url=url, retries=self.retries)
        fetched.append(listed.num_bytes)
        return writer

    def _check_unchanged(self, listed: FileInfo, error: StorageError) -> None:
        """Raise `StateError` from an error if a file changed since it was listed."""
        url = listed.path
        with suppress(StorageError):
            filesystem = self._filesystem(split_url(url)[0] or "")
            now = FileInfo.of(url, look_up(filesystem, url, pace=self._pace, retries=0))
            if now.num_bytes != listed.num_bytes:
                raise replaced(url, f"{listed.num_bytes} bytes", f"{now.num_bytes}") from error
            if is_another_version(now.version, listed.version):
                raise replaced(url, listed.version, now.version) from error

    def _listed(self, file: str | FileInfo) -> FileInfo:
        """Return a remote file with its version, which is looked up if unknown."""
        if isinstance(file, str):
            return self._look_up(file)
        return file if file.version else self._look_up(file.path)

    @property
    def _pace(self) -> Pace:
        return Pace(self.timeout_s, self.min_bytes_per_s)

    def _attempt(self, doing: str, path: str, action: Callable[[], R]) -> R:
        return with_retries(action, doing=doing, url=path, retries=self.retries)

    def _filesystem(self, protocol: str) -> Any:
        filesystems = self._process.filesystems
        if protocol not in filesystems:
            from streampack.storage.filesystems import open_once

            open_once(filesystems, protocol, self.storage_options, self.timeout_s)
        return filesystems[protocol]

    def _look_up(self, url: str) -> FileInfo:
        """Look up size and version of a remote file; a process remembers the last ones."""
        looked_up = self._process.looked_up
        known = looked_up.get(url)
        if known is None:
            protocol, _ = split_url(url)
            filesystem = self._filesystem(protocol or "")
            info = look_up(filesystem, url, pace=self._pace, retries=self.retries)
            known = self._remember(FileInfo.of(url, info))
        return known

    def _remember(self, info: FileInfo) -> FileInfo:
        looked_up = self._process.looked_up
        known = looked_up.setdefault(info.path, info)
        if len(looked_up) > _MOST_LOOKED_UP:
            with suppress(KeyError):  # another thread removed it
                looked_up.popitem(last=False)
        return known


def _server(url: str) -> str:
    """Return the server of a URL, or its protocol, for messages."""
    protocol = split_url(url)[0] or ""
    over_http = protocol in ("http", "https")
    return urlsplit(url).netloc.rpartition("@")[2] if over_http else f"{protocol}://"


def _read_exactly(path: str | Path, start: int, stop: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read(stop - start)
    if len(data) != stop - start:
        raise OSError(f"the file ends before byte {stop}")
    return data
