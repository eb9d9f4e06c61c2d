"""Parquet shards: their content, their writer, and the destination they are written to."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack.chats.conversations import Conversations
from streampack.conversion.folders import move
from streampack.documents.blocks import Documents, Fields, Texts
from streampack.errors import ConfigError, StateError
from streampack.file_info import split_url
from streampack.metrics import fetched
from streampack.names.marks import UNFINISHED
from streampack.remote.filesystems import open_filesystem
from streampack.remote.retries import with_retries
from streampack.sources.base import Block, Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import Tokenizer
from streampack.tokenization.short_texts import short_texts
from streampack.tokenization.stages import with_fields_of

#: Content of one document: token ids, `masked_ids`, or text.
Payload = NDArray[np.generic] | str
#: Bytes that a document takes besides its content, for cutting shards to size.
OVERHEAD = 16
ROW_GROUP_DOCUMENTS = 4096
#: Column of shards with the number of ids of each document, which `streampack ledger` reads. It has
#: this metadata, by which it is told from a column of the same name that others wrote.
NUM_TOKENS = "__num_tokens__"
OF_IDS = {b"streampack": b"number of ids in tokens"}
_PIECE_BYTES = 1 << 20
TIMEOUT_S = 60.0  # limit of a connection that sends nothing


def masked_ids(ids: NDArray[np.generic], loss_mask: NDArray[np.bool_]) -> NDArray[np.generic]:
    """Combine ids (T,) and their loss mask into a structured array (T,)."""
    both = np.empty(len(ids), dtype=[("tokens", ids.dtype), ("loss_mask", np.uint8)])
    both["tokens"], both["loss_mask"] = ids, loss_mask
    return both


def shard_name(shard: int) -> str:
    """Return the file name of a shard, such as ``part-00012.parquet``."""
    return f"part-{shard:05}.parquet"


def part_shard_name(part: int, shard: int) -> str:
    """Return the file name of a part's shard, such as ``part-00012-00003.parquet``."""
    return f"part-{part:05}-{shard:05}.parquet"


def write_shard(
    file: Path,
    documents: Sequence[Payload],
    compression: str | None,
    beside: Mapping[str, pa.Array] | None = None,
) -> Path:
    """Write a shard to a file and return the file.

    The columns are `text`, or `tokens` and, if there are masks, `loss_mask`; then those `beside`
    the N documents, (N,) each; with ids last `NUM_TOKENS`, unless one of these has its name. Row
    groups have 4,096 documents.
    """
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    if isinstance(documents[0], str):
        table = pa.table({"text": pa.array(documents, pa.large_string())})
    else:
        ids: NDArray[Any] = np.concatenate(documents)
        columns = {name: ids[name] for name in ids.dtype.names or ()} or {"tokens": ids}
        lists = [pa.LargeListArray.from_arrays(offsets, pa.array(c)) for c in columns.values()]
        table = pa.table(lists, names=list(columns))
    for name, values in (beside or {}).items():
        table = table.append_column(name, values)
    if not isinstance(documents[0], str) and NUM_TOKENS not in table.column_names:
        counts = pa.array(np.diff(offsets).astype(np.uint32))
        table = table.append_column(pa.field(NUM_TOKENS, counts.type, metadata=OF_IDS), counts)
    pq.write_table(
        table, file, row_group_size=ROW_GROUP_DOCUMENTS, compression=compression or "none"
    )
    return file


def no_documents() -> ConfigError:
    """Return the error for a source without documents."""
    return ConfigError(
        "The source holds no document.",
        "Check the path and the name of the column.",
        setting="source",
    )


class ShardDocuments(NamedTuple):
    """The N documents of a block as content of shards.

    Attributes:
        dtype: dtype of the ids; "str" for text.
        payloads: N payloads.
        origin: (N,) origins of the documents.
        fields: (N,) values of the documents by field name.
    """

    dtype: str
    payloads: list[Payload]
    origin: NDArray[np.void]
    fields: Fields


