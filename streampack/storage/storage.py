"""One small interface to local files and to remote ones.

Local files are used in place. Remote ones are downloaded whole into a cache directory that any
number of processes share, so that readers can map and seek them. A `Storage` may be pickled or
forked at any time: connections, threads and locks belong to one process, and another makes its own.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from streampack.arguments import explained, real_number, whole_number
from streampack.errors import ConfigError, StateError, StorageError
from streampack.storage.cache import ANY_SIZE, Cache, Entry, default_cache_dir
from streampack.storage.filesystems import open_filesystem
from streampack.storage.growing import GrowingFile
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
from streampack.storage.read_ahead import ReadAhead
from streampack.storage.remote import (
    FileInfo,
    Pace,
    Progress,
    fetch_range,
    info_of,
    is_another_version,
    look_up,
    shown,
    split_url,
    with_retries,
)

R = TypeVar("R")

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class _Process:
    """What belongs to one process: connections, look-ups, threads."""

    def __init__(self, storage: Storage) -> None:
        self.filesystems: dict[str, Any] = {}
        self.looked_up: dict[str, FileInfo] = {}
        folder = storage.cache_dir
        self.cache = Cache(folder or default_cache_dir(), storage.cache_limit_bytes)
        self.read_ahead = ReadAhead(
            min(storage.read_ahead_bytes, storage.cache_limit_bytes // 2),
            lambda url: storage._look_up(url).num_bytes,
            storage._fetch_ahead,
        )


@explained
class Storage:
    """Lists, reads and caches files at local paths and any URL that fsspec knows.

    Args:
        cache_dir: directory for remote files, best on a local disk. Any number of processes and
            datasets may share it. Default: ``$XDG_CACHE_HOME/streampack`` or
            ``~/.cache/streampack``, or a private temporary directory if that cannot be written.
        cache_limit_bytes: the least recently opened files are removed to stay below it; files in
            use are not, even if that exceeds it.
        retries: attempts after the first, with random waits of up to 0.25 s, 0.5 s, ... 30 s.
        timeout_s: seconds without an answer after which an attempt has failed.
        min_bytes_per_s: an attempt that gets less than that, for `timeout_s` seconds, has failed as
            well; so a server that sends a byte now and then is no hang. 0 is no limit. It does not
            hold for listings, which are many answers, nor for protocols that fsspec reads without
            asyncio, such as sftp:// and hf://.
        read_ahead_bytes: bytes that a process may have downloaded ahead and not yet opened; a
            larger file is downloaded ahead alone. 0 turns reading ahead off.
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
        found = self._processes.get(_forks)
        if found is None:
            found = self._processes.setdefault(_forks, _Process(self))
        return found

    def list(
        self, patterns: str | Path | Sequence[str | Path], *, endings: Sequence[str] = ()
    ) -> builtins.list[FileInfo]:
        """The files that patterns name, sorted by path.

        Args:
            patterns: paths or URLs; each may be a file, a directory (everything below it that is
                not hidden), a glob (``*``, ``**``, ``?``, ``[..]``) or a brace expansion
                (``{000..127}``, ``{a,b}``). HTTP has no listing: files are named one by one, or
                with braces.
            endings: from directories, take only names that end in one of these.

        Raises:
            ConfigError: a pattern, or one of the names its braces stand for, names nothing; two
                of them lead to the same file; a folder is a table of another library, or holds an
                unfinished conversion; or a protocol needs a package.
            StorageError: the listing failed after all retries.
        """
        by_protocol: dict[str | None, builtins.list[str]] = {}
        for pattern in named_paths(patterns):
            protocol, rest = split_url(pattern)
            names = local_names(rest) if protocol is None else expand_braces(pattern)
            by_protocol.setdefault(protocol, []).extend(names)
        found: builtins.list[FileInfo] = []
        for protocol, names in by_protocol.items():
            if protocol is None:
                listed = list_local(names, endings)
            else:
                filesystem = self._filesystem(protocol)
                listed = list_remote(
                    filesystem, names, endings, pace=self._pace, retries=self.retries
                )
            for name, infos in zip(names, listed, strict=True):
                if not infos:
                    said = not endings or has_ending(name, endings)
                    kinds = "" if said else f" that ends in {' or '.join(endings)}"
                    raise ConfigError(
                        f'No file{kinds} matches "{shown(name)}".',
                        remedy="Check the path or URL.",
                        path=shown(name),
                    )
                found += {info.path: info for info in infos}.values()  # ** may find a file twice
        self.refuse_repeated([info.path for info in found])
        return sorted(found, key=lambda info: info.path)

    def refuse_repeated(self, paths: Sequence[str]) -> None:
        """Raise `ConfigError` if two paths lead to one file, which an epoch would read twice."""
        refuse_repeated(paths, real_files(paths, self._filesystem))

    @contextmanager
    def local(self, path: str, version: str = "") -> Iterator[Path]:
        """A local file with the content of `path`, complete and in place inside the context.

        Args:
            path: path or URL.
            version: that a remote file had when it was listed; "" is any.

        Raises:
            StateError: the file was replaced, since it was listed or while it was downloaded.
            StorageError: it could not be downloaded, after all retries.
        """
        protocol, rest = split_url(path)
        if protocol is None:
            yield Path(rest)
            return
        process = self._process
        process.read_ahead.opened(path)
        remote = self._look_up(path)
        if version and is_another_version(remote.version, version):
            raise _replaced(path, version, remote.version)
        with process.cache.open(
            self._entry(path), lambda part: self._download(path, remote, part)
        ) as file:
            yield file

    @contextmanager
    def decoded(
        self, path: str, what: str, make: Callable[[Path, IO[bytes]], None]
    ) -> Iterator[GrowingFile | None]:
        """A file in the cache that is made of another one, once for all processes of a host.

        Args:
            path: path or URL of the other one, which was opened with `local` before.
            what: is made of it; a name.
            make: reads it and writes the file, in a thread, the same bytes whenever it is called.

        Yields:
            The file, which may still grow, or None if it cannot be made: there is no room, the
            cache cannot be written, or `make` raised before in this process.
        """
        process = self._process
        protocol, rest = split_url(path)
        if protocol is None:
            status = os.stat(rest)
            size, version = status.st_size, f"{status.st_mtime_ns} {status.st_ino}"
            url = os.path.abspath(rest)
        else:
            remote = self._look_up(path)
            size, version, url = remote.num_bytes, remote.version, path
        entry = process.cache.entry(url, ANY_SIZE, f"{size}\0{version}\0{what}")

        def write(out: IO[bytes]) -> None:
            with self.local(path) as file:
                make(file, out)

        with process.cache.growing(entry, write, shown(path)) as made:
            yield made

    def forget(self, path: str) -> bool:
        """Remove the copy of a remote file, so that its next opening downloads it again.

        False if there is none: the file is local, or was not opened by this process.
        """
        process = self._process
        return path in process.looked_up and process.cache.forget(self._entry(path))

    def prefetch(self, paths: Sequence[str]) -> None:
        """Hint that these files are needed soon, in this order; returns at once, never raises."""
        remote = [path for path in paths if split_url(path)[0] is not None]
        if remote:
            self._process.read_ahead.hint(remote)

    def size(self, path: str) -> int:
        """Bytes in a file."""
        protocol, rest = split_url(path)
        if protocol is not None:
            return self._look_up(path).num_bytes
        return self._attempt("Reading", path, lambda: os.path.getsize(rest))

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a file; the file must have them.

        Raises:
            StorageError: they could not be read, after all retries.
        """
        protocol, rest = split_url(path)
        if start >= stop:
            return b""
        if protocol is None:
            return self._attempt("Reading", path, lambda: _read_exactly(rest, start, stop))
        over_http = protocol in ("http", "https")
        if over_http and not self._look_up(path).ranges:
            return self._range_of_copy(path, start, stop)

        def read() -> bytes | None:
            filesystem, size = self._filesystem(protocol), stop - start
            method = partial(fetch_range, filesystem) if over_http else "cat_file"
            data: bytes | None = self._pace.call(
                filesystem, method, path, start=start, end=stop, num_bytes=size
            )
            if data is not None and len(data) != size:
                raise OSError(f"{len(data)} bytes came instead of {size}")
            return data

        data = self._attempt("Reading", path, read)
        return self._range_of_copy(path, start, stop) if data is None else data

    def _range_of_copy(self, path: str, start: int, stop: int) -> bytes:
        """The same from a cached copy, for servers that send the whole file for every range."""
        with self.local(path) as file:
            return _read_exactly(file, start, stop)

    @property
    def _pace(self) -> Pace:
        return Pace(self.timeout_s, self.min_bytes_per_s)

    def _attempt(self, doing: str, path: str, action: Callable[[], R]) -> R:
        return with_retries(action, doing=doing, url=path, retries=self.retries)

    def _filesystem(self, protocol: str) -> Any:
        filesystems = self._process.filesystems
        found = filesystems.get(protocol)
        if found is None:
            opened = open_filesystem(protocol, self.storage_options, self.timeout_s)
            found = filesystems.setdefault(protocol, opened)
        return found

    def _look_up(self, url: str) -> FileInfo:
        """Size and version of a remote file, asked for once per process."""
        looked_up = self._process.looked_up
        found = looked_up.get(url)
        if found is None:
            protocol, _ = split_url(url)
            filesystem = self._filesystem(protocol or "")
            info = look_up(filesystem, url, pace=self._pace, retries=self.retries)
            found = looked_up.setdefault(url, FileInfo.of(url, info))
        return found

    def _entry(self, url: str) -> Entry:
        remote = self._look_up(url)
        return self._process.cache.entry(url, remote.num_bytes, remote.version)

    def _fetch_ahead(self, url: str) -> bool:
        remote = self._look_up(url)
        return self._process.cache.ensure(
            self._entry(url), lambda part: self._download(url, remote, part, retries=0)
        )

    def _download(self, url: str, remote: FileInfo, part: Path, retries: int | None = None) -> None:
        """Write the whole file to `part`, checking its size, and that it is what was looked up."""
        filesystem = self._filesystem(split_url(url)[0] or "")

        def download() -> None:
            self._pace.call(
                filesystem,
                "get_file",
                url,
                str(part),
                callback=Progress(remote.num_bytes, self._pace),
                num_bytes=remote.num_bytes,
            )
            size = part.stat().st_size
            if size != remote.num_bytes:
                raise OSError(f"{size} of {remote.num_bytes} bytes arrived")
            now = remote
            if remote.version:
                now = FileInfo.of(url, info_of(filesystem, url, self._pace))
            if is_another_version(now.version, remote.version):
                raise _replaced(url, remote.version, now.version)

        try:
            with_retries(
                download,
                doing="Downloading",
                url=url,
                retries=self.retries if retries is None else retries,
            )
        except (StateError, StorageError):
            with suppress(KeyError):  # there may be another version now: look it up again
                del self._process.looked_up[url]
            raise


def _replaced(url: str, before: str, now: str) -> StateError:
    return StateError(
        f"{shown(url)} was replaced: it had {before or 'no version'} when the run began, and has "
        f"{now or 'none'} now.",
        "Start a new run for changed data; if nobody changed it, let the server send Last-Modified "
        "or weak ETags (W/), which are not compared.",
        path=shown(url),
    )


def _read_exactly(path: str | Path, start: int, stop: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read(stop - start)
    if len(data) != stop - start:
        raise OSError(f"the file ends before byte {stop}")
    return data
