"""The manifest that `streampack convert` writes beside its shards, for readers of them.

It has the counts of every shard, so that the tokens of a corpus need no sample, and a digest of
the tokenizer's vocabulary, so that ids are not taken for the ids of another one.
"""

from __future__ import annotations

import json
from typing import Any

from streampack.errors import StorageError
from streampack.files.file_source import FileSource
from streampack.sources.base import Source

#: Name of the manifest in the destination.
MANIFEST = "_conversion.json"


def manifest_beside(source: Source) -> dict[str, Any] | None:
    """Return the manifest in the folder of a source's shards; None without one.

    Raises:
        StorageError: the manifest cannot be read.
    """
    files = source._inner
    if not isinstance(files, FileSource):
        return None
    paths = files.manifest.paths
    path = f"{paths[0].rpartition('/')[0]}/{MANIFEST}"
    try:
        size = files.storage.size(path)
    except StorageError as error:
        if error.failure in ("missing", "denied"):
            return None
        raise
    manifest: dict[str, Any] = json.loads(files.storage.read_range(path, 0, size))
    return manifest


def converted_tokens(source: Source) -> int | None:
    """Return the number of token ids in a source of converted shards.

    Return None if a shard is not of the conversion, or has other bytes than after it.
    """
    manifest = manifest_beside(source)
    if manifest is None or not source.tokenized:
        return None
    shards = {name: sizes for part in manifest["parts"] for name, *sizes in part["shards"]}
    listed = source._inner.manifest  # type: ignore[attr-defined]
    folder = listed.paths[0].rpartition("/")[0]
    total = 0
    for path, num_bytes in zip(listed.paths, listed.num_bytes.tolist(), strict=True):
        sizes = shards.get(path.removeprefix(f"{folder}/"))
        if sizes is None or sizes[0] != num_bytes:
            return None
        total += sizes[2]
    return total