def encoded(
    block: Block,
    source: Source,
    tokenizer: Tokenizer | None,
    dtype: str,
    skips: ErrorPolicy,
    *,
    masks: bool = False,
) -> ShardDocuments:
    """Convert a block's documents to the content of shards.

    Args:
        block: a block of texts or ids.
        source: the block's source.
        tokenizer: tokenizer for texts; None writes texts.
        dtype: dtype of the ids in earlier shards, "uint16" or "uint32"; "" uses the block's.
        skips: policy for documents that cannot be tokenized.
        masks: write loss masks too.

    Raises:
        ConfigError: the block has conversations, records of several documents, or loss masks that
            shards would lose.
        StateError: ids do not fit `dtype`.
    """
    fetched.clear()  # no lane takes the counts
    if len(block):
        skips.in_a_row = 0
    if isinstance(block, Texts):
        if tokenizer is None:
            return ShardDocuments("str", list(block.texts), block.origin, block.document_fields)
        ids = tokenizer.encode(short_texts(source, block, skips), skips, source.document_name)
        block = with_fields_of(block, ids)
    if isinstance(block, Conversations) or block.members is not None:
        raise ConfigError(
            "Shards hold single documents, but the records are conversations or have several "
            "documents each.",
            "Pass the files to PackedDataset unchanged; they need no shards.",
            setting="source",
        )
    if block.loss_mask is not None and not masks:
        raise ConfigError(
            "Documents must not have loss masks here, but these do.",
            'Ignore the masks with --loss-mask "", or a source made with loss_mask=[].',
            setting="loss_mask",
        )
    return _ids(block, dtype)


def _ids(block: Documents, dtype: str) -> ShardDocuments:
    if not dtype:
        dtype = "uint16" if block.tokens.dtype == np.uint16 else "uint32"
    tokens = block.tokens[block.offsets[0] : block.offsets[-1]]
    if len(tokens) and (int(tokens.max()) > np.iinfo(dtype).max or int(tokens.min()) < 0):
        raise StateError(
            f"Token ids must fit {dtype}, the dtype of the earlier shards, got ids from "
            f"{int(tokens.min())} to {int(tokens.max())}.",
            "Convert to another destination with --dtype uint32; ids must not be negative.",
        )
    ids = tokens.astype(dtype, copy=False)
    if block.loss_mask is not None:
        ids = masked_ids(ids, block.loss_mask[block.offsets[0] : block.offsets[-1]])
    positions = block.offsets - block.offsets[0]
    payloads: list[Payload] = [ids[positions[i] : positions[i + 1]] for i in range(len(block))]
    return ShardDocuments(dtype, payloads, block.origin, block.document_fields)


T = TypeVar("T")


def checksum_of(file: IO[bytes]) -> int:
    """Return the CRC-32 of the bytes from the position of a file on."""
    checksum = 0
    while piece := file.read(_PIECE_BYTES):
        checksum = zlib.crc32(piece, checksum)
    return checksum


#: Folder of progress files in a destination; sources refuse to read a folder that has some.
HIDDEN = UNFINISHED


