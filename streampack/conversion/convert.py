"""Conversion of a source to Parquet shards, part by part, restartable after the finished parts.

The source's listing and the size of a part alone determine the parts. Each is read in order,
tokenized if requested, and cut into shards by size. A shard is written locally and moved into
place; after the last one the part's note is. At the end a manifest takes the place of the notes.

So the result has the same bytes for any number of workers, and a killed run continues after the
parts with notes. A part without a note is repeated.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, astuple, dataclass, replace
from operator import add
from typing import Any

from streampack.arguments import whole_number
from streampack.conversion.finished import finished_parts
from streampack.conversion.folders import alone, writing_to
from streampack.conversion.kept import keeping
from streampack.conversion.manifest import manifest_of
from streampack.conversion.parts import PartNote, convert_part, note_name
from streampack.conversion.settings import Conversion
from streampack.conversion.shards import HIDDEN, Destination, no_documents
from streampack.cores import usable_cores
from streampack.errors import ConfigError, StateError
from streampack.files.converted import MANIFEST
from streampack.tasks.engine import Engine
from streampack.tasks.processes import in_processes

logger = logging.getLogger(__name__)

_SETTINGS = f"{HIDDEN}/conversion.json"
_ONE_CURSOR = f"{HIDDEN}/progress.json"  # of conversions that were not divided into parts


@dataclass(frozen=True)
class Progress:
    """Progress of a conversion.

    Attributes:
        parts: number of finished parts.
        num_parts: number of all parts.
        shards, documents, tokens, loss_tokens: their shards, documents, token ids (0 for text),
            and ids that carry loss.
        skipped: broken documents or shards left out of them.
    """

    parts: int
    num_parts: int
    shards: int
    documents: int
    tokens: int
    loss_tokens: int
    skipped: int

    @classmethod
    def of(cls, notes: Iterable[PartNote], num_parts: int) -> Progress:
        """Add up the notes of finished parts."""
        notes = list(notes)
        shards = [shard[2:5] for note in notes for shard in note.shards]
        documents, tokens, loss_tokens = map(sum, zip((0, 0, 0), *shards, strict=True))
        skipped = sum(note.skipped for note in notes)
        return cls(len(notes), num_parts, len(shards), documents, tokens, loss_tokens, skipped)

    def plus(self, note: PartNote) -> Progress:
        """Return the progress after one more part."""
        total, part = astuple(self), astuple(Progress.of([note], 0))
        return Progress(*map(add, total, part))


def convert_source(
    conversion: Conversion,
    *,
    address: str | None = None,
    workers: int | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Run a conversion to its end, or continue one that was stopped.

    Args:
        conversion: the conversion.
        address: address of a Ray cluster with machines that see the same files; None uses
            processes of this machine.
        workers: processes on this machine, by default one per core that this process may use; on a
            cluster, parts at a time. The result does not depend on it.
        report: called with the progress after the start and after each part.

    Returns:
        The final progress.

    Raises:
        ConfigError: the destination is not empty, or has another conversion; Ray is not installed,
            or there is no cluster at the address.
        ContentError: a document is broken, with on_error="raise".
        StateError: shards disappeared, or others appeared, during the conversion.
        StorageError: reading or writing failed; repeat the call to continue.
        WorkerError: workers repeatedly died in the same parts.
    """
    if workers is not None:
        whole_number("workers", workers)
    for source in conversion.sources:
        source.prepare()
    conversion = keeping(replace(conversion, dtype=conversion.common_dtype()))
    destination = conversion.destination
    local = destination.local
    locked = nullcontext() if local is None else alone(local / HIDDEN, destination.url)
    with locked, _engine(address, workers) as engine:
        notes = _begin(conversion)
        ended = _SETTINGS not in destination.names()
        report(progress := Progress.of(notes.values(), conversion.num_parts))
        left = [(part,) for part in range(conversion.num_parts) if part not in notes]
        if ended and not left:
            logger.info("%s holds this conversion already", destination.url)
            return progress
        try:
            with closing(engine(convert_part, conversion, left)) as finished:
                for note in finished:
                    _name_skipped(note)
                    notes[note.part] = note
                    report(progress := progress.plus(note))
        finally:
            destination.clear_scratch()
        _finish(conversion, progress, [notes[part] for part in sorted(notes)])
    return progress


def _engine(address: str | None, workers: int | None) -> AbstractContextManager[Engine]:
    if address is None:
        return nullcontext(in_processes(workers or usable_cores()))
    from streampack.tasks.on_ray import on_ray

    return on_ray(address, workers)


def _begin(conversion: Conversion) -> dict[int, PartNote]:
    """Return the notes of finished parts; before the first shard, settings may change."""
    destination = conversion.destination
    sizes = destination.sizes()
    shards = any(not name.startswith(f"{HIDDEN}/") for name in sizes)
    if shards and _ONE_CURSOR in sizes:
        raise ConfigError(
            f"{destination.url} holds an unfinished conversion of an earlier version of "
            "streampack.",
            "Finish it with that version, or remove its files to start anew.",
            setting="destination",
            path=destination.url,
        )
    destination.clear_scratch()
    settings = json.loads(json.dumps(conversion.settings()))
    manifest = _json(destination, MANIFEST, sizes)
    saved = _json(destination, _SETTINGS, sizes) if shards else None
    ended = saved is None and manifest is not None and manifest.get("settings") == settings
    notes: dict[int, PartNote] = {}
    if ended or saved is not None:
        destination.refuse_other("conversion", saved or settings, settings)
        notes = finished_parts(conversion, sizes, manifest, ended=ended)
        if _SETTINGS in sizes or len(notes) == conversion.num_parts:
            return notes
    else:
        destination.begin("conversion")
    with destination.scratch() as scratch, writing_to(scratch):
        destination.write(_SETTINGS, json.dumps(settings, sort_keys=True).encode(), scratch)
    return notes


def _json(destination: Destination, name: str, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the contents of a file of JSON; None if it is missing or damaged."""
    try:
        content = json.loads(destination.read(name)) if name in sizes else None
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _name_skipped(note: PartNote) -> None:
    for fact in note.named:
        logger.warning("skipped in part %d: %s", note.part, fact)
    if note.skipped > len(note.named):
        logger.warning("skipped in part %d: %d in all", note.part, note.skipped)


def _finish(conversion: Conversion, progress: Progress, notes: list[PartNote]) -> None:
    """Check that the shards of all parts, and no others, are in place; replace their notes.

    The manifest holds the notes of all parts. The settings are removed last, so a repeated command
    ends what a killed one has left.
    """
    destination = conversion.destination
    names = {*destination.names()}
    shards = {name for name in names if not name.startswith(f"{HIDDEN}/")} - {MANIFEST}
    expected = {shard.name for note in notes for shard in note.shards}
    if shards != expected:
        name = min(shards ^ expected)
        raise StateError(
            f"{destination.url} must hold the {len(expected):,} shards of the conversion, and "
            f"{name} {'appeared' if name in shards else 'disappeared'}.",
            "Repeat the command, which repeats missing parts; remove files that are not of "
            "the conversion.",
            path=f"{destination.url}/{name}",
        )
    if expected:
        content = json.dumps(manifest_of(conversion, asdict(progress), notes), indent=1)
        with destination.scratch() as scratch, writing_to(scratch):
            destination.write(MANIFEST, content.encode(), scratch)
        destination.clear_scratch()
    destination.remove(*(name for note in notes if (name := note_name(note.part)) in names))
    destination.remove(_SETTINGS)
    if not expected:
        raise no_documents()
