"""JSON lines: one object per line, plain or compressed; a `.json` file may also be one array.

A file that begins with "[" is read as if each element of its array were a line (`json_arrays`).

Lines are parsed one by one with the standard library, at 600 MB/s of text or 15 M ids/s of a core;
ids by a kernel at 71 M/s (`files.json_ids`). orjson (1,000 MB/s) rounds large integers, msgspec
(1,190) refuses NaN, and either would save 3 % of a run with gigatoken.
`pyarrow.json` was 1.4 times as fast with 256 lines of text at a time, half as fast with whole
files, and no faster with lists of ids. It accepts two lines as one object or one line as two, and
some broken input (a line with ``null`` alone) crashes the process.

A part of a file is a range of its stored bytes, and a line belongs to the part that its first byte
came from.

A block is a pure function of its start: it takes lines until it has enough of them, holds enough
bytes, or reaches the end of its part. So reading can restart at the end of any block. Memory is
bounded by a block and one line.

Cost: one Python step per line, which parsing each line needs anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import make_origin
from streampack.errors import ConfigError
from streampack.file_info import FileInfo, Range, shown
from streampack.files.file_source import ShardBlock
from streampack.files.json_ids import record_with_ids
from streampack.files.json_records import record_of
from streampack.files.record_files import RecordFiles
from streampack.formats.json_arrays import as_lines, is_array
from streampack.names.listing import has_ending
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest
from streampack.sources.reading import ReadOptions
from streampack.sources.records import BrokenDocumentError, block_of, kind_of
from streampack.storage.decoded import is_decoded, shared_content
from streampack.storage.decompression import (
    CODEC_OF_ENDING,
    Content,
    Convert,
    DamagedError,
    codec_of,
    open_content,
)

if TYPE_CHECKING:
    from streampack.fields.paths import PathFields

_BUFFER = 1 << 20
_FEW_FILES, _LARGE_BYTES = 8, 64 << 20  # several workers would wait for a few files this large


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of a file, without lines of white space only.

    Attributes:
        lines: N lines as stored; None for a line above the limit.
        index: (N,) int64, the byte of the content at which each line begins.
        end: the byte after the block.
    """

    lines: list[bytes | None]
    index: NDArray[np.int64]
    end: int


def line_blocks(
    content: Content,
    low: int,
    high: int | None,
    position: int | None,
    *,
    reading: ReadOptions,
) -> Iterator[LineBlock]:
    """Yield blocks of the lines with their first byte in a part of the stored file.

    Args:
        content: content of the file, not read yet.
        low, high: the part [low, high) of the stored bytes; None is the end of the file.
        position: the end of a block of this part, to continue after it; None is the part's
            beginning.
        reading: limits of a block and of a line.

    Raises:
        DamagedError: after the last line before the damage.
    """
    if position is None:
        position, before = content.skip_stored(low)
        if before not in (b"", b"\n"):  # the part begins inside a line of the part before
            position += _rest_of_line(content.file)
    else:
        try:
            content.skip(position)
        except DamagedError:
            if _is_beyond(content, position, high):
                return
            raise
    yield from _blocks(content, position, high, reading)


def _blocks(
    content: Content, position: int, high: int | None, reading: ReadOptions
) -> Iterator[LineBlock]:
    lines: list[bytes | None] = []
    index: list[int] = []
    size = 0
    begin = position
    max_line_bytes = reading.most_bytes
    most_lines, most_bytes = reading.documents_per_block, reading.block_bytes
    damage: DamagedError | None = None
    while True:
        try:
            line = content.file.readline(max_line_bytes + 1)
            length = len(line)
            if length > max_line_bytes and not line.endswith(b"\n"):
                length += _rest_of_line(content.file)
        except DamagedError as error:
            # Lines before the damage are read; the damaged line may belong to the next part.
            damage = None if _is_beyond(content, position, high) else error
            break
        if not line or _is_beyond(content, position, high):
            break
        if len(line) > max_line_bytes or not line.isspace():
            lines.append(line if len(line) <= max_line_bytes else None)
            index.append(position)
        position += length
        size += min(length, max_line_bytes)
        if len(lines) >= most_lines or size >= most_bytes:
            yield LineBlock(lines, np.array(index, dtype=np.int64), position)
            lines, index, size, begin = [], [], 0, position
    if position > begin:
        yield LineBlock(lines, np.array(index, dtype=np.int64), position)
    if damage is not None:
        raise damage


