"""Check at the start of a loop that all ranks start the same run, over the same documents.

Steps:
  1. A sum with a question of its own: the ranks are at the start of a loop, all of them.
  2. A maximum of numbers and of their negatives, which agree where all ranks have the same number:
     the batch, digests of the settings, and digests of documents at 18 positions. Where settings
     differ, the processes with the highest digest give theirs to all, then those with the lowest.
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

from streampack.changes.fields import first_difference
from streampack.distributed.raw_documents import digests, name_of_place, repeated_digests
from streampack.errors import RankError
from streampack.files.file_source import FileSource
from streampack.job.ending import OtherPlaceError, Ranks, question
from streampack.sources.base import Source
from streampack.sources.indexed import InMemory

if TYPE_CHECKING:
    from streampack.run.rank import RankRun

#: Parts of a source's description that depend on its documents alone.
_OF_DOCUMENTS = ("manifest", "length", "num_shards", "builder", "config", "version", "split")
#: Arguments and methods that set what is compared under another name.
_ARGUMENTS = {"batch_tokens": "batch_size", "next_batch": "load_state_dict"}


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
    seed, parts = config.seed, config.source._parts
    if run.compared is None:
        each = [digests(source, seed, config.lanes) for source in parts.values()]
        run.compared = [_number(of_place) for of_place in np.transpose(each).tolist()]
    documents, settings = _divided(fingerprint["source"])
    chosen = {"epochs": config.epochs, "end": run.end, "next_batch": start}
    settings = {**fingerprint, **run.state.beside, **chosen, "source": settings}
    heads = [_number([seed, len(parts)]), _number(documents), _number(settings)]
    differs = _differing(ranks, np.array([*heads, *run.compared], dtype=np.int64))
    other_places, other_documents, other_settings = differs[:3].tolist()
    if not other_places and other_documents:
        described = documents.get("sources", {"": documents})
        numbers = np.array([_number(each) for each in described.values()], dtype=np.int64)
        name, source = list(parts.items())[int(_differing(ranks, numbers).argmax())]
        _refuse(name, source, "their number or their names")
    if not other_places and differs[3:].any():
        for name, source in parts.items():
            values, unsteady = repeated_digests(source, seed, config.lanes)
            differing = _differing(ranks, values) & ~_anywhere(ranks, unsteady)
            if differing.any():
                place = name_of_place(source, seed, int(np.flatnonzero(differing)[0]))
                _refuse(name, source, place)
    if other_places or other_settings:
        _refuse_settings(ranks, run.plan.ranks.rank, settings)


def _refuse_settings(ranks: Ranks, rank: int, settings: Mapping[str, Any]) -> NoReturn:
    """Raise the error of ranks with different settings: the first that differs, with two values."""
    text = np.frombuffer(_json(settings), dtype=np.uint8)
    mine = _number(settings) & 0xFFFFFF
    given = []
    for extreme in (ranks.highest(_floats(mine, -mine))() * (1, -1)).tolist():
        speaks = mine == extreme
        lengths = ranks.highest(_floats(-rank, text.size) if speaks else _floats(-np.inf, 0))()
        letters = np.zeros(int(lengths[1]), dtype=np.float32)
        if speaks:
            letters[:] = text
        told = ranks.highest(letters)().astype(np.uint8).tobytes()
        given.append((-int(lengths[0]), json.loads(told)))
    (one, first), (other, second) = sorted(given, key=lambda pair: pair[0])
    name, value, other_value = first_difference(first, second)
    argument = _ARGUMENTS.get(name, name)
    by = f" (of {argument})" if argument != name else ""
    raise RankError(
        f"All ranks must start the same run at the same batch: `{name}`{by} is {value} on rank "
        f"{one} and {other_value} on rank {other}.",
        OtherPlaceError().remedy,
        setting=argument,
    )


def _other_run(start: int, fingerprint: Mapping[str, Any], remedy: str) -> RankError:
    return RankError(
        f"All ranks must start the same run at the same batch; this one starts at batch "
        f"{start} with {fingerprint.get('lanes')} lanes.",
        remedy,
    )


def _refuse(name: str, source: Source, what: str) -> NoReturn:
    """Raise the error of ranks with different documents."""
    inner = source._inner
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


def _floats(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, dtype=np.float32)


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
    return int.from_bytes(hashlib.blake2b(_json(value), digest_size=6).digest(), "big")


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()


def _divided(described: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide a source's description into the parts about its documents and its settings."""
    documents = {name: described[name] for name in _OF_DOCUMENTS if name in described}
    settings = {name: value for name, value in described.items() if name not in documents}
    if "sources" in described:
        pairs = {name: _divided(each) for name, each in described["sources"].items()}
        documents["sources"] = {name: pair[0] for name, pair in pairs.items()}
        settings["sources"] = {name: pair[1] for name, pair in pairs.items()}
    return documents, settings
