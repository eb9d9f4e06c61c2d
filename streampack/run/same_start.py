"""Check at the start of a loop that all ranks start the same run, over the same documents.

Steps:
  1. A sum with a question of its own: the ranks are at the start of a loop, all of them.
  2. A maximum of numbers and of their negatives, which agree where all ranks have the same number:
     the batch, digests of the settings, and digests of documents at 18 positions.
  3. Only if documents differ: the same with documents that are read anew. Random documents,
     which differ between readings, are not compared.
All ranks see the same results, so an error is raised on all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from streampack.errors import RankError
from streampack.job.ending import OtherPlaceError, Ranks, question
from streampack.run.raw_documents import digests, name_of_place, repeated_digests
from streampack.sources.base import Source
from streampack.sources.file_source import FileSource
from streampack.sources.iterable.indexed import InMemory

if TYPE_CHECKING:
    from streampack.run.rank import RankRun

#: Parts of a source's description that depend on its documents alone.
_OF_DOCUMENTS = ("manifest", "length", "num_shards", "builder", "config", "version", "split")


def check_same_start(run: RankRun) -> None:
    """Raise `RankError` on every rank unless all start the same run at the same batch.

    Args:
        run: run of this rank, which keeps the digests of its documents.
    """
    ranks, start, fingerprint = run.ranks, run.state.next_batch, run.plan.fingerprint
    try:
        ranks.total(0, question("start"))()
    except OtherPlaceError as error:
        raise _other_run(start, fingerprint, error.remedy) from None
    config = run.plan.config
    seed, parts = config.seed, config.source.parts
    if run.compared is None:
        each = [digests(source, seed, config.lanes) for source in parts.values()]
        run.compared = [_number(of_place) for of_place in np.transpose(each).tolist()]
    documents, settings = _divided(fingerprint["source"])
    settings = {**fingerprint, **run.state.beside, "source": settings}
    heads = [start, _number([seed, len(parts)]), _number(documents), _number(settings)]
    differs = _differing(ranks, np.array([*heads, *run.compared], dtype=np.int64))
    moved, other_places, other_documents, other_settings = differs[:4].tolist()
    if not other_places and other_documents:
        described = documents.get("sources", {"": documents})
        numbers = np.array([_number(each) for each in described.values()], dtype=np.int64)
        name, source = list(parts.items())[int(_differing(ranks, numbers).argmax())]
        _refuse(name, source, "their number or their names")
    if not other_places and differs[4:].any():
        for name, source in parts.items():
            values, unsteady = repeated_digests(source, seed, config.lanes)
            differing = _differing(ranks, values) & ~_anywhere(ranks, unsteady)
            if differing.any():
                place = name_of_place(source, seed, int(np.flatnonzero(differing)[0]))
                _refuse(name, source, place)
    if moved or other_places or other_settings:
        raise _other_run(start, fingerprint, OtherPlaceError().remedy)


def _other_run(start: int, fingerprint: Mapping[str, Any], remedy: str) -> RankError:
    return RankError(
        f"All ranks must start the same run at the same batch; this one starts at batch "
        f"{start} with {fingerprint.get('lanes')} lanes.",
        remedy,
    )


def _refuse(name: str, source: Source, what: str) -> NoReturn:
    """Raise the error of ranks with different documents."""
    inner = source.inner
    if isinstance(inner, FileSource) and not isinstance(inner, InMemory):
        how = "all files on every rank, equal on every host"
    elif isinstance(inner, InMemory):
        how = "all documents in one order, as documents instead of documents[rank::ranks]"
    else:
        how = "all of it, without shard, split_dataset_by_node or an unseeded shuffle"
    raise RankError(
        f"Ranks hold different documents{name and f' in the source {name!r}'}: {what} "
        f"{'differ' if what.startswith('their') else 'differs'}, and this rank has "
        f"{source!r:.200}.",
        f"Give every rank the whole data set ({how}); streampack divides it.",
        setting="source",
    )


# ---------------------------------------------------------------------- numbers of ranks


def _differing(ranks: Ranks, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where (N,) numbers of 48 bits differ between ranks."""
    halves = np.concatenate([numbers >> 24, numbers & 0xFFFFFF]).astype(np.float32)
    highest, lowest = np.split(ranks.highest(np.concatenate([halves, -halves]))(), 2)
    differing: NDArray[np.bool_] = np.any(np.split(highest != -lowest, 2), axis=0)
    return differing


def _anywhere(ranks: Ranks, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where (N,) flags are set on any rank."""
    return ranks.highest(flags.astype(np.float32))() > 0


def _number(value: Any) -> int:
    """Return a digest of 48 bits of JSON-able values."""
    text = json.dumps(value, sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big")


def _divided(described: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide a source's description into the parts about its documents and its settings."""
    documents = {name: described[name] for name in _OF_DOCUMENTS if name in described}
    settings = {name: value for name, value in described.items() if name not in documents}
    if "sources" in described:
        pairs = {name: _divided(each) for name, each in described["sources"].items()}
        documents["sources"] = {name: pair[0] for name, pair in pairs.items()}
        settings["sources"] = {name: pair[1] for name, pair in pairs.items()}
    return documents, settings
