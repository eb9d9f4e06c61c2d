"""Parts that an earlier run of a conversion has finished, if their files are as it left them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from streampack.conversion.inputs import stamp_of
from streampack.conversion.parts import PartNote, note_name
from streampack.conversion.settings import Conversion
from streampack.conversion.shards import Destination
from streampack.errors import ConfigError
from streampack.threads import in_threads

logger = logging.getLogger(__name__)

_THREADS = 4  # files read at a time


def finished_parts(
    conversion: Conversion,
    sizes: Mapping[str, int],
    manifest: Mapping[str, Any] | None,
    *,
    ended: bool,
) -> dict[int, PartNote]:
    """Return the notes of parts with unchanged input and shards.

    Args:
        conversion: the conversion.
        sizes: bytes of all files in the destination.
        manifest: the manifest, which has the notes once all parts were finished.
        ended: True if the conversion has ended.

    Raises:
        ConfigError: the conversion has ended, and its input has changed since.
    """
    destination = conversion.destination
    names = [note_name(part) for part in range(conversion.num_parts)]
    read = destination.read_all([name for name in names if name in sizes])
    contents = [*(manifest or {}).get("parts", ()), *_decoded(read)]
    notes = {note.part: note for note in _notes(contents) if note.part < conversion.num_parts}
    other = [n for n in notes.values() if n.input not in (None, stamp_of(conversion, n.part))]
    if other and ended:
        raise ConfigError(
            f"{destination.url} holds the conversion of an input that has changed since.",
            "Choose another destination, or remove these files.",
            setting="destination",
            path=destination.url,
        )
    for note in other:
        del notes[note.part]
    if other:
        logger.warning(
            "%d finished parts are repeated, since their input has changed; the "
            "first is part %d.", len(other), min(note.part for note in other),
        )  # fmt: skip
    whole = {part: note for part, note in notes.items() if _fits(note, sizes)}
    checksums = in_threads(lambda note: _checked(destination, note), whole.values(), _THREADS)
    for note, is_whole in zip([*whole.values()], checksums, strict=True):
        if not is_whole:
            del whole[note.part]
    if damaged := sorted(notes.keys() - whole.keys()):
        logger.warning(
            "%d of %d finished parts are repeated, since their shards are missing or "
            "damaged; the first is part %d.", len(damaged), len(notes), damaged[0],
        )  # fmt: skip
    return whole


def _decoded(files: Iterable[bytes]) -> Iterator[Any]:
    for data in files:
        try:
            yield json.loads(data)
        except ValueError:  # cut by a power failure
            continue


def _notes(contents: Iterable[Any]) -> Iterator[PartNote]:
    for content in contents:
        try:
            yield PartNote.of(content)
        except (KeyError, TypeError, ValueError):
            continue


def _fits(note: PartNote, sizes: Mapping[str, int]) -> bool:
    return all(sizes.get(shard.name) == shard.num_bytes for shard in note.shards)


def _checked(destination: Destination, note: PartNote) -> bool:
    shards = [shard for shard in note.shards if shard.checksum is not None]
    return all(destination.checksum(shard.name) == shard.checksum for shard in shards)
