"""WebDataset shards: tar archives in which files with one stem are one sample, read in bulk."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampack.documents import Documents, Texts, make_origin
from streampack.errors import ConfigError, ContentError, StorageError
from streampack.reading.base import Block
from streampack.reading.integer_arrays import Spans, gather_tokens, integer_kind, unsigned_dtype
from streampack.reading.items import BAD_ID, integer_array, token_block
from streampack.reading.manifest import Manifest
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources.tar.headers import DUPLICATE, ENDED, FAULTS, MORE, scan_tar
from streampack.sources.tar.npy import UNCOMMON, npy_values, parse_uncommon
from streampack.storage.patterns import expand_braces
from streampack.storage.remote import shown
from streampack.storage.storage import Storage
from streampack.storage.unpacking import (
    DamagedError,
    copy_stream,
    decompress,
    map_file,
    sniff_codec,
)

__all__ = ["WebDataset"]

_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.zst", ".tzst")
_TEXT = ("txt", "text", "md")


class WebDataset(ShardedSource):
    """Documents in WebDataset shards.

    Steps: an archive is mapped into memory (a compressed one is first decompressed into a
    temporary file); one kernel walks its headers and finds the wanted file of each sample,
    another reads the `.npy` headers, and one gather copies the ids of a block into a compact
    array. Cost: about 1 microsecond per `.npy` document of 700 tokens; a decode for text and a
    parse for JSON, per document.

    Files belong to one sample if they stand next to each other and agree in folder and name up
    to the first dot. Archives laid end to end in one file are all read. An archive without the
    zero block at its end counts as cut short: its documents are delivered, then it is reported.

    A position inside a shard is a document number, because numbers name documents and stay small;
    a restart walks the headers from the beginning, which costs a fraction of having the shard on
    local disk.

    Args:
        urls: paths or URLs of shards, with braces or wildcards, or directories of them.
        key: extension of the wanted file, without the leading dot: "npy" (or "tokens.npy", ...)
            for ids, "txt" for text, "json" for an object with a field of text or ids; any other
            with `dtype`.
        text_field: for JSON, the field of text.
        tokens_field: for JSON, the field that holds a list of ids, instead of text.
        dtype: the wanted file is a bare array of these integers.
        allow_pipe: run `pipe:` URLs in a shell, as webdataset does. They can do anything that
            you can, so a list of shards from elsewhere must not contain them.
        storage: how files are reached and cached.
        open_shards: see `ShardedSource`, like `block_documents` and `block_bytes`.

    Raises:
        ConfigError: wrong arguments, or `pipe:` URLs that are not allowed.
    """

    seekable = True
    splittable = False
    listing_fields: tuple[str, ...] = ("urls",)

    def __init__(
        self,
        urls: str | Path | Sequence[str | Path],
        *,
        key: str,
        text_field: str = "text",
        tokens_field: str | None = None,
        dtype: DTypeLike | None = None,
        allow_pipe: bool = False,
        storage: Storage | None = None,
        open_shards: int = 2,
        block_documents: int | None = None,
        block_bytes: int = 4 << 20,
    ) -> None:
        super().__init__(
            open_shards=open_shards, block_documents=block_documents, block_bytes=block_bytes
        )
        several = [urls] if isinstance(urls, str | Path) else list(urls)
        self.urls = [str(url) for url in several]
        self.key = key.lower().removeprefix(".")
        self.text_field = text_field
        self.tokens_field = tokens_field
        self.dtype = None if dtype is None else np.dtype(dtype).name
        self.storage = Storage() if storage is None else storage
        self.pipes = [url for url in self.urls if url.startswith("pipe:")]
        self.form = self._form()
        self.tokenized = self.form in ("npy", "raw") or tokens_field is not None
        if self.pipes and not allow_pipe:
            raise ConfigError(
                f'"{self.pipes[0]}" is a pipe: URL.',
                "It would run a command in a shell, so it is refused.",
                "Name the shards by URL (s3://, https://, ...), or pass allow_pipe=True if you "
                "wrote the command yourself.",
            )

    def _form(self) -> str:
        """How the wanted file is read: "npy", "text", "json" or "raw"."""
        if self.dtype is not None:
            integer_kind(self.dtype)
        last = self.key.rsplit(".", 1)[-1]
        form = "raw" if self.dtype is not None else "text" if last in _TEXT else last
        if form not in ("npy", "text", "json", "raw"):
            raise ConfigError(
                f"key is {self.key!r}.",
                "It does not say how such files hold documents, and decoders that could run code "
                "(pickle, torch) are not used.",
                "Use files that end in npy, txt or json, or pass dtype for bare arrays of ids.",
            )
        if self.tokens_field is not None and form != "json":
            raise ConfigError(
                f"tokens_field is {self.tokens_field!r} and key is {self.key!r}.",
                "Only JSON has fields.",
                "Leave tokens_field out, or use the key of a JSON file.",
            )
        return form

    def list_shards(self) -> Manifest:
        patterns = [url for url in self.urls if not url.startswith("pipe:")]
        files = self.storage.list(patterns, suffixes=_SUFFIXES) if patterns else []
        paths = [file.path for file in files]
        paths += [url for pipe in self.pipes for url in expand_braces(pipe)]
        num_bytes = [file.num_bytes for file in files]
        return Manifest(
            paths=tuple(paths),
            units=np.ones(len(paths), dtype=np.int64),
            num_bytes=np.array(num_bytes + [0] * (len(paths) - len(files)), dtype=np.int64),
            unit="shard",
        )

    def describe(self) -> dict[str, Any]:
        fields = {"text_field": self.text_field} if self.form == "json" else {}
        if self.tokens_field is not None:
            fields = {"tokens_field": self.tokens_field}
        return {**super().describe(), "key": self.key, "dtype": self.dtype, **fields}

    def will_read(self, shards: Sequence[int]) -> None:
        paths = [self.manifest.paths[shard] for shard in shards]
        self.storage.prefetch([path for path in paths if not path.startswith("pipe:")])

    def read_shard(
        self, shard: int, start: int, stop: int, skips: Skips
    ) -> Iterator[tuple[Block | Spans, int]]:
        extension = np.frombuffer(self.key.encode(), dtype=np.uint8)
        with self._opened(shard) as (data, complete):
            document, offset, outcome = _seek(data, start, extension)
            while outcome == MORE:
                n, offset, outcome, block = self._block(
                    shard, data, offset, document, extension, skips
                )
                document += n
                if n:
                    yield block, document
        if outcome != ENDED or not complete:
            after = f"after document {document - 1}" if document else "before the first document"
            what = FAULTS.get(outcome, "its compressed data breaks off")
            raise ContentError(
                f"{shown(self.manifest.paths[shard])} is broken {after} (byte {offset}): {what}.",
                "Nothing behind that can be read.",
                'Write or download the shard again, or skip its rest with on_error="skip".',
                shard=shard,
                index=document,
                rest_of_shard=True,
            )

    @contextmanager
    def _opened(self, shard: int) -> Iterator[tuple[NDArray[np.uint8], bool]]:
        """The bytes of an archive, and whether its compression (if any) ended properly."""
        path = self.manifest.paths[shard]
        if path.startswith("pipe:"):
            with tempfile.TemporaryDirectory(dir=self._temporary_folder()) as folder:
                target = Path(folder) / "shard"
                _run_pipe(path, target)
                yield self._mapped(shard, target)
        else:
            with self.storage.local(path) as local:
                yield self._mapped(shard, local)

    def _temporary_folder(self) -> Path | None:
        folder = self.storage.cache_dir
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _mapped(self, shard: int, local: Path) -> tuple[NDArray[np.uint8], bool]:
        try:
            codec = sniff_codec(local)
            if codec is None:
                return map_file(local), True
            return decompress(local, codec, folder=self._temporary_folder())
        except DamagedError as error:
            raise ContentError(
                f"{shown(self.manifest.paths[shard])} is broken: {error}.",
                "No document can be read from this shard.",
                'Write or download the shard again, or skip it with on_error="skip".',
                shard=shard,
                rest_of_shard=True,
            ) from error
        except FileNotFoundError as error:
            raise StorageError(
                f"{local} is not there any more.",
                "It was listed when the dataset was built.",
                "Put it back, or build the dataset anew.",
            ) from error

    def _block(
        self,
        shard: int,
        data: NDArray[np.uint8],
        offset: int,
        document: int,
        extension: NDArray[np.uint8],
        skips: Skips,
    ) -> tuple[int, int, int, Block | Spans]:
        """Scan and read one block: how many documents, where the next begins, how it ended."""
        starts = np.zeros(self.block_documents, dtype=np.int64)
        sizes = np.zeros_like(starts)
        status = np.zeros(self.block_documents, dtype=np.uint8)
        n, offset, outcome = scan_tar(
            data, offset, extension, self.block_bytes, starts, sizes, status
        )
        starts, sizes, status = starts[:n], sizes[:n], status[:n]
        problems: dict[int, str] = {}
        for i in np.flatnonzero(status).tolist():
            many = status[i] == DUPLICATE
            problems[i] = f"it has {'several files' if many else 'no file'} .{self.key}"
        origin = make_origin(shard, np.arange(document, document + n, dtype=np.int64))
        block: Block | Spans
        if self.form == "json":
            block = self._from_json(data, starts, sizes, origin, problems)
        elif self.form == "text":
            block = _from_text(data, starts, sizes, origin, problems)
        else:
            block = self._from_arrays(data, starts, sizes, status, origin, problems)
        for i in sorted(problems):
            skips.handle(
                ContentError(
                    f"Document {document + i} of {shown(self.manifest.paths[shard])} is broken: "
                    f"{problems[i]}.",
                    "It cannot be delivered.",
                    'Repair it, or skip it with on_error="skip".',
                    shard=shard,
                    index=document + i,
                )
            )
        return n, offset, outcome, block

    def _from_arrays(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        status: NDArray[np.uint8],
        origin: NDArray[np.void],
        problems: dict[int, str],
    ) -> Documents | Spans:
        """Arrays of ids, with a `.npy` header or bare."""
        counts = np.zeros_like(starts)
        kinds = np.zeros(len(starts), dtype=np.uint8)
        if self.form == "raw":
            kind = integer_kind(self.dtype)
            kinds[:] = kind
            counts[:] = sizes // (kind & 15)
            for i in np.flatnonzero((sizes % (kind & 15) != 0) & (status == 0)).tolist():
                problems[i] = f"its {sizes[i]} bytes are no whole number of {self.dtype}"
        else:
            npy_values(data, starts, sizes, status, counts, kinds)
            for i in np.flatnonzero(status == UNCOMMON).tolist():
                found = parse_uncommon(data[starts[i] : starts[i] + sizes[i]].tobytes())
                if isinstance(found, str):
                    problems[i] = found
                else:
                    starts[i] += found[0]
                    counts[i], kinds[i] = found[1:]
        good = np.arange(len(starts))
        if problems:
            good = np.setdiff1d(good, list(problems))
            starts, counts, kinds, origin = starts[good], counts[good], kinds[good], origin[good]
        dtype = unsigned_dtype(kinds)
        if dtype is not None:  # none of their ids is wrong
            return Spans(data, starts, counts, dtype, origin)
        tokens, offsets, bad = gather_tokens(data, starts, counts, kinds)
        block = Documents(tokens, offsets, origin)
        if bad.any():
            problems.update(dict.fromkeys(good[bad].tolist(), BAD_ID))
            block = block.take(np.flatnonzero(~bad))
        return block

    def _from_json(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        origin: NDArray[np.void],
        problems: dict[int, str],
    ) -> Block:
        """One parse per document."""
        field = self.text_field if self.tokens_field is None else self.tokens_field
        texts: list[str] = []
        arrays: list[NDArray[Any]] = []
        good: list[int] = []
        for i, content in _contents(data, starts, sizes, problems):
            try:
                value = json.loads(bytes(content))
            except (ValueError, RecursionError) as error:
                problems[i] = f"it is not JSON ({error})"
                continue
            if not isinstance(value, dict) or field not in value:
                problems[i] = f'it is not an object with a field "{field}"'
                continue
            value = value[field]
            if self.tokenized:
                value = integer_array(value)
                if isinstance(value, str):
                    problems[i] = f'field "{field}": {value}'
                    continue
                arrays.append(value)
            elif isinstance(value, str):
                texts.append(value)
            else:
                problems[i] = f'field "{field}" is not text'
                continue
            good.append(i)
        if not self.tokenized:
            return Texts(texts, origin[good])
        block, bad = token_block(arrays, origin[good])
        for k in np.flatnonzero(bad).tolist():
            problems[good[k]] = BAD_ID
        return block.take(np.flatnonzero(~bad)) if bad.any() else block


def _seek(
    data: NDArray[np.uint8], document: int, extension: NDArray[np.uint8]
) -> tuple[int, int, int]:
    """Walk over the first documents: how many there were, where the next begins, how it ended."""
    passed, offset, outcome = 0, 0, MORE
    unlimited = np.iinfo(np.int64).max
    while passed < document and outcome == MORE:
        room = min(4096, document - passed)
        starts = np.zeros(room, dtype=np.int64)
        n, offset, outcome = scan_tar(
            data,
            offset,
            extension,
            unlimited,
            starts,
            np.zeros_like(starts),
            np.zeros(room, dtype=np.uint8),
        )
        passed += n
    return passed, offset, outcome


def _contents(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    problems: dict[int, str],
) -> Iterator[tuple[int, memoryview]]:
    """The files of a block that are there, each with its place in it."""
    view = memoryview(cast(Any, data))
    spans = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    for i, (begin, end) in enumerate(spans):
        if i not in problems:
            yield i, view[begin:end]


def _from_text(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    origin: NDArray[np.void],
    problems: dict[int, str],
) -> Texts:
    """One decode per document."""
    texts: list[str] = []
    good: list[int] = []
    for i, content in _contents(data, starts, sizes, problems):
        try:
            texts.append(str(content, "utf-8"))
            good.append(i)
        except UnicodeDecodeError as error:
            problems[i] = f"it is not UTF-8 ({error.reason})"
    return Texts(texts, origin[good])


def _run_pipe(url: str, target: Path) -> None:
    """Write what a `pipe:` URL yields to a file; webdataset runs the command."""
    try:
        from webdataset.gopen import gopen
    except ImportError as error:
        raise ConfigError(
            "webdataset is not installed.",
            "It runs the commands of pipe: URLs.",
            'Install it with `pip install "streampack[webdataset]"`.',
        ) from error
    try:
        with gopen(url, "rb") as stream:
            copy_stream(cast(Any, stream), target)
    except OSError as error:
        raise StorageError(
            f"{url} failed: {error}.",
            "The shard cannot be read.",
            "Run the command by hand to see why.",
        ) from error
