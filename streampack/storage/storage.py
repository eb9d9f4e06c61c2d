"""One small interface to local and remote files.

Local files are used in place. Remote files are read by range, through a cache directory that any
number of processes share. If a server sends no ranges, whole files are read as they come. A
`Storage` may be pickled or forked at any time: each process makes its own
connections, threads and locks.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from streampack.arguments import explained, real_number, switch, whole_number
from streampack.errors import ConfigError
from streampack.file_info import FileInfo, Range, shown, split_url
from streampack.names.listing import (
    expand_braces,
    has_ending,
    list_local,
    local_names,
    named_paths,
    real_files,
    refuse_repeated,
)
from streampack.per_process import PerProcess
from streampack.remote.retries import with_retries
from streampack.storage.files import LocalFile, StoredFile

if TYPE_CHECKING:
    from streampack.storage.blocks import BlockCache
    from streampack.storage.growing import GrowingFile, Growings
    from streampack.storage.remote_files import RemoteFiles

R = TypeVar("R")
#: Writes a content derived from a file; see `Storage.decoded`.
Make = Callable[[StoredFile, IO[bytes]], "str | None"]


@explained
class Storage:
    """List, read and cache files at local paths and any URL that fsspec supports.

    Args:
        cache_dir: directory of fetched data; use a local disk. Any number of processes and datasets
            may share it. Default: ``$XDG_CACHE_HOME/streampack`` or ``~/.cache/streampack``, or a
            private temporary directory if that cannot be written.
        cache_limit_bytes: maximum size of the cache. Data of no run goes first, then data that was
            read and has come last.
        cache_blocks: False holds fetched blocks in memory instead, in each process by itself, up to
            `read_ahead_bytes`. Decoded content and files of servers without ranges, which processes
            share, stay in `cache_dir`.
        retries: attempts after the first, with random waits of up to 0.25 s, 0.5 s, ... 30 s. None
            repeats reading for five minutes, and looking up and listing for twenty seconds.
        timeout_s: seconds without an answer after which an attempt fails.
        min_bytes_per_s: minimum rate over `timeout_s` seconds, below which an attempt fails, so
            that a server that sends a byte now and then causes no hang. 0 is no limit. It does not
            apply to listings, which have many answers, nor to protocols that fsspec reads without
            asyncio, such as sftp://.
        read_ahead_bytes: bytes that a process may fetch ahead of all of its readers together, an
            eighth of `cache_limit_bytes` at most (three quarters of them without `cache_blocks`); 0
            turns reading ahead off.
        storage_options: passed to the fsspec file system (credentials, ``endpoint_url``, ...). An
            S3 endpoint is also taken from ``S3_ENDPOINT_URL`` or ``AWS_ENDPOINT_URL``.
    """

    def __init__(
        self,
        *,
        cache_dir: str | Path | None = None,
        cache_limit_bytes: int = 64 << 30,
        cache_blocks: bool = True,
        retries: int | None = None,
        timeout_s: float = 60.0,
        min_bytes_per_s: float = 1024.0,
        read_ahead_bytes: int = 256 << 20,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser().absolute()
        self.cache_limit_bytes = whole_number("cache_limit_bytes", cache_limit_bytes)
        self.cache_blocks = switch("cache_blocks", cache_blocks)
        self.retries = None if retries is None else whole_number("retries", retries, least=0)
        self.timeout_s = real_number("timeout_s", timeout_s, least=0.001)
        self.min_bytes_per_s = real_number("min_bytes_per_s", min_bytes_per_s, least=0)
        self.read_ahead_bytes = whole_number("read_ahead_bytes", read_ahead_bytes, least=0)
        self.storage_options = dict(storage_options or {})
        self._cache = PerProcess(self._make_cache)
        self._remote = PerProcess(self._make_remote)
        self._growings = PerProcess(self._make_growings)

    def __repr__(self) -> str:  # without storage_options, which may hold secrets
        return f"Storage(cache_dir={str(self.cache_dir) if self.cache_dir else None!r})"

    @property
    def remote(self) -> RemoteFiles:
        """The remote files of this process."""
        return self._remote()

    def _make_cache(self) -> BlockCache:
        from streampack.storage.blocks import BlockCache, default_cache_dir

        folder = self.cache_dir or default_cache_dir()
        return BlockCache(folder / "blocks", self.cache_limit_bytes)

    def _make_remote(self) -> RemoteFiles:
        from streampack.storage.remote_files import RemoteFiles

        return RemoteFiles(self, self._cache())

    def _make_growings(self) -> Growings:
        from streampack.storage.growing import Growings

        return Growings(self._cache())

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
                listed = self.remote.list(protocol, names, endings)
            for name, infos in zip(names, listed, strict=True):
                if not infos:
                    if protocol is not None and (fact := self.remote.missing_container(name)):
                        raise ConfigError(fact, "Check the URL.", path=shown(name))
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
        refuse_repeated(paths, real_files(paths, lambda protocol: self.remote.catalog(protocol)))

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
            yield self._attempt(path, lambda: LocalFile(Path(local)))
            return
        with closing(self.remote.open(file)) as ranged:
            yield ranged

    def decoded(
        self, file: StoredFile, content: str, make: Make, num_bytes: int = -1
    ) -> GrowingFile:
        """Return a content derived from a file, made once for all processes of a host.

        Args:
            file: the original, opened with `open`.
            content: name of the derived content.
            make: reads the original and writes the content, in a thread; it must write the same
                bytes on every call. It returns the fault of the original at which the content ends.
            num_bytes: size of the content if it is known.
        """
        from streampack.storage.growing import GrowingFile, derived_key

        name = str(file.version[0])

        def write(out: IO[bytes]) -> str:
            with self.open(file.listed or name) as opened:
                return make(opened, out) or ""

        key = derived_key(file, content)
        return GrowingFile(self._growings(), key, shown(name), write, num_bytes)

    def forget(self, file: str | FileInfo) -> bool:
        """Remove a remote file from the cache, so that the next use fetches it.

        Return False if the cache has none of it.
        """
        path = file if isinstance(file, str) else file.path
        return split_url(path)[0] is not None and self.remote.forget(file)

    def plan(
        self, key: Hashable, pieces: Iterable[Iterable[Range]], width: int, *, later: bool = False
    ) -> None:
        """Let threads fetch the bytes that a reader will come to, in its order.

        Args:
            key: key of the reader, which has one plan.
            pieces: the ranges of each piece of remote files that it opens; they are iterated over
                in threads, and must not call pyarrow.
            width: number of pieces that it reads in turns.
            later: True before the reader begins, with the same key; others are fetched first.
        """
        if self.read_ahead_bytes:
            from streampack.storage.turns import in_turns

            self.remote.plan(key, in_turns(pieces, width), later=later)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        protocol, local = split_url(path)
        if protocol is not None:
            return self.remote.look_up(path).num_bytes
        return self._attempt(path, lambda: os.path.getsize(local))

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
            return self._attempt(path, lambda: _read_exactly(local, start, stop))
        return self.remote.read_range(file, start, stop)

    def _attempt(self, path: str, action: Callable[[], R]) -> R:
        return with_retries(action, doing="Reading", url=path, retries=self.retries)


def _read_exactly(path: str | Path, start: int, stop: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read(stop - start)
    if len(data) != stop - start:
        raise ValueError(f"the file ends before byte {stop}")  # another attempt gives no more
    return data


_kept: WeakValueDictionary[int, Storage] = WeakValueDictionary()  # storages by environment


def default_storage() -> Storage:
    """Return a `Storage` with default settings, shared by all who use it now.

    The sources of a mixture so have one set of connections, and read ahead within one limit. With
    other variables in the environment, such as keys or a cache directory, it is another one.
    """
    environment = hash(frozenset(os.environ.items()))
    storage = _kept.get(environment)
    if storage is None:
        storage = _kept.setdefault(environment, Storage())
    return storage
