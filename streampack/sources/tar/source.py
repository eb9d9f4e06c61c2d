"""WebDataset shards: tar archives in which files with one stem are one sample, read in bulk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampack.documents import Documents, Texts, make_origin
from streampack.errors import ConfigError
from streampack.reading.base import Block
from streampack.reading.fields import Fields
from streampack.reading.integer_arrays import Spans, integer_block, integer_kind
from streampack.reading.manifest import Manifest
from streampack.reading.options import Reading
from streampack.reading.padding import ATTENTION_MASK
from streampack.reading.raw_texts import decoded_texts, pieces
from streampack.reading.record_block import Read, record_block
from streampack.reading.records import (
    BrokenDocumentError,
    ids_of,
    record_of,
    require_field,
    text_of,
    too_long,
)
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources.tar.headers import (
    DUPLICATE,
    ENDED,
    FAULTS,
    MORE,
    TOO_LONG,
    is_header,
    scan_tar,
)
from streampack.sources.tar.npy import UNCOMMON, npy_values, parse_uncommon
from streampack.sources.tar.pipes import is_pipe, refuse_pipes, run_pipe
from streampack.sources.tar.records import (
    array_in,
    field_beside,
    files_beside,
    ids_in,
    npz_record,
)
from streampack.sources.tar.usual_key import KEYS, usual_key
from streampack.storage.decompression import DamagedError, decompress, map_file, sniff_codec
from streampack.storage.listing import FileInfo
from streampack.storage.misnamed import log_twins
from streampack.storage.patterns import expand_braces, named_paths
from streampack.storage.storage import Storage
from streampack.unknown_arguments import explained

_TEXT = ("txt", "text", "md")
_ALL = int(np.iinfo(np.int64).max)
_PIPE_BYTES = 64 << 20  # what a shard from a command is taken to have


class WebDataset(ShardedSource):
    """Documents in WebDataset shards.

    Steps: an archive is mapped into memory (a compressed one is first decompressed into a
    temporary file); one kernel walks its headers and finds the wanted file of each sample,
    another reads the `.npy` headers, and one gather copies the ids of a block into a compact
    array. Cost: about 1 microsecond per `.npy` document of 700 tokens; a decode for text and a
    parse for JSON, per document.

    Files belong to one sample if they follow each other and have the same folder and the same name
    up to the first dot. Several archives in one file, one after the other, are all read. An archive
    without the zero block at its end counts as cut short: its documents are read, then it is
    reported.

    A shard is cut by its bytes among any number of lanes. To begin inside it, as after a restart,
    the headers are read from its beginning, which takes much less time than downloading it; a
    compressed one is decompressed from its beginning.

    Args:
        paths: paths or URLs of shards, with braces or wildcards, or directories of them.
        key: extension of the wanted file, without the leading dot: "npy" (or "tokens.npy", ...)
            for ids, "npz" for arrays of ids and fields, "txt" for text, "json" for an object with a
            field of text or ids; any other with `dtype`. None is that of the first member that ends
            in npy, txt or json. Fields of the dataset lie in the JSON or the `.npz`, or beside the
            others: the field "reward" in the sample's ".reward.npy".
        text: for JSON, the field of text; "text" if neither this nor `tokens` is given.
        tokens: for JSON, the field that holds a list of ids; for `.npz`, the array of ids.
        dtype: the wanted file is a bare array of these integers.
        allow_pipe: run `pipe:` URLs in a shell, as webdataset does. They can do anything that
            you can, so a list of shards from elsewhere must not contain them.
        reading: how a lane reads the shards.
        storage: how files are reached and cached.

    Raises:
        ConfigError: wrong arguments, or `pipe:` URLs that are not allowed.
    """

    endings = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.zst", ".tzst")
    listing_fields: tuple[str, ...] = ("paths",)

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        key: str | None = None,
        text: str | None = None,
        tokens: str | None = None,
        dtype: DTypeLike | None = None,
        allow_pipe: bool = False,
        reading: Reading | None = None,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(reading=reading, storage=storage)
        self.paths = named_paths(paths)
        if not allow_pipe:
            refuse_pipes(self.paths)
        self.fields = Fields.named(text=text, tokens=tokens, loss_mask=None, default="text")
        if key is None:
            known: Sequence[str] = KEYS if dtype is None else ()
            if text is not None or tokens is not None:
                known = ("json",)
            key = usual_key(self.paths, self.endings, known, self.storage)
        self.key = key.lower().removeprefix(".")
        self.dtype = None if dtype is None else np.dtype(dtype).name
        self.form = self._form()
        _check_names(self.form, self.key, text, tokens)
        self.tokenized = self.form in ("npy", "raw") or self.fields.tokenized

    def _form(self) -> str:
        """How the wanted file is read: "npy", "npz", "text", "json" or "raw"."""
        if self.dtype is not None:
            integer_kind(self.dtype)
        last = self.key.rsplit(".", 1)[-1]
        form = "raw" if self.dtype is not None else "text" if last in _TEXT else last
        if form not in ("npy", "npz", "text", "json", "raw"):
            raise ConfigError(
                f"key is {self.key!r}.",
                "It does not say how such files hold documents, and decoders that could run code "
                "(pickle, torch) are not used.",
                "Use files that end in npy, npz, txt or json, or pass dtype for bare arrays of "
                "ids.",
            )
        return form

    def list_shards(self) -> Manifest:
        patterns = [path for path in self.paths if not is_pipe(path)]
        files = self.storage.list(patterns, endings=self.endings) if patterns else []
        log_twins([file.path for file in files])
        pipes = [url for pipe in filter(is_pipe, self.paths) for url in expand_braces(pipe)]
        files += [FileInfo(url, 0) for url in pipes]
        weights = [_PIPE_BYTES if is_pipe(file.path) else max(file.num_bytes, 1) for file in files]
        return Manifest.of_files(files, np.array(weights, dtype=np.int64))

    def describe(self) -> dict[str, Any]:
        field = {"field": self.fields.document} if self.form in ("json", "npz") else {}
        return {
            **super().describe(),
            "key": self.key,
            "tokenized": self.tokenized,
            "dtype": self.dtype,
            **field,
        }

    def will_read(self, shards: Sequence[int]) -> None:
        super().will_read([i for i in shards if not is_pipe(self.manifest.paths[i])])

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: Skips
    ) -> Iterator[tuple[Block | Spans, int, int]]:
        extension = np.frombuffer(self.key.encode(), dtype=np.uint8)
        weight = int(self.manifest.weights[shard])
        with self._opened(shard) as (data, complete):
            # Its weight is that of the stored file, and a sample lies where its headers begin.
            size = max(len(data), 1)
            least = -(-low * size // weight)
            most = _ALL if high == weight else -(-high * size // weight)
            if position is None:
                document, offset, outcome = _seek(data, extension, _ALL, least)
            else:
                document, offset, outcome = _seek(data, extension, position, size)
                if offset >= most:
                    return
            while outcome == MORE and offset < most:
                n, offset, outcome, block = self._block(
                    shard, data, offset, most, document, extension, skips
                )
                document += n
                if n:
                    place = high if offset >= most else offset * weight // size
                    yield block, document, max(low, min(place, high))
        if outcome != MORE and (outcome != ENDED or not complete):
            after = f"after document {document - 1}" if document else "before the first document"
            what = FAULTS.get(outcome, "its compressed data breaks off")
            raise self.broken_shard(shard, f"{after} (byte {offset}) {what}", document)

    @contextmanager
    def _opened(self, shard: int) -> Iterator[tuple[NDArray[np.uint8], bool]]:
        """The bytes of an archive, and whether its compression (if any) ended properly."""
        path = self.manifest.paths[shard]
        if is_pipe(path):
            folder = self.storage.cache_dir
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                target = Path(scratch) / "shard"
                run_pipe(path, target)
                yield self._mapped(shard, target)
        else:
            with self.open_shard(shard) as local:
                yield self._mapped(shard, local)

    def _mapped(self, shard: int, local: Path) -> tuple[NDArray[np.uint8], bool]:
        codec, data = sniff_codec(local), map_file(local)
        if codec is None or is_header(data):  # a name may begin like compressed data
            return data, True
        most = self.reading.max_document_bytes
        try:
            return decompress(local, codec, folder=self.storage.cache_dir, free_bytes=most)
        except DamagedError as error:
            raise self.broken_shard(shard, str(error)) from error

    def _block(
        self,
        shard: int,
        data: NDArray[np.uint8],
        offset: int,
        most: int,
        document: int,
        extension: NDArray[np.uint8],
        skips: Skips,
    ) -> tuple[int, int, int, Block | Spans]:
        """Scan and read one block of samples that begin before byte `most`.

        Returns how many documents, where the next begins, how it ended, and the block.
        """
        room = self.reading.documents_per_block
        starts = np.zeros(room, dtype=np.int64)
        sizes, ends = np.zeros_like(starts), np.zeros_like(starts)
        status = np.zeros(room, dtype=np.uint8)
        begin = offset
        n, offset, outcome = scan_tar(
            data, offset, extension, self.reading.block_bytes, starts, sizes, status, ends
        )
        own = int(np.searchsorted(ends[:n], most)) + 1
        if own <= n:  # what follows is the next part's, and so is what is wrong with it
            n, offset, outcome = own, int(ends[own - 1]), MORE
        starts, sizes, status = starts[:n], sizes[:n], status[:n]
        most_bytes = self.reading.max_document_bytes
        status[(status == 0) & (sizes > most_bytes)] = TOO_LONG
        problems: dict[int, str] = {}
        for i in np.flatnonzero(status).tolist():
            many = status[i] == DUPLICATE
            problems[i] = f"has {'several files' if many else 'no file'} .{self.key}"
            if status[i] == TOO_LONG:
                problems[i] = too_long(int(sizes[i]), most_bytes)
        origin = make_origin(shard, np.arange(document, document + n, dtype=np.int64))
        block: Block | Spans
        if self.form in ("json", "npz") or self.field_types:
            block = self._from_records(data, begin, starts, sizes, origin, problems)
        elif self.form == "text":
            block = decoded_texts(data, starts, sizes, origin, problems)
        else:
            counts, kinds = self._array_headers(data, starts, sizes, status, problems)
            block = integer_block(data, starts, counts, kinds, origin, problems)
        self.report_broken(origin, problems, skips)
        return n, offset, outcome, block

    def _array_headers(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        status: NDArray[np.uint8],
        problems: dict[int, str],
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """(N,) numbers of ids and (N,) kinds of arrays, with a `.npy` header or bare.

        `starts` (N,) moves to the first id of each.
        """
        counts = np.zeros_like(starts)
        kinds = np.zeros(len(starts), dtype=np.uint8)
        if self.form == "raw":
            kind = integer_kind(self.dtype)
            kinds[:] = kind
            counts[:] = sizes // (kind & 15)
            for i in np.flatnonzero((sizes % (kind & 15) != 0) & (status == 0)).tolist():
                problems[i] = f"has {sizes[i]} bytes, which is no whole number of {self.dtype}"
            return counts, kinds
        npy_values(data, starts, sizes, status, counts, kinds)
        for i in np.flatnonzero(status == UNCOMMON).tolist():
            found = parse_uncommon(data[starts[i] : starts[i] + sizes[i]].tobytes())
            if isinstance(found, str):
                problems[i] = found
            else:
                starts[i] += found[0]
                counts[i], kinds[i] = found[1:]
        return counts, kinds

    def _from_records(
        self,
        data: NDArray[np.uint8],
        begin: int,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        origin: NDArray[np.void],
        problems: dict[int, str],
    ) -> Block:
        """One parse per document; the samples' headers begin at byte `begin`."""
        types, most = self.field_types, self.reading.max_document_bytes
        field = self.fields.document or ""
        contents = list(pieces(data, starts, sizes))
        beside = {}
        if self.form not in ("json", "npz"):
            names = [*(types.token if self.tokenized else ()), *types.document]
            beside = {name: files_beside(data, begin, f"{name}.npy", len(starts)) for name in names}

        def read(i: int) -> Read:
            if i in problems:
                raise BrokenDocumentError(problems[i])
            content = bytes(contents[i])
            if self.form == "json":
                record = record_of(content)
                require_field(record, field)
                document_of = ids_of if self.tokenized else text_of
                return record, document_of(record, field, content), None
            if self.form == "npz":
                names = {field, ATTENTION_MASK, *types.token, *types.document}
                arrays = npz_record(content, names, most)
                return arrays, ids_in(arrays, field), None
            fields = {
                name: field_beside(data, name, files, i, most) for name, files in beside.items()
            }
            there = {name: array for name, array in fields.items() if array is not None}
            return there, self._document(content), None

        kind = Documents if self.tokenized else Texts
        block, wrong = record_block(range(len(origin)), read, kind, origin, types)
        problems |= wrong
        return block

    def _document(self, content: bytes) -> NDArray[Any] | str:
        """The ids or the text of a file that holds nothing else."""
        if self.form == "text":
            try:
                return content.decode()
            except UnicodeDecodeError as error:
                raise BrokenDocumentError(f"is not UTF-8 ({error.reason})") from None
        if self.form == "npy":
            return ids_in({self.key: array_in(content)}, self.key)
        kind = np.dtype(self.dtype).newbyteorder("<")
        if len(content) % kind.itemsize:
            what = f"has {len(content)} bytes, which is no whole number of {self.dtype}"
            raise BrokenDocumentError(what)
        return ids_in({self.key: np.frombuffer(content, dtype=kind)}, self.key)


