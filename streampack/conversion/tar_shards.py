"""Tar shards, as webdataset reads them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from streampack.conversion.shard_writer import Payload, ShardWriter, columns_of
from streampack.errors import ConfigError


class TarShards(ShardWriter):
    """Tar shards with a member for each document, `000000000.npy` or `000000000.txt`, and one for
    its loss mask, `000000000.loss_mask.npy`."""

    overhead: ClassVar[int] = (
        1200  # a member's header, the padding to 512 bytes, and the header of a .npy
    )

    def check(self) -> None:
        """Raise `ConfigError` for a compression."""
        if self.compression is not None:
            raise ConfigError(
                f'Compression "{self.compression}" was asked for tar shards.',
                "They are written plain, so that they can be read in bulk.",
                "Leave --compression out, or convert to mds.",
            )

    def write(
        self, folder: Path, shard: int, first: int, documents: Sequence[Payload]
    ) -> tuple[Path, Any]:
        """Write ``shard-00012.tar`` with the members of the documents."""
        file = folder / f"shard-{shard:05}.tar"
        with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive:
            for number, document in enumerate(documents, start=first):
                for extension, data in _members(document):
                    member = tarfile.TarInfo(f"{number:09}.{extension}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        return file, {"basename": file.name, "samples": len(documents)}


def _members(document: Payload) -> Iterator[tuple[str, bytes]]:
    """What the names of a document's members end in, and their content."""
    if isinstance(document, str):
        yield "txt", document.encode()
        return
    for name, values in columns_of(document).items():
        data = io.BytesIO()
        np.save(data, np.ascontiguousarray(values), allow_pickle=False)
        yield "npy" if name == "tokens" else f"{name}.npy", data.getvalue()