class Destination:
    """A folder in which every file is either whole or missing.

    Local files are moved into place; object stores only show files that are complete.

    Args:
        url: local path or URL.
        retries: number of retries for remote files; None repeats attempts for some minutes.

    Raises:
        ConfigError: the URL is a file or is not writable.
    """

    def __init__(self, url: str, *, retries: int | None = None) -> None:
        protocol, path = split_url(url)
        self.url = url.rstrip("/")
        self.local = Path(path).expanduser().absolute() if protocol is None else None
        self._retries = retries
        if self.local is not None and self.local.exists() and not self.local.is_dir():
            raise ConfigError(
                f"{url} is a file.",
                "Name an empty folder, or one that does not exist yet.",
                setting="destination",
                path=url,
            )
        self._root = self.url if self.local is None else str(self.local)
        self._filesystem = open_filesystem(protocol or "file", {}, TIMEOUT_S)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_filesystem": self._filesystem.storage_options}

    def __setstate__(self, state: dict[str, Any]) -> None:  # file systems cannot be shared
        protocol, _ = split_url(state["url"])
        opened = open_filesystem(protocol or "file", state["_filesystem"], TIMEOUT_S)
        self.__dict__.update(state, _filesystem=opened)

    def names(self) -> list[str]:
        """Return the relative paths of all files, hidden ones included, sorted."""
        return sorted(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all files by relative path."""

        def find() -> dict[str, int]:
            try:
                files = self._filesystem.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
            root = self._filesystem._strip_protocol(self._root).rstrip("/") + "/"
            return {name.removeprefix(root): info["size"] for name, info in files.items()}

        return self._attempt("Listing", self.url, find)

    def checksum(self, name: str) -> int:
        """Return the CRC-32 of a file, as `checksum_of` does."""
        url = f"{self._root}/{name}"

        def read() -> int:
            with self._filesystem.open(url, "rb") as file:
                return checksum_of(file)

        return self._attempt("Reading", url, read)

    def begin(self, run: str) -> None:
        """Remove the progress files of a run that has not finished a shard.

        Args:
            run: kind of the run, for the error.

        Raises:
            ConfigError: the destination has other files.
        """
        names = self.names()
        visible = sorted(name for name in names if not name.startswith(f"{HIDDEN}/"))
        if visible:
            raise ConfigError(
                f"{self.url} holds {len(visible)} files ({visible[0]}, ...) and no "
                f"unfinished {run}.",
                "Choose another destination, or remove these files.",
                setting="destination",
                path=self.url,
            )
        for name in names:
            if name.count("/") == 1 and name.endswith(".json"):
                self.remove(name)

    def refuse_other(
        self, run: str, saved: dict[str, Any], wanted: dict[str, Any], where: str = ""
    ) -> None:
        """Raise `ConfigError` if an unfinished run has other settings than this one.

        Args:
            run: kind of the run, for the error.
            saved: settings of the unfinished run.
            wanted: settings of this run.
            where: folder of the unfinished run, if it is not the destination.
        """
        wanted = json.loads(json.dumps(wanted))
        for name in {**saved, **wanted}:  # what is absent was not set
            value = wanted.get(name)
            if saved.get(name) != value:
                raise ConfigError(
                    f"{where or self.url} holds an unfinished {run} with {name} "
                    f"{saved.get(name)!r}; this one has {value!r}.",
                    "Repeat the first command to continue, or remove its files to start anew.",
                    setting=name,
                    path=self.url,
                )

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Make a local folder of this process for files that are not in place yet."""
        parent = self._scratch_folder
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(
            prefix="streampack-", dir=parent, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)

    def clear_scratch(self) -> None:
        """Remove half shards of killed processes from a local destination."""
        if self._scratch_folder is not None:
            shutil.rmtree(self._scratch_folder, ignore_errors=True)

    @property
    def _scratch_folder(self) -> Path | None:
        """The folder of scratch folders: in the same file system; None uses that of the system."""
        return None if self.local is None else self.local / HIDDEN / "scratch"

    def put(self, file: Path, name: str) -> None:
        """Move a local file to the destination under a name."""
        if self.local is not None:
            target = self.local / name
            target.parent.mkdir(parents=True, exist_ok=True)
            move(file, target)
            return
        target_url = f"{self.url}/{name}"
        self._attempt(
            "Uploading", target_url, lambda: self._filesystem.put_file(str(file), target_url)
        )
        file.unlink()

    def write(self, name: str, data: bytes, scratch: Path) -> None:
        """Write a small file."""
        part = scratch / "small"
        part.write_bytes(data)
        self.put(part, name)

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""
        url = f"{self._root}/{name}"
        data: bytes = self._attempt("Reading", url, lambda: self._filesystem.cat_file(url))
        return data

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        """Return the contents of small files, read side by side if the store can."""
        urls = {f"{self._root}/{name}": name for name in names}
        if not urls:
            return []
        contents = self._attempt("Reading", self.url, lambda: self._filesystem.cat([*urls]))
        return list(contents.values())

    def remove(self, *names: str) -> None:
        """Remove files."""
        urls = [f"{self._root}/{name}" for name in names]
        if urls:
            self._attempt("Removing", urls[0], lambda: self._filesystem.rm(urls))

    def _attempt(self, doing: str, url: str, action: Callable[[], T]) -> T:
        return with_retries(action, doing=doing, url=url, retries=self._retries)
