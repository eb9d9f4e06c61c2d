"""Sounds by reference: samples and rate from the heads of their files, and decoded samples."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.images.images import BrokenImageError, named_failures
from streampack.images.media_file import (
    FIRST_BYTES,
    MediaFile,
    UncountedError,
    opened,
    require_av,
)
from streampack.storage.storage import Storage

_MOST_CHUNKS = 1000
_LEAST_RATE, _MOST_RATE = 1000, 768_000


class SoundSize(NamedTuple):
    """Size of a sound: its number of samples in each channel, and samples per second."""

    samples: int
    rate: int

    @classmethod
    def of(cls, samples: float, rate: float) -> SoundSize:
        """Return the size of a sound; raise `ValueError` for impossible numbers."""
        if not (0 < samples < 1 << 40 and _LEAST_RATE <= rate <= _MOST_RATE):
            raise ValueError(f"has {samples} samples at {rate} a second")
        return cls(int(samples), int(rate))

    def at(self, rate: int) -> int:
        """Return the number of samples at another rate, rounded up."""
        return -(-self.samples * rate // self.rate)


def size_of(reference: bytes | str, storage: Storage, *, count_packets: bool = False) -> SoundSize:
    """Return the samples and rate of a sound from the head of its file.

    Args:
        count_packets: decode files whole if their heads do not count the samples.

    Raises:
        BrokenImageError: the file is missing, damaged, or its head does not count the samples.
        StorageError: the file could not be read; a retry may succeed.
    """
    with named_failures(reference):
        file = MediaFile(reference, storage)
        try:
            return _in_head(file)
        except (UncountedError, struct.error) as error:
            if not count_packets:
                advice = "name its sizes by sizes=, or pass count='packets' to read it whole"
                raise BrokenImageError(f"it {error}; {advice}") from error
        with opened(file, _format(file.start), "audio") as (container, stream):
            samples = sum(frame.samples for frame in container.decode(stream))
            return SoundSize.of(samples, stream.rate)


def _format(start: bytes) -> str:
    """Return FFmpeg's name of a format by the first bytes of a file.

    Raises:
        UncountedError: it is of another format.
    """
    if start[:4] == b"RIFF" and start[8:12] == b"WAVE":
        return "wav"
    if start[:3] == b"ID3" or (start[:1] == b"\xff" and start[1:2] >= b"\xe0"):
        return "mp3"
    names = {b"fLaC": "flac", b"OggS": "ogg", b"\x1aE\xdf\xa3": "matroska"}
    if start[:4] in names:
        return names[start[:4]]
    if start[4:8] == b"ftyp":
        return "mov"
    raise UncountedError("is not a wav, flac, mp3, ogg, m4a or webm file")


def _in_head(file: MediaFile) -> SoundSize:
    kind = _format(file.start)
    if kind == "wav":
        return _in_wav(file)
    if kind == "flac":
        data = file.part(0, min(42, file.num_bytes))
        packed = int.from_bytes(data[18:26], "big")
        if data[4] & 127 or len(data) < 42 or not packed & (1 << 36) - 1:
            raise UncountedError("is flac, and its head does not count the samples")
        return SoundSize.of(packed & (1 << 36) - 1, packed >> 44)
    raise UncountedError(f"is {kind}, and its head does not count the samples")


def _in_wav(file: MediaFile) -> SoundSize:
    """Return the size of a wav file, which is a list of chunks: "fmt " and "data" among others."""
    low, at, rate, width = 0, 12, 0, 0
    data = file.part(0, min(FIRST_BYTES, file.num_bytes))
    for _ in range(_MOST_CHUNKS):
        if at + 8 > file.num_bytes:
            break
        if at + 32 > low + len(data) < file.num_bytes:
            low, data = at, file.part(at, min(at + FIRST_BYTES, file.num_bytes))
        kind, size = struct.unpack_from("<4sI", data, at - low)
        if kind == b"fmt ":
            form, _, rate, _, width = struct.unpack_from("<HHIIH", data, at - low + 8)
            if form not in (1, 3, 0xFFFE):
                raise UncountedError("is a compressed wav, and its head does not count the samples")
        if kind == b"data":
            if not width or not 0 < size <= file.num_bytes - at - 8 or size % width:
                raise UncountedError(f"is wav, and declares {size} bytes of samples")
            return SoundSize.of(size // width, rate)
        at += 8 + size + size % 2
    raise UncountedError("is a wav without samples")


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
    file = MediaFile(reference, storage or Storage())
    resampler: Any = require_av().AudioResampler(format="flt", layout="mono", rate=rate)
    wanted, parts, samples = size.at(rate), [], 0
    with named_failures(reference), opened(file, _format(file.start), "audio") as (source, stream):
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
