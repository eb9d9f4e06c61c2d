"""Samples and rate of an m4a, mp4 or mov file's sound, from the tables of its `moov` box.

FFmpeg decodes whole frames: it leaves out the samples before the begin of the list of edits, which
has the encoder's delay, and the frames after its end. Counts equal its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.images.boxes import (
    child,
    clock_of,
    count_of_sizes,
    damage_named,
    edits_of,
    inside,
    require_near,
    runs_of,
    track_duration,
    track_of,
    tracks_of,
)
from streampack.images.media_file import UncountedError

#: Kinds of samples of which the last frame may be shorter.
_LOSSLESS = (b"alac", b"fLaC")
_INTEGERS_OR_FLOATS = (
    b"sowt", b"twos", b"in24", b"in32", b"fl32", b"fl64", b"lpcm", b"ipcm", b"fpcm"
)  # fmt: skip
#: Samples in a frame of AAC.
_AAC_FRAME = 1024
_AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_AAC, _MP3 = (0x40,), (0x69, 0x6B)


@damage_named()
def samples_of_track(moov: memoryview) -> tuple[int, int]:
    """Return the samples and rate of the first track with sound.

    Args:
        moov: content of the box.

    Raises:
        UncountedError: the file is damaged or fragmented, has a codec with frames of unknown
            length, or edits other than one cut.
    """
    track, _ = track_of(moov, b"soun")
    scale, duration = clock_of(child(track, b"mdia", b"mdhd"))
    table = child(track, b"mdia", b"minf", b"stbl")
    kind, entry = _entry(child(table, b"stsd"))
    times = runs_of(child(table, b"stts"))
    edits, (movie_scale, _) = edits_of(track), clock_of(child(moov, b"mvhd"))
    lasts = track_duration(child(track, b"tkhd"))
    if kind == b"mp4a":
        _require_plain(entry, scale)
    rate = int.from_bytes(entry[24:26], "big")
    frames, total = int(times[:, 0].sum()), int((times[:, 0] * times[:, 1]).sum())
    if frames != count_of_sizes(table) or not 0 < total < 1 << 40 or rate != scale:
        raise UncountedError(f"has {frames} frames and times for {total} samples at {rate}")
    _require_same(times, (scale, duration), (movie_scale, lasts), edits)
    if kind in _INTEGERS_OR_FLOATS and (times[:, 1] == 1).all():
        start, stop = _shown(edits, scale, movie_scale, total)
        if start or stop < total - scale // max(movie_scale, 1) - 1:
            raise UncountedError("has a list of edits that cuts its samples")
        return total, rate
    frame = int(times[0, 1])
    # Only the last frame may differ.
    if (times[:-1, 1] != frame).any() or (times[-1, 1] != frame and times[-1, 0] != 1) or not frame:
        raise UncountedError("has frames of several lengths")
    if kind not in _LOSSLESS:
        if kind not in (b"mp4a", b".mp3"):
            raise UncountedError(f"has sound of kind {kind.decode('latin-1')}")
        if edits is None and b"iTunSMPB" in bytes(moov):
            raise UncountedError("tells the encoder's delay in a comment")
        total = frames * frame
    start, stop = _shown(edits, scale, movie_scale, total)
    return min(-(-stop // frame) * frame, total) - start, rate


def has_sound(moov: memoryview) -> bool:
    """Return True if a film has a track with sound.

    Raises:
        UncountedError: a box tells so, and no track.
    """
    if tracks_of(moov, b"soun"):
        return True
    if b"smhd" in bytes(moov):  # of tracks with sound alone
        raise UncountedError("has sound in a track that is damaged")
    return False


def _require_same(
    times: NDArray[np.int64],
    track: tuple[int, int],
    movie: tuple[int, int],
    edits: tuple[int, int, int] | None,
) -> None:
    """Raise `UncountedError` if the durations of a track contradict one another.

    Args:
        times: (N, 2) runs of `stts`.
        track, movie: ticks per second, and the track's duration in these.
    """
    (scale, duration), (movie_scale, lasts) = track, movie
    total, longest = int((times[:, 0] * times[:, 1]).sum()), int(times[:, 1].max())
    require_near(duration, scale, (total,), 1)
    if not movie_scale:
        raise UncountedError("has no clock")
    rounding = 1 + 2 * scale / movie_scale
    if edits is None:
        require_near(lasts, movie_scale, (total,), rounding, scale)
        return
    start, length, whole = edits
    require_near(lasts, movie_scale, (whole,), 2)
    stop = start + length * scale / movie_scale
    padding = 2 * longest if times[-1, 1] == longest else 0  # else the last frame is cut already
    if not -padding - rounding <= stop - total <= rounding:
        raise UncountedError("has a list of edits that ends elsewhere than its frames")


def _shown(
    edits: tuple[int, int, int] | None, scale: int, movie_scale: int, total: int
) -> tuple[int, int]:
    """Return the first sample that is shown and the one after the last, of a track's samples."""
    if edits is None:
        return 0, total
    start, length, _ = edits
    stop = start + (length * scale + movie_scale // 2) // movie_scale
    if not 0 <= start <= scale or stop <= start or start >= total:
        raise UncountedError("has a list of edits that shows no sample, or cuts its begin")
    return start, stop


def _entry(box: memoryview) -> tuple[bytes, memoryview]:
    """Return the kind and content of the only sample entry in `stsd`."""
    entries = list(inside(box[8:]))
    if len(entries) != 1 or len(entries[0][1]) < 28:
        raise UncountedError(f"has sound of {len(entries)} kinds")
    return entries[0]


def _require_plain(entry: memoryview, scale: int) -> None:
    """Raise `UncountedError` unless `mp4a` is mp3 or AAC-LC with frames of 1,024 samples.

    Spectral band replication (HE-AAC) doubles the decoded rate.
    """
    version = int.from_bytes(entry[8:10], "big")
    if version > 1:
        raise UncountedError("has sound of a later version of QuickTime")
    parts = entry[28 + 16 * version :]
    boxes = dict(inside(parts))
    esds = bytes(boxes[b"esds"] if b"esds" in boxes else child(boxes.get(b"wave", parts), b"esds"))
    at, kind = 4, 0
    while at < len(esds):
        tag, size = esds[at], 0
        at += 1
        while True:
            size, at = size << 7 | esds[at] & 127, at + 1
            if esds[at - 1] < 128:
                break
        if tag == 3:
            if esds[at + 2] & 0xE0:
                break
            at += 3
        elif tag == 4:
            kind, at = esds[at], at + 13
            if kind in _MP3:
                return
        elif tag == 5 and kind in _AAC:
            if _is_plain_aac(esds[at : at + size], scale):
                return
            break
        else:
            at += size
    raise UncountedError("has sound that is not plain AAC or mp3")


def _is_plain_aac(config: bytes, scale: int) -> bool:
    """Return True for an AudioSpecificConfig (ISO/IEC 14496-3) of AAC-LC without extensions."""
    bits = int.from_bytes(config.ljust(8, b"\0")[:8], "big")
    kind, rate, channels, ga = bits >> 59, bits >> 55 & 15, bits >> 51 & 15, bits >> 48 & 7
    extension = bits >> 37 & (1 << 11) - 1, bits >> 32 & 31, bits >> 31 & 1
    return (
        kind == 2
        and rate < len(_AAC_RATES)
        and _AAC_RATES[rate] == scale
        and channels > 0
        and ga == 0
        and extension != (0x2B7, 5, 1)
    )