def _is_beyond(content: Content, position: int, high: int | None) -> bool:
    """Return True if the content at a position is stored after the part that ends at `high`."""
    return high is not None and content.stored(position) >= high


def _rest_of_line(file: IO[bytes]) -> int:
    """Read up to the end of the line; return the number of bytes read."""
    skipped = 0
    while True:
        piece = file.readline(_BUFFER)
        skipped += len(piece)
        if not piece or piece.endswith(b"\n"):
            return skipped


_HEAD_BYTES = 1 << 20
_FIRST_BYTES = 4096  # in which the first character of a file is found
_MAY_BE_ARRAYS = tuple(f".json{ending}" for ending in ("", *CODEC_OF_ENDING))


class JSONL(RecordFiles):
    """Documents in files of JSON lines.

    A ``.json`` file that is one array of objects, as instruction data often are, is read as if each
    object were a line. Files are cut by their bytes among any number of lanes. Reading can start
    anywhere in a plain file of lines; an array or a compressed file (``.gz``, ``.zst``, ``.bz2``)
    read in parts is written into the cache as lines, once per host. `Documents.origin` holds the
    byte at which a line or object begins in the (decompressed) file.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        text: the field that holds the text. If neither this nor `tokens` is given, documents are in
            "text", "txt", "tokens" or "input_ids", whichever exists alone, or in the only field.
        tokens: the field that holds a list of token ids (0 to 2**32 - 1), read as uint32.
        loss_mask: with `tokens`, a field with a list of as many true/false (or 1/0), or labels: a
            token's own id where it is learnt, and -100 where not. With several fields, a token is
            learnt if it is learnt in all. None reads "loss_mask", "labels", "assistant_masks" and
            "completion_mask" if the first lines have them; an empty list reads no field.
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: the arguments exclude each other.
    """

    endings = FORMATS["JSONL"].endings

    @property
    def grouped(self) -> bool:
        _ = self.manifest
        return self.fields.several

    def list_shards(self) -> Manifest:
        """List the files and their sizes; check that their first lines have the named fields."""
        infos = self.storage.list(self.paths, endings=self.endings)
        weights = [info.num_bytes * _scale(_codec_of(info.path)) for info in infos]
        if sum(weights) <= _FIRST_BYTES and not any(map(self._has_lines, infos)):
            weights = [0] * len(infos)  # an array without elements, or blank lines
        first = next((info for info in infos if info.num_bytes > 0), None)
        details: dict[str, Any] = {}
        if first is not None:
            self._check_fields(first)
            with self.storage.open(first) as file:
                details["array"] = _converted(first.path, file.read) is not None
        details["fields"] = self.fields
        return Manifest.of_files(infos, np.array(weights, dtype=np.int64), details)

    def describe(self) -> dict[str, Any]:
        """Add the fields that are read; not the paths, so that the files may move."""
        return {
            **super().describe(),
            "field": self.fields.document,
            "tokenized": self.tokenized,
            "loss_mask": self.fields.loss_mask,
            **({"layout": "array"} if self.manifest.details.get("array") else {}),
        }

    def estimate_tokens(self) -> int:
        """Estimate the number of tokens: ids take about six bytes."""
        return self.manifest.weight // (6 if self.tokenized else 4)

    def _slow_layout(self) -> str:
        if self.tokenized:
            return "token ids written as JSON; `streampack convert` writes them as Parquet"
        codec = self.codec(0)
        large = self.manifest.num_bytes[0] >= _LARGE_BYTES and codec is not None
        if large and len(self.manifest) < _FEW_FILES:
            return f"few large files in {codec}, each decoded by one process; use more of them"
        return super()._slow_layout()

    def document_name(self, origin: np.void) -> str:
        path = self.manifest.paths[int(origin["shard"])]
        content = "the content of " if _codec_of(path) else ""
        kind = "record" if has_ending(path, _MAY_BE_ARRAYS) else "line"
        return f"the {kind} at byte {int(origin['index'])} of {content}{shown(path)}"

    weighs_content = False

    def codec(self, shard: int) -> str | None:
        """Return the compression of a shard; see `run.contents.Compressed`."""
        return _codec_of(self.manifest.paths[shard])

    def weight_begin(self, shard: int) -> int | None:
        return None if self.codec(shard) else 0

    def ranges(self, shard: int, low: int, high: int) -> Iterator[Range]:
        """Yield the bytes of a part; a compressed file is decoded from its beginning, in full."""
        listed, codec = self._listed_shard(shard), self.codec(shard)
        if codec is None or has_ending(listed.path, _MAY_BE_ARRAYS):
            yield from super().ranges(shard, low, high)
            return
        end = -(-high // _scale(codec))
        if low:  # decoded into the cache
            end = 0
            if self.storage.cache_blocks:  # else the process that decodes fetches it alone
                with self.storage.open(listed) as file:
                    end = 0 if is_decoded(self.storage, file, codec) else listed.num_bytes
        yield Range(listed, 0, end)

    def blocks(self, shard: int, low: int, high: int, position: int | None) -> Iterator[ShardBlock]:
        path, codec = self.manifest.paths[shard], self.codec(shard)
        scale = _scale(codec)
        end = None if high == self.manifest.weights[shard] else -(-high // scale)
        reached = position
        with (
            self.open_shard(shard) as file,
            shared_content(
                self.storage,
                file,
                codec,
                inside=low > 0,
                until=end,
                convert=_converted(path, file.read),
            ) as content,
        ):
            wrong = None if low else _misnamed(path, file.read(0, 8))
            if wrong:
                raise self.broken_shard(shard, wrong[0], remedy=wrong[1])
            parse = partial(self.record_of, beside=self.path_fields(path), ids=self._ids)
            blocks = line_blocks(content, -(-low // scale), end, position, reading=self.reading)
            try:
                for lines in blocks:
                    reached = lines.end
                    origin = make_origin(shard, lines.index)
                    read = block_of(lines.lines, self.fields, origin, self.field_types, parse)
                    place = content.stored(reached) * scale
                    yield ShardBlock(read[0], origin, read[1], reached, place)
            except DamagedError as error:
                at = reached if reached is not None else content.produced if low else 0
                raise self.broken_shard(shard, f"after byte {at}, {error}", at) from error

    @property
    def _ids(self) -> str | None:
        """The field of each record's token ids, if its other values are parsed without them."""
        fields = self.fields
        is_plain = fields.tokenized and fields.records is None and not fields.several
        return fields.document if is_plain else None

    def record_of(
        self, line: bytes | None, beside: PathFields | None = None, ids: str | None = None
    ) -> dict[str, Any]:
        """Return the JSON object of a line; None is a line above the limit, which was not kept.

        Fields that it lacks come from `beside`; ids in the field `ids` are an array if possible.
        """
        if line is None:
            limit = self.reading.most_bytes
            raise BrokenDocumentError(f"is longer than max_document_bytes={limit}")
        record = record_of(line) if ids is None else record_with_ids(line, ids)
        return beside.record(record) if beside else record

    def _has_lines(self, info: FileInfo) -> bool:
        """Return True if a small file has a line that is not blank, or is damaged."""
        with self.storage.open(info) as file:
            head = file.read(0, _FIRST_BYTES)
        try:
            with _open_head(info.path, head) as content:
                return bool(content.file.read().strip())
        except DamagedError:
            return True

    def _check_fields(self, info: FileInfo) -> None:
        """Check the first lines, so that a wrong name fails here and not in every worker."""
        path, kinds = info.path, self._first_fields(info)
        if not kinds:
            return
        self.fields = self.fields.found_in(kinds, shown(path))
        wanted = (self.fields.document, *self.fields.loss_masks)
        if missing := [name for name in wanted if name and name not in kinds]:
            fields = ", ".join(f'"{name}"' for name in sorted(kinds)[:30])
            raise ConfigError(
                f'No line at the beginning of {shown(path)} has a field "{missing[0]}".',
                remedy=f"Name one of {fields}.",
                path=shown(path),
            )

    def _first_fields(self, info: FileInfo) -> dict[str, str]:
        """Return the kinds of the first lines' fields; empty if every line is above the limit."""
        path = info.path
        with self.storage.open(info) as file:
            head = file.read(0, _HEAD_BYTES)
        if wrong := _misnamed(path, head):
            raise ConfigError(
                f"{shown(path)} cannot be read: {wrong[0]}.", f"{wrong[1]}.", path=shown(path)
            )
        lines: list[bytes] = []
        most = self.reading.documents_per_block
        try:
            with _open_head(path, head) as content:
                while len(lines) < most and (line := content.file.readline(_HEAD_BYTES)):
                    lines.append(line)
        except DamagedError:
            pass  # expected: the head of a compressed file ends too early
        kinds: dict[str, str] = {}
        for line in lines:
            try:
                record = record_of(line)
            except BrokenDocumentError:
                continue
            for name, value in record.items():
                kinds[name] = kinds.get(name) or kind_of(value)
        return kinds


def _scale(codec: str | None) -> int:
    """Estimate the bytes of content per stored byte."""
    return 1 if codec is None else 4


def _misnamed(path: str, head: bytes) -> tuple[str, str] | None:
    """Return a clause and a remedy if the file's first bytes contradict the ending of its name."""
    named, actual = _codec_of(path), codec_of(head)
    if actual == named or (actual is None and head[:1] != b"{"):
        return None
    name = path.rpartition("/")[2]
    plain = next((name[: -len(end)] for end in CODEC_OF_ENDING if has_ending(name, (end,))), name)
    ending = next((end for end, codec in CODEC_OF_ENDING.items() if codec == actual), "")
    words = "not compressed" if actual is None else f"compressed ({actual})"
    return f"its content is {words}, and its name has another ending", (
        f'Rename it to "{plain}{ending}"'
    )


def _codec_of(path: str) -> str | None:
    """Return the compression of a file, by its name; None if it is plain."""
    return next((codec for end, codec in CODEC_OF_ENDING.items() if has_ending(path, (end,))), None)


def _converted(path: str, read: Callable[[int, int], bytes]) -> Convert | None:
    """Return `as_lines` for a file that is one array.

    Args:
        path: path of the file.
        read: reads a range of its stored bytes.
    """
    if not has_ending(path, _MAY_BE_ARRAYS):
        return None
    codec = _codec_of(path)
    head = read(0, _HEAD_BYTES if codec else _FIRST_BYTES)  # a block of any codec, or some bytes
    try:
        with open_content(head, codec) as content:
            first = content.file.read1(_FIRST_BYTES)  # type: ignore[attr-defined]
    except DamagedError:  # the same error is raised where lines are read
        return None
    return as_lines if is_array(first) else None


def _open_head(path: str, head: bytes) -> AbstractContextManager[Content]:
    """Open the content of a file's first bytes."""
    convert = _converted(path, lambda low, high: head[low:high])
    return open_content(head, _codec_of(path), convert=convert)
