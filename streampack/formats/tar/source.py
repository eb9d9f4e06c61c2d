"""WebDataset shards, read in bulk: tar archives in which files with one stem are one sample."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampack.arguments import explained
from streampack.cached import cached_property
from streampack.documents.blocks import Documents, Texts, make_origin
from streampack.file_info import FileInfo, Range, shown
from streampack.files.file_source import HEAD_BYTES, ShardBlock
from streampack.files.integer_arrays import (
    UngatheredDocuments,
    decoded_texts,
    integer_block,
    pieces,
)
from streampack.files.json_records import record_of
from streampack.files.paths import is_pipe, refuse_pipes
from streampack.files.record_files import RecordFiles
from streampack.formats.tar.archives import (
    FIRST_BYTES,
    content_of,
    is_read_as_it_comes,
    named_codec,
)
from streampack.formats.tar.contents import (
    array_headers,
    field_beside,
    file_document,
    files_beside,
    npz_record,
)
from streampack.formats.tar.headers import (
    ALL,
    DUPLICATE,
    FAULTS,
    MISSING,
    MORE,
    TOO_LONG,
    scan_file,
)
from streampack.formats.tar.members import (
    LARGEST_HEAD_BYTES,
    FirstMembers,
    Samples,
    TarColumn,
    head_of,
)
from streampack.formats.tar.pipes import opened_pipe
from streampack.job.listed_once import listed_once
from streampack.names.listing import expand_braces, named_paths
from streampack.sources.arguments import RecordFileOptions
from streampack.sources.base import Block
from streampack.sources.fields import ATTENTION_MASK, RecordReader
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest
from streampack.sources.reading import too_long
from streampack.sources.records import (
    BrokenDocumentError,
    Read,
    document_in,
    record_block,
)
from streampack.storage.files import MemoryFile, StoredFile

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PIPE_BYTES = 64 << 20  # assumed size of a shard from a command
_SAMPLED_BYTES = 32 << 20  # bytes of content in which tokens are counted for an estimate
_SAMPLED, _ENOUGH = 16384, 32  # number of samples in which tokens are counted, at most; and enough


class WebDataset(RecordFiles):
    """Documents in WebDataset shards.

    Steps: an archive is read block by block, a compressed one from its decompressed copy; one
    kernel walks the headers and finds the wanted file of each sample, another reads the `.npy`
    headers, and one gather copies the ids of a block into a compact array. Cost: about 1
    microsecond per `.npy` document of 700 tokens; a decode for text and a parse for JSON, per
    document.

    Files belong to one sample if they follow each other and have the same folder and the same name
    up to the first dot. Several archives in one file, one after the other, are all read. An archive
    without the zero block at its end counts as cut short: its documents are read, then it is
    reported.

    A shard is cut by its bytes among any number of lanes. A process that begins inside it, as
    after a restart, first reads the headers before that place, once. A compressed shard of 1 MiB
    or more is decompressed into the cache, once per host, and read as it comes; a smaller one into
    memory.

    Args:
        paths: paths or URLs of shards, with braces or wildcards, or directories of them.
        text: location of the text: the ending of the sample's file, "txt", or a field of its JSON,
            "json:text".
        tokens: location of the token ids: "npy" (or "tokens.npy", ...), "npz:input_ids" for an
            array of a `.npz`, "json:input_ids" for a field of JSON; any ending with `dtype`. If
            neither is given, the one of "npy", "input_ids.npy", "tokens.npy", "txt" and the usual
            fields of JSON and `.npz` that the first samples have, or else the only one. Fields of
            the dataset lie in the JSON or the `.npz`, or in files of their own: the field "reward"
            in the sample's ".reward.npy".
        loss_mask: the field, array or file beside ids ("labels" is ".labels.npy") with a loss mask
            or labels, as for `Parquet`. None reads the usual names that the first samples have;
            shards behind `pipe:` URLs are not searched for them.
        dtype: dtype of the integers, if the wanted file is a bare array.
        allow_pipe: run `pipe:` URLs in a shell, as webdataset does. They can do anything that
            you can, so a list of shards from elsewhere must not contain them.
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: an argument is wrong, or `pipe:` URLs are not allowed.
    """

    endings = FORMATS["WebDataset"].endings
    weighs_content = True
    #: True if parts of compressed archives wait for their exact size.
    _waits = False
    #: Reads texts together with the other files of a sample.
    beside: RecordReader | None = None

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        dtype: DTypeLike | None = None,
        allow_pipe: bool = False,
        **options: Unpack[RecordFileOptions],
    ) -> None:
        super().__init__(named_paths(paths), **options)
        if not allow_pipe:
            refuse_pipes(self.paths)
        self.dtype = None if dtype is None else np.dtype(dtype).name
        if self.fields.known:
            _ = self.member
        self._rate: float | None = None  # tokens per byte, once they are counted

    @cached_property
    def member(self) -> TarColumn:
        """Location of the documents in a sample; lists the shards if no argument names it."""
        tokenized = self.tokenized
        return TarColumn.of(self.fields.document or "", self.dtype, tokenized)

    @cached_property
    def _extension(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.member.key.encode(), dtype=np.uint8)

    @cached_property
    def _samples(self) -> Samples:
        return Samples(self._extension)

    def ranges(self, shard: int, low: int, high: int) -> Iterator[Range]:
        """Yield the head, and the samples from the first that no lane here has passed."""
        if not is_pipe(self.manifest.paths[shard]):
            listed = self._listed_shard(shard)
            codec = self.codec(shard)
            yield Range(listed, 0, HEAD_BYTES if codec is None else FIRST_BYTES)
            if codec is None and self.manifest.weights[shard] == listed.num_bytes:
                yield Range(listed, min(low, self._samples.scanned(shard)), high)

    def list_shards(self) -> Manifest:
        patterns = [path for path in self.paths if not is_pipe(path)]
        files = self.storage.list(patterns, endings=self.endings) if patterns else []
        pipes = [url for pipe in filter(is_pipe, self.paths) for url in expand_braces(pipe)]
        files += [FileInfo(url, 0) for url in pipes]
        first = next((file for file in files if file.num_bytes > 0), None)
        padded = False
        members = None if first is None else FirstMembers.of(first, self.storage)
        where = shown(self.paths[0] if first is None else first.path)
        kinds = {} if members is None else members.columns()
        self.fields = self.fields.with_document(kinds, where)
        if self.fields.tokenized and members is not None:
            fields = members.beside(self.member.key)
            field = self.member.field
            self.fields = self.fields.with_masks(
                {n: kind for n, kind in fields.items() if n != field}
            )
            padded = ATTENTION_MASK in fields
        weights = [_PIPE_BYTES if is_pipe(file.path) else file.num_bytes for file in files]
        expects = any(map(is_read_as_it_comes, files))
        details = {"fields": self.fields, "padded": padded, "expects": expects}
        return Manifest.of_files(files, np.array(weights, dtype=np.int64), details)

    def describe(self) -> dict[str, Any]:
        field: dict[str, Any] = {"field": self.member.field} if self.member.field else {}
        field |= {"loss_mask": self.fields.loss_mask} if self.fields.loss_masks else {}
        return {
            **super().describe(),
            "key": self.member.key,
            "tokenized": self.tokenized,
            "dtype": self.dtype,
            **field,
            **({"sizes": "expected"} if self._expects_sizes and not self._waits else {}),
        }

    def codec(self, shard: int) -> str | None:
        """Return the compression of a shard; see `run.contents.Compressed`."""
        path = self.manifest.paths[shard]
        return None if is_pipe(path) else named_codec(path)

    def estimate_tokens(self) -> int | None:
        """Estimate the number of tokens by the first samples: headers may be most of an archive."""
        if self._rate is None:
            self._rate = listed_once({"tokens in": self.describe()}, self._tokens_per_byte)
        content = int(self.manifest.num_bytes.sum())
        return int(self._rate * content) if self._rate else super().estimate_tokens()

    def _tokens_per_byte(self) -> float:
        """Count tokens per byte at the beginning of the first shard that is a file.

        0 if that beginning holds no sample.
        """
        shard = int(np.argmax(self.manifest.num_bytes > 0))
        if self.manifest.num_bytes[shard] == 0:
            return 0.0
        first = HEAD_BYTES if self.codec(shard) is None else FIRST_BYTES
        for size in (first, LARGEST_HEAD_BYTES):
            listed = self._listed_shard(shard)
            data, stored = head_of(listed, self.storage, _SAMPLED_BYTES, size)
            head = MemoryFile(data)
            document, offset, outcome, tokens = 0, 0, MORE, 0
            while outcome == MORE and document < _SAMPLED and offset < len(data):
                (block, _, _, document, offset), outcome = self._block(
                    shard, head, offset, ALL, document
                )
                if isinstance(block, Texts):
                    tokens += sum(map(len, map(str.encode, block.texts))) // 4
                else:
                    whole: Any = (
                        block.gathered() if isinstance(block, UngatheredDocuments) else block
                    )
                    tokens += whole.num_tokens
            if document >= _ENOUGH:
                break
        return tokens * len(data) / (stored * max(offset, 1))

    @property
    def _expects_sizes(self) -> bool:
        return bool(self.manifest.details.get("expects"))

    @property
    def _masks(self) -> list[str]:
        """Names of the arrays that mark learnt ids and padding."""
        padding = [ATTENTION_MASK] if self.manifest.details["padded"] else []
        return [*self.fields.loss_masks, *padding]

    def blocks(self, shard: int, low: int, high: int, position: int | None) -> Iterator[ShardBlock]:
        weight = int(self.manifest.weights[shard])
        with self._opened(shard) as (file, size, fault):
            # A shard's weight counts stored bytes; a sample's position is that of its headers.
            least = -(-low * size // weight)
            most = ALL if high == weight else -(-high * size // weight)
            document, offset, outcome = 0, 0, MORE
            if position is not None or least:
                file.needed_again = True  # by the parts that have the samples before
                document, offset, outcome = self._samples.first(shard, file, position, least)
                file.needed_again = False
                if position is not None and offset >= most:
                    return
            while outcome == MORE and offset < most:
                read, outcome = self._block(shard, file, offset, most, document)
                document, offset = read.end, read.reached
                if len(read.origin):
                    yield read._replace(reached=high if offset >= most else offset * weight // size)
        what = "" if outcome == MORE else fault() or FAULTS.get(outcome, "")
        if what:
            after = f"after document {document - 1}" if document else "before the first document"
            raise self.broken_shard(shard, f"{after} (byte {offset}) {what}", document)

    @contextmanager
    def _opened(self, shard: int) -> Iterator[tuple[StoredFile, int, Callable[[], str]]]:
        """Open an archive, decompressed; also return its size, at least 1, and `shared_bytes`."""
        path = self.manifest.paths[shard]
        if is_pipe(path):
            with opened_pipe(path, self.storage.cache_dir) as written:
                yield content_of(self.storage, written)
        else:
            with self.open_shard(shard) as file:
                comes = not self._waits and self.codec(shard) is not None
                yield content_of(self.storage, file, as_it_comes=comes)

    def _as_saved(self, described: Mapping[str, Any], how: str = "saved") -> WebDataset:
        """Return the source of a state from before parts were cut by expected sizes."""
        if described.get("kind") != self._kind or "sizes" in described:
            return self
        copied = copy.copy(self)
        copied._waits = True
        return copied

    def _block(
        self,
        shard: int,
        file: StoredFile,
        offset: int,
        most: int,
        document: int,
    ) -> tuple[ShardBlock, int]:
        """Scan and read one block of samples that begin before byte `most`.

        Returns the block, which has reached the byte at which the next one begins, and the scan's
        outcome.
        """
        reading = self.reading
        scanned = scan_file(
            file, offset, self._extension, reading.block_bytes, reading.documents_per_block
        )
        data, begin, n = scanned.data, offset - scanned.base, len(scanned.ends)
        offset, outcome = scanned.end, scanned.outcome
        stop = int(np.searchsorted(scanned.ends, most)) + 1
        if stop <= n:  # later samples, and any fault among them, belong to the next part
            n, offset, outcome = stop, int(scanned.ends[stop - 1]), MORE
        starts, sizes, status = scanned.starts[:n], scanned.sizes[:n], scanned.status[:n]
        most_bytes = self.reading.most_bytes
        status[(status == 0) & (sizes > most_bytes)] = TOO_LONG
        problems: dict[int, str] = {}
        for i in np.flatnonzero(status).tolist():
            if status[i] == MISSING:
                problems[i] = f"has no file .{self.member.key}"
            elif status[i] == DUPLICATE:
                problems[i] = f"has several files .{self.member.key}"
            else:
                problems[i] = too_long(int(sizes[i]), most_bytes)
        origin = make_origin(shard, np.arange(document, document + n, dtype=np.int64))
        block: Block | UngatheredDocuments
        if self.beside is not None:
            block = self._with_files(self.beside, data, begin, starts, sizes, origin, problems)
        elif self.member.field or self.field_types or self._masks:
            block = self._from_records(data, begin, starts, sizes, origin, problems)
        elif self.member.form == "text":
            block = decoded_texts(data, starts, sizes, origin, problems)
        else:
            counts, kinds = array_headers(data, starts, sizes, status, problems, self.dtype)
            block = integer_block(data, starts, counts, kinds, origin, problems)
        return ShardBlock(block, origin, problems, document + n, offset), outcome

    def _with_files(
        self,
        reader: RecordReader,
        data: NDArray[np.uint8],
        begin: int,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        origin: NDArray[np.void],
        problems: dict[int, str],
    ) -> Block:
        """Make a record per document: the fields of its JSON, its text, and files by endings."""
        name, field, form = self.fields.document or "", self.member.field, self.member.form
        contents = list(pieces(data, starts, sizes))
        others = [other for other in reader.columns if other != name]
        files = {other: files_beside(data, begin, other, len(starts)) for other in others}

        def record(i: int) -> dict[str, Any]:
            if i in problems:
                raise BrokenDocumentError(problems[i])
            content = bytes(contents[i])
            found = record_of(content) if form == "json" else {}
            found[name] = found.get(field) if field else file_document(content, form, None)
            return found | {
                other: data[start[i] : start[i] + size[i]].tobytes()
                for other, (start, size, status) in files.items()
                if not status[i]
            }

        types = self.field_types
        block, wrong = reader.block(range(len(origin)), origin, types, False, record)
        problems |= wrong
        records_block: Block = block
        return records_block

    def _from_records(
        self,
        data: NDArray[np.uint8],
        begin: int,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        origin: NDArray[np.void],
        problems: dict[int, str],
    ) -> Block:
        """Parse documents one by one; the samples' headers begin at byte `begin`."""
        types, most = self.field_types, self.reading.most_bytes
        field, form = self.member.field, self.member.form
        contents = list(pieces(data, starts, sizes))
        other_files = {}
        if not field:
            names = [*(types.token if self.tokenized else ()), *types.document, *self._masks]
            other_files = {
                name: files_beside(data, begin, f"{name}.npy", len(starts)) for name in names
            }

        def read(i: int) -> Read:
            if i in problems:
                raise BrokenDocumentError(problems[i])
            content = bytes(contents[i])
            if form == "json":
                return document_in(record_of(content), field, self.tokenized, content)
            if form == "npz":
                names = {field, *self._masks, ATTENTION_MASK, *types.token, *types.document}
                return document_in(npz_record(content, names, most), field, True)
            fields = {
                name: field_beside(data, name, files, i, most)
                for name, files in other_files.items()
            }
            present = {name: array for name, array in fields.items() if array is not None}
            return present, file_document(content, form, self.dtype)

        kind = Documents if self.tokenized else Texts
        masks, unread = self.fields.loss_masks, self.fields.unread
        items = range(len(origin))
        block, wrong = record_block(items, read, kind, origin, types, masks, unread)
        problems |= wrong
        return block
