"""Sounds by reference: their heads, and their samples, which PyAV decodes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.images.boxes import (
    child,
    damage_named,
    moov_of,
    packets_of,
    parts_around,
    track_of,
)
from streampack.images.images import BrokenImageError, named_failures
from streampack.images.media_file import (
    MediaFile,
    UncountedError,
    media_file,
    opened,
    require_av,
    size_in,
)
from streampack.sounds.heads import SoundSize, format_of, size_in_head
from streampack.storage.storage import Storage


def size_of(reference: bytes | str, storage: Storage, *, count_packets: bool = False) -> SoundSize:
    """Return the samples and rate of a sound from the head of its file.

    Args:
        count_packets: decode files whole if their heads do not count the samples.

    Raises:
        BrokenImageError: the file is missing, damaged, or its head does not count the samples.
        StorageError: the file could not be read; a retry may succeed.
    """
    return size_in(reference, storage, size_in_head, counted, count_packets=count_packets)


def counted(file: MediaFile) -> SoundSize:
    """Return the samples and rate of a sound that is decoded whole."""
    with opened(file, format_of(file.start), "audio") as (container, stream):
        samples = sum(frame.samples for frame in container.decode(stream))
        return SoundSize.of(samples, stream.rate)


def declare(file: MediaFile) -> None:
    """Declare the bytes that `samples_of` will read: one track of mp4 and mov files."""
    with suppress(UncountedError), damage_named():
        if format_of(file.start) == "mov":
            begin, moov = moov_of(file.part, file.num_bytes)
            track, others = track_of(moov, b"soun")
            packets = packets_of(child(track, b"mdia", b"minf", b"stbl"))
            file.declare(parts_around(packets), [begin + each for each in others])
            return
    file.declare_all()


#: Samples by which resampling may be off, for its filter.
_MOST_OFF = 64


def samples_of(
    reference: bytes | str, size: SoundSize, rate: int, storage: Storage | None
) -> NDArray[np.float32]:
    """Decode a sound to one channel.

    Args:
        size: planned size of the sound.
        rate: samples per second of the result.

    Returns:
        (``size.at(rate)``,) values from -1 to 1. A resampler may return some samples less, in
        place of which zeros stand.

    Raises:
        BrokenImageError: the sound cannot be decoded, or is not of the planned size.
        StorageError: the file could not be read; a retry may succeed.
    """
    resampler: Any = require_av().AudioResampler(format="flt", layout="mono", rate=rate)
    wanted, parts, samples = size.at(rate), [], 0
    with named_failures(reference), media_file(reference, storage or Storage()) as file:
        declare(file)
        with opened(file, format_of(file.start), "audio") as (source, stream):
            if stream.rate != size.rate:
                raise BrokenImageError(f"{stream.rate} samples a second, not {size.rate}")
            for frame in source.decode(stream):
                if frame.is_corrupt:
                    raise BrokenImageError("a part is damaged")
                samples += frame.samples
                if samples > size.samples:
                    break
                parts += [part.to_ndarray()[0] for part in resampler.resample(frame)]
            if samples != size.samples:
                more = " or more" if samples > size.samples else ""
                raise BrokenImageError(f"{samples} samples{more}, not {size.samples}")
            parts += [part.to_ndarray()[0] for part in resampler.resample(None)]
    values: NDArray[np.float32] = np.concatenate([*parts, np.zeros(_MOST_OFF, np.float32)])
    if abs(len(values) - _MOST_OFF - wanted) > _MOST_OFF:
        raise BrokenImageError(f"{len(values) - _MOST_OFF} samples after resampling, not {wanted}")
    return values[:wanted]
