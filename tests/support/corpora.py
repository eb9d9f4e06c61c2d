"""Small real corpora on disk, written by the formats' own writers, and a tokenizer for them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.support.mosaic import streaming_module


def byte_tokenizer() -> Tokenizer:
    """One id per UTF-8 byte, and `<|endoftext|>` as id 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def write_mds(
    folder: Path,
    documents: Sequence[Any],
    column: str = "t",
    size_limit: int = 2000,
    **options: Any,
) -> str:
    """A corpus with one column of token ids or text."""
    encoding = "str" if isinstance(documents[0], str) else f"ndarray:{documents[0].dtype}"
    out = folder / "mds"
    with streaming_module("base.format.mds") as mds:
        with mds.MDSWriter(
            out=str(out), columns={column: encoding}, size_limit=size_limit, **options
        ) as writer:
            for document in documents:
                writer.write({column: document})
    return str(out)


def write_tar(path: Path, documents: Sequence[np.ndarray]) -> Path:
    """A WebDataset shard of `.npy` members; gzip if the name ends in .gz."""
    return write_samples(path, [{"npy": npy_bytes(tokens)} for tokens in documents])


def npy_bytes(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(array))
    return stream.getvalue()


def write_samples(path: Path, samples: Sequence[Mapping[str, bytes]]) -> Path:
    """A tar of samples, each a mapping from endings to files; gzip by the path's ending."""
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for number, sample in enumerate(samples):
            for ending, data in sample.items():
                member = tarfile.TarInfo(f"{number:06d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path
