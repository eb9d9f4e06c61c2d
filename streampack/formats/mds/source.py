"""MDS shards (the format of mosaicml-streaming), read in bulk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampack.arguments import explained
from streampack.documents.blocks import Documents, Texts, make_origin, part_of
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.file_info import shown
from streampack.files.file_source import ShardBlock
from streampack.files.integer_arrays import (
    UngatheredDocuments,
    decoded_texts,
    integer_block,
    integer_kind,
    integers_at,
)
from streampack.files.record_files import RecordFiles
from streampack.formats.mds.index import (
    CODECS,
    Column,
    ShardColumns,
    column_of,
    folders_of,
    kinds_of,
    new_hash,
    only_raw,
    parse_index,
    read_index,
)
from streampack.formats.mds.samples import (
    TOO_LONG,
    array_headers,
    head_bytes,
    problems_of,
    read_samples,
    sample_table,
)
from streampack.names.listing import named_paths
from streampack.sources.arguments import RecordFileOptions
from streampack.sources.fields import ATTENTION_MASK, RecordReader, with_masks
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest, Names
from streampack.storage.decoded import shared_bytes
from streampack.storage.decompression import DamagedError
from streampack.storage.files import StoredFile

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MDS(RecordFiles):
    """Documents in MDS shards.

    Steps: the index lists the shards; a shard is mapped into memory (a compressed one is read from
    the cache while it is decompressed into it); two kernels find the wanted column of each sample
    and read its array header; one gather copies the ids of a block into a compact array.
    Cost: about 1 microsecond per document of 700 tokens, nothing per token but the copy.

    Reading does not need mosaicml-streaming, not even for compressed shards. Only hash algorithms
    that Python's hashlib lacks (xxh64 for example) need the `[mds]` extra.

    Args:
        paths: a directory, local or remote, that holds `index.json`, or that file; or several.
        text: the column that holds the document, if it is text (`str`).
        tokens: the column, if it holds token ids: `ndarray` with integers, with or without dtype
            and shape in the encoding, or `bytes` (see `dtype`). 64-bit ids become uint32 if they
            fit. If neither is given, documents are in "text", "txt", "tokens" or "input_ids",
            whichever exists alone, or in the only column.
        loss_mask: column with as many integers of 0 and 1, `ndarray` or `bytes` of one byte each,
            or with labels: a token's own id where it is learnt, and -100 where not. With several
            columns, a token is learnt if it is learnt in all. None reads "loss_mask", "labels",
            "assistant_masks" and "completion_mask" if they exist; an empty list reads no column.
        dtype: dtype of the integers in a `bytes` column of tokens.
        validate_hash: hash algorithm to check every shard with when it is opened; the index must
            hold its digests. Sizes are always checked.
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: an argument is wrong, an index is invalid or names files outside its
            directory, or a column does not fit its use.
    """

    endings = FORMATS["MDS"].endings
    listing_fields: tuple[str, ...] = ("paths", "fields", "dtype", "validate_hash")
    #: Reads texts together with other columns of a sample.
    beside: RecordReader | None = None

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        dtype: DTypeLike | None = None,
        validate_hash: str | None = None,
        **options: Unpack[RecordFileOptions],
    ) -> None:
        super().__init__(folders_of(named_paths(paths)), **options)
        if dtype is not None:
            integer_kind(dtype)
        self.dtype = None if dtype is None else np.dtype(dtype).name
        self.validate_hash = validate_hash

    def list_shards(self) -> Manifest:
        paths: list[str] = []
        sizes: list[tuple[int, int, int, int]] = []  # samples, stored bytes, raw bytes, form
        forms: dict[tuple[ShardColumns, str], int] = {}
        digests: list[str] = []
        for folder in self.paths:
            where = f"{folder}/index.json"
            for shard in parse_index(read_index(folder, self.storage), shown(where)):
                name, size, hashes = shard.name, shard.num_bytes, shard.hashes
                zipped = bool(shard.zip_name) and not only_raw(folder, shard)
                if zipped:
                    name, size, hashes = shard.zip_name, shard.zip_bytes, shard.zip_hashes or {}
                form = (shard.layout, (shard.codec or "nothing") if zipped else "")
                if form not in forms:
                    kinds = kinds_of(shard.layout)
                    self.fields = self.fields.found_in(kinds, shown(where))
                    self.fields.refuse_unread(kinds, shown(where))
                    self._check_form(*form, where)
                digests.append(self._digest(shard.name, hashes, where))
                paths.append(f"{folder}/{name}")
                number = forms.setdefault(form, len(forms))
                sizes.append((shard.samples, size, shard.num_bytes, number))
        self.storage.refuse_repeated(paths)
        samples, stored, raw, number_of_form = np.array(sizes, dtype=np.int64).reshape(-1, 4).T
        details = {
            "forms": tuple(forms),
            "form": number_of_form.astype(np.int32),
            "documents": samples.copy(),
            "raw_bytes": raw.copy(),
            "fields": self.fields,
            "digests": None if self.validate_hash is None else Names(digests),
        }
        # Weights count samples alone: with the table before them, the first ones would weigh more.
        weights = np.where(samples > 0, np.maximum(raw - head_bytes(samples), 1), 0)
        return Manifest(paths, weights, stored.copy(), details)

    def _check_form(self, layout: ShardColumns, codec: str, where: str) -> None:
        """Raise `ConfigError` for shards without the wanted columns or of unknown compression."""
        self._columns(layout, where)
        if codec and codec not in CODECS:
            raise ConfigError(
                f"{where} lists shards compressed with {codec!r}.",
                f"Write them with one of {', '.join(CODECS)}.",
                path=where,
            )

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "column": self.column,
            "tokenized": self.tokenized,
            "loss_mask": self.fields.loss_mask,
            "dtype": self.dtype,
        }

    def estimate_tokens(self) -> int | None:
        layout = self._layout(0)
        columns = self._columns(layout, "")
        token_bytes = sum(
            math.prod(column.shape) * (4 if column.dtype is None else column.dtype.itemsize)
            for column in columns
            if column.setting not in ("document_fields", "names")
        )
        if self.beside is not None:  # images are most of the data
            token_bytes = 144
        elif not self.fields.tokenized:
            token_bytes = 4
        return int(self.manifest.weights.sum()) // token_bytes

    def weight_begin(self, shard: int) -> int | None:
        if self._form(shard)[1] or self.validate_hash is not None:
            return None
        return int(head_bytes(int(self.manifest.details["documents"][shard])))

    def blocks(self, shard: int, low: int, high: int, position: int | None) -> Iterator[ShardBlock]:
        with self.storage.open(self._listed_shard(shard)) as stored:
            file, fault = self._content(shard, stored)
            table = sample_table(file, int(self.manifest.details["documents"][shard]))
            head = head_bytes(len(table) - 1)
            start, stop = (int(n) for n in np.searchsorted(table[:-1], [head + low, head + high]))
            if high == self.manifest.weights[shard]:
                stop = len(table) - 1
            if position is not None:
                start = max(start, position)
            while start < stop:
                read = self._block(shard, file, table, start, stop)
                start = read.end
                yield read if start < stop else read._replace(reached=high)
            if stop == len(table) - 1 and (wrong := fault()):
                raise DamagedError(wrong)

    def _with_files(
        self,
        reader: RecordReader,
        texts: Texts,
        data: NDArray[np.uint8],
        places: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]],
    ) -> tuple[Texts, dict[int, str]]:
        """Join N texts with other columns at `places`, (N,) starts and sizes by column.

        Returns a block and reasons, as `RecordReader.block` does.
        """

        def record(i: int) -> dict[str, Any]:
            held = {
                name: data[start[i] : start[i] + size[i]].tobytes()
                for name, (start, size) in places.items()
            }
            return {self.column: texts.texts[i], **held}

        numbers = range(len(texts))
        block, wrong = reader.block(numbers, texts.origin, FieldSpec(), False, record)
        kept = np.setdiff1d(np.arange(len(texts)), list(wrong))
        fields = {**part_of(texts.document_fields, kept), **block.document_fields}
        return replace(block, document_fields=fields), wrong

    def _layout(self, shard: int) -> ShardColumns:
        return self._form(shard)[0]

    def _form(self, shard: int) -> tuple[ShardColumns, str]:
        """Return a shard's columns and its compression."""
        details = self.manifest.details
        form: tuple[ShardColumns, str] = details["forms"][details["form"][shard]]
        return form

    def _columns(self, layout: ShardColumns, where: str) -> list[Column]:
        """Return the wanted columns: the document's, those read by `beside`, masks and fields.

        Fields that a map makes may be missing.
        """
        if not self.fields.tokenized:
            columns = [column_of(layout, self.column, "text", where, self.dtype)]
            columns += [column_of(layout, name, "image", where) for name in self._beside]
        else:
            columns = [column_of(layout, self.column, "tokens", where, self.dtype)]
            masks = [*self.fields.loss_masks]
            masks += [ATTENTION_MASK] if ATTENTION_MASK in layout.names else []
            columns += [column_of(layout, name, "loss_mask", where, "uint8") for name in masks]
        types = self.field_types
        named = [(name, "token_fields") for name in types.token if self.fields.tokenized]
        kinds = dict.fromkeys(types.keys.keys() - self._integer_keys(layout), "names")
        named += [(name, kinds.get(name, "document_fields")) for name in types.document]
        present = [field for field in named if not types.optional or field[0] in layout.names]
        return columns + [
            column_of(layout, name, setting, where, shape=types.token[name].shape)
            if setting == "token_fields"
            else column_of(layout, name, setting, where)
            for name, setting in present
        ]

    def _integer_keys(self, layout: ShardColumns) -> set[str]:
        """Return the columns of integers with values that are looked up as keys."""
        encodings = dict(zip(layout.names, layout.encodings, strict=True))
        return {
            name
            for name, keys in self.field_types.keys.items()
            if hasattr(keys, "of_integers") and "int" in encodings.get(name, "").split(":")[0]
        }

    @property
    def _beside(self) -> list[str]:
        """Names of the columns that `beside` reads with the text."""
        names = () if self.beside is None else self.beside.columns
        return [name for name in names if name != self.column]

    def _digest(self, name: str, hashes: dict[str, str], where: str) -> str:
        """Return the digest to check a shard with; "" if shards are not checked."""
        algorithm = self.validate_hash
        if algorithm is None:
            return ""
        new_hash(algorithm)
        if algorithm not in hashes:
            raise ConfigError(
                f"{where} has no {algorithm} digest of {name}.",
                f"The digests are: {', '.join(hashes) or 'none'}.",
                setting="validate_hash",
                path=where,
            )
        return str(hashes[algorithm])

    def _check(self, shard: int, file: StoredFile, algorithm: str) -> str:
        """Return the fault of a shard with a digest not in its index, found once per host."""
        expected = self.manifest.details["digests"][shard]

        def check(file: StoredFile, _: IO[bytes]) -> str:
            digest = new_hash(algorithm)
            file.plan([(0, file.num_bytes)])
            with file.stream() as stream:
                while chunk := stream.read(1 << 20):
                    digest.update(chunk)
            is_right = digest.hexdigest() == expected
            return "" if is_right else f"its {algorithm} digest is not the one in its index"

        return self.storage.decoded(file, f"{algorithm} {expected}", check).fault()

    def _content(self, shard: int, file: StoredFile) -> tuple[StoredFile, Callable[[], str]]:
        """Return a shard's uncompressed content, of the size in its index; see `shared_bytes`."""
        details = self.manifest.details
        codec = self._form(shard)[1]
        expected = int(self.manifest.num_bytes[shard])
        if file.num_bytes != expected:
            raise self.broken_shard(
                shard, f"it has {file.num_bytes} bytes, and its index declares {expected}"
            )
        if self.validate_hash and (fault := self._check(shard, file, self.validate_hash)):
            raise self.broken_shard(shard, fault)
        if not codec:
            return file, lambda: ""
        exact = int(details["raw_bytes"][shard])
        return shared_bytes(self.storage, file, codec, exact_bytes=exact)

    def _block(
        self,
        shard: int,
        file: StoredFile,
        table: NDArray[np.uint32],
        start: int,
        stop: int,
    ) -> ShardBlock:
        columns = self._columns(self._layout(shard), self.manifest.paths[shard])
        layout_sizes, reading = self._layout(shard).sizes, self.reading
        data, starts, sizes, status = read_samples(
            file, table, start, stop, columns, layout_sizes, reading
        )
        n = len(status)
        status[(status == 0) & (sizes[0] > self.reading.most_bytes)] = TOO_LONG
        origin = make_origin(shard, np.arange(start, start + n, dtype=np.int64))
        block: Documents | Texts | UngatheredDocuments
        counts, kinds = array_headers(data, columns, starts, sizes, status)
        problems = problems_of(status)
        if self.tokenized:
            block = integer_block(data, starts[0], counts[0], kinds[0], origin, problems)
        else:
            block = decoded_texts(data, starts[0], sizes[0], origin, problems)
        if columns[1:]:
            kept = np.setdiff1d(np.arange(n), list(problems))
            block = block.gathered() if isinstance(block, UngatheredDocuments) else block
            found: dict[str, dict[str, NDArray[Any]]] = {}
            for i, column in enumerate(columns):
                if column.setting == "names":
                    places = zip(starts[i, kept].tolist(), sizes[i, kept].tolist(), strict=True)
                    names = [data[start : start + size].tobytes() for start, size in places]
                    keys = self.field_types.keys[column.name].of_texts(names)
                    found.setdefault("document_fields", {})[column.name] = keys
                elif i and column.setting != "image":
                    numbers = counts[i, kept] * math.prod(column.shape)
                    values = integers_at(data, starts[i, kept], numbers, kinds[i, kept])
                    fields = found.setdefault(column.setting, {})
                    fields[column.name] = values
                    if column.setting != "loss_mask":
                        fields[column.name] = values.view(column.dtype).reshape(-1, *column.shape)
            for name in self._integer_keys(self._layout(shard)):
                numbers = found["document_fields"][name]
                found["document_fields"][name] = self.field_types.keys[name].of_integers(numbers)
            of_documents = found.get("document_fields", {})
            block = replace(block, document_fields=of_documents)
            if isinstance(block, Documents):
                block = replace(block, token_fields=found.get("token_fields", {}))
                if "loss_mask" in found:
                    block, reasons = with_masks(block, found["loss_mask"])
                    problems |= {int(kept[i]): reason for i, reason in reasons.items()}
                    block = block.take(np.setdiff1d(np.arange(len(kept)), list(reasons)))
            elif self.beside is not None:
                images = {c.name: i for i, c in enumerate(columns) if c.setting == "image"}
                files = {name: (starts[i, kept], sizes[i, kept]) for name, i in images.items()}
                block, reasons = self._with_files(self.beside, block, data, files)
                problems |= {int(kept[i]): reason for i, reason in reasons.items()}
        end = start + n
        reached = int(table[end]) - head_bytes(len(table) - 1)
        return ShardBlock(block, origin, problems, end, reached)
