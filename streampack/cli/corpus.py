"""The source that a fingerprint describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampack.errors import ConfigError
from streampack.reading.sharded import ShardedSource
from streampack.sources import Chat
from streampack.sources.arrow.source import Arrow
from streampack.sources.jsonl.source import JSONL
from streampack.sources.mds.source import MDS
from streampack.sources.megatron.source import MegatronIndexed
from streampack.sources.parquet.source import Parquet
from streampack.sources.tar.source import WebDataset
from streampack.sources.text.source import TextFiles
from streampack.sources.tokens.source import Tokens
from streampack.storage.storage import Storage


def reopen_corpus(path: str, described: Mapping[str, Any]) -> ShardedSource:
    """The source at `path` that a fingerprint describes, to name its shards.

    Raises:
        ConfigError: it has no shards, or those at `path` are others.
    """
    kind, column, storage = described["kind"], described.get("column"), Storage()
    source: ShardedSource
    if kind == "MDS":
        source = MDS(path, column=str(column), loss_mask=[], storage=storage)
    elif kind == "WebDataset":
        dtype = described.get("dtype")
        named: dict[str, Any] = {"loss_mask": [], "key": str(described.get("key")), "dtype": dtype}
        if "field" in described:
            named["tokens" if described["tokenized"] else "text"] = described["field"]
        source = WebDataset(path, **named, storage=storage)
    elif kind == "JSONL":
        source = JSONL(path, text=described.get("field"), storage=storage)
    elif kind in ("Parquet", "Arrow"):
        text = described.get("dtype") == "text"
        source = (Arrow if kind == "Arrow" else Parquet)(
            path,
            text=column if text else None,
            tokens=None if text else column,
            loss_mask=described.get("loss_mask") or [],
            storage=storage,
        )
    elif kind == "MegatronIndexed":
        source = MegatronIndexed(path, storage=storage)
    elif kind == "Tokens":
        dtype, eos_id = described.get("dtype"), described.get("eos_id")
        source = Tokens(path, dtype=dtype, eos_id=eos_id, storage=storage)
    elif kind == "Chat":
        chat: Any = Chat  # whose class follows from the path
        source = chat(path, shape=described.get("shape"), storage=storage)
    elif kind == "TextFiles":
        source = TextFiles(path, storage=storage)
    else:
        raise ConfigError(
            f"The run reads a source of the kind {kind}.",
            "It has no files whose names could be shown.",
            "Leave --source out for it.",
        )
    found, saved = source.manifest.digest, described.get("manifest")
    if found != saved:
        raise ConfigError(
            f'The {len(source.manifest):,} shards at "{path}" have the manifest {found}, those of '
            f"the state {saved}.",
            "They are not the shards that the run reads, so their names would be wrong.",
            "Name the corpus as it was for the run: the same files, named by the same pattern.",
        )
    return source