def _check_names(form: str, key: str, text: str | None, tokens: str | None) -> None:
    """Raise `ConfigError` unless the names go with the key."""
    if form not in ("json", "npz") and (text is not None or tokens is not None):
        raise ConfigError(
            f"A field is named ({text or tokens!r}), and key is {key!r}.",
            "Only JSON and .npz files have fields.",
            "Leave text= and tokens= out, or use the key of such a file.",
        )
    if form == "npz" and tokens is None:
        raise ConfigError(
            f"key is {key!r}, and tokens is None.",
            "Nothing says which array of the .npz files has the ids.",
            'Pass tokens="input_ids", or whatever its name is.',
        )


def _seek(
    data: NDArray[np.uint8], extension: NDArray[np.uint8], documents: int, least: int
) -> tuple[int, int, int]:
    """Step over samples: so many, or until the next begins at byte `least` or later.

    Returns:
        How many there were, where the next one begins, and how that ended.
    """
    passed, offset, outcome = 0, 0, MORE
    while outcome == MORE and passed < documents and offset < least:
        room = min(4096, documents - passed)
        starts = np.zeros(room, dtype=np.int64)
        ends = np.zeros_like(starts)
        status = np.zeros(room, dtype=np.uint8)
        n, offset, outcome = scan_tar(
            data, offset, extension, _ALL, starts, np.zeros_like(starts), status, ends
        )
        before = int(np.searchsorted(ends[:n], least)) + 1
        if before < n:
            return passed + before, int(ends[before - 1]), MORE
        passed += n
    return passed, offset, outcome
