"""Films by reference: their heads, and their sampled frames.

PyAV decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.films.boxes import FilmTable, film_table
from streampack.films.groups import groups_of, parts_of
from streampack.films.size import FilmSize
from streampack.images.boxes import has_boxes, moov_of
from streampack.images.images import BrokenImageError, named_failures
from streampack.images.media_file import (
    MediaFile,
    UncountedError,
    media_file,
    opened,
    size_in,
)
from streampack.sounds import files as sounds
from streampack.sounds.heads import SoundSize, format_of
from streampack.sounds.tracks import has_sound, samples_of_track
from streampack.storage.storage import Storage

#: Share by which the frames per second may differ.
_TOLERANCE = 0.02


def _format(start: bytes) -> str:
    """Return FFmpeg's name of a format of films; raise `UncountedError` for another one."""
    if (form := format_of(start)) not in ("mov", "matroska", "avi"):
        raise UncountedError(f"is {form}, not an mp4, mov, webm, mkv or avi file")
    return form


def size_of(
    reference: bytes | str, storage: Storage, *, count_packets: bool = False, sound: bool = False
) -> FilmSize:
    """Return the size of a film from the head of its file.

    Args:
        count_packets: take lists of edits at their word that end before the last frame, and read
            files whole if their heads do not count the frames or samples.
        sound: count the samples of its sound, too.

    Raises:
        BrokenImageError: the file is missing, damaged, or its head does not count the frames.
        StorageError: the file could not be read; a retry may succeed.
    """
    in_head = partial(_in_head, sound=sound, trimmed=count_packets)
    counted = partial(_counted, sound=sound)
    return size_in(reference, storage, in_head, counted, count_packets=count_packets)


def _in_head(file: MediaFile, *, sound: bool, trimmed: bool) -> FilmSize:
    """Return the size of a film in its head; raise `UncountedError` if it is not there."""
    kind = _format(file.start)
    if kind != "mov":
        raise UncountedError(f"is {kind}, and its head does not count the frames")
    begin, moov = moov_of(file.part, file.num_bytes)
    size = film_table(begin, moov, trimmed=trimmed).size
    if sound and has_sound(moov):
        samples, rate = SoundSize.of(*samples_of_track(moov))
        size = size._replace(samples=samples, sound_rate=rate)
    return size


def _counted(file: MediaFile, *, sound: bool) -> FilmSize:
    """Return the size of a film by the number of its packets; one frame is decoded."""
    with opened(file, _format(file.start), "video") as (container, stream):
        is_heard = sound and bool(container.streams.audio)
        frame = next(container.decode(stream))
        height, width = frame.height, frame.width
        if frame.rotation % 180:
            height, width = width, height
        container.seek(0)
        frames = sum(
            1 for packet in container.demux(stream) if packet.size and not packet.is_discard
        )
        rate = stream.average_rate or stream.guessed_rate
    if not rate:
        raise BrokenImageError("it tells no frames per second; name its sizes by sizes=")
    return FilmSize.of(frames, height, width, rate, *(sounds.counted(file) if is_heard else ()))


def frames_of(
    reference: bytes | str, size: FilmSize, indices: Sequence[int], storage: Storage | None
) -> NDArray[np.uint8]:
    """Decode frames of a film.

    Args:
        size: planned size of the film.
        indices: N indices of frames, in the order in which they are shown.

    Returns:
        (N, height, width, 3) RGB values, turned as they are shown.

    Raises:
        BrokenImageError: the film cannot be decoded, or is not of the planned size.
        StorageError: the file could not be read; a retry may succeed.
    """
    wanted = sorted({*indices})
    with named_failures(reference), media_file(reference, storage or Storage()) as file:
        table = _declared(file, wanted)
        with opened(file, _format(file.start), "video") as (container, stream):
            rate = stream.average_rate
            if rate and abs(float(rate) / size.fps - 1) > _TOLERANCE:
                raise BrokenImageError(f"{float(rate):.6g} frames per second, not {size.fps:.6g}")
            if table is not None and table.size.frames != size.frames:
                raise BrokenImageError(f"{table.size.frames} frames, not {size.frames}")
            kept = {} if table is None else _sought(container, stream, table, wanted, size)
            if len(kept) < len(wanted):
                container.seek(0)
                kept = _read(container, stream, wanted, size, whole=table is None)
    return np.stack([kept[index] for index in indices])


def sound_of(
    reference: bytes | str, size: FilmSize, rate: int, storage: Storage | None
) -> NDArray[np.float32] | None:
    """Decode the sound of a film; None without one. See `samples_of`."""
    if size.samples:
        return sounds.samples_of(reference, size.sound, rate, storage)
    with named_failures(reference), media_file(reference, storage or Storage()) as file:
        if has_boxes(file.start):
            _, moov = moov_of(file.part, file.num_bytes)
            is_heard = has_sound(moov)
        else:
            with opened(file, _format(file.start), "video") as (container, _):
                is_heard = bool(container.streams.audio)
        if is_heard:
            raise BrokenImageError("sound, and its size by sizes= names no samples")
    return None


def declare(file: MediaFile, indices: Sequence[int], *, sound: bool = False) -> None:
    """Declare the bytes that `frames_of` will read of a film, then of its sound."""
    _declared(file, sorted({*indices}))
    if sound:
        of_frames = file.declared
        sounds.declare(file)
        file.declared = [*of_frames, *file.declared]


def _declared(file: MediaFile, wanted: Sequence[int]) -> FilmTable | None:
    """Declare the bytes that will be read, and return the frames by the head of a file, or None."""
    try:
        table = film_table(*moov_of(file.part, file.num_bytes), trimmed=True)
        parts = parts_of(table, wanted)
    except UncountedError:
        file.declare_all()
        return None
    file.declare(parts, table.others)
    return table


def _read(
    container: Any, stream: Any, wanted: Sequence[int], size: FilmSize, *, whole: bool
) -> dict[int, NDArray[np.uint8]]:
    """Decode all frames up to the last of the wanted ones.

    Args:
        wanted: indices in rising order.
        whole: count the packets behind, too, because the head does not.
    """
    last, kept = wanted[-1], dict.fromkeys(wanted)
    number = packets = 0  # frames that are decoded, packets that are read
    for packet in container.demux(stream):
        packets += bool(packet.size) and not packet.is_discard
        _require_whole(packet, stream)
        for frame in packet.decode() if number <= last else ():
            _require_sound(frame)
            if number in kept:
                kept[number] = _upright(frame, size)
            number += 1
        if number > last and not whole:
            break
    if number <= last or number > size.frames or (whole and packets != size.frames):
        counted = max(number, packets) if number > last else number
        raise BrokenImageError(f"{counted} frames, not {size.frames}")
    return kept  # type: ignore[return-value]


def _sought(
    container: Any, stream: Any, table: FilmTable, wanted: Sequence[int], size: FilmSize
) -> dict[int, NDArray[np.uint8]]:
    """Decode frames from the keyframe before each, where that leaves out many.

    Frames are known by their times in the table. The result lacks frames, and all are to be read,
    if there is little to leave out, or the decoder gives other times or other keyframes.
    """
    groups, kept = groups_of(table, wanted), dict[int, NDArray[np.uint8]]()
    first = next(container.decode(stream)).pts if groups else None
    if first is None:
        return {}
    times = (table.shown - table.shown[0] + first).tolist()
    for group in groups:
        start, indices = times[group.start], {times[index]: index for index in group.wanted}
        container.seek(start, stream=stream)
        packets = iter(container.demux(stream))  # FFmpeg may begin a group before
        keyframe = next((each for each in packets if each.is_keyframe and each.pts >= start), None)
        if keyframe is None or keyframe.pts != start:
            return {}
        for frame in _decoded(stream, chain([keyframe], islice(packets, group.packets - 1))):
            if frame.pts is None or frame.pts < start:  # shown before the keyframe
                continue
            _require_sound(frame)
            if frame.pts == start and not frame.key_frame:
                return {}
            if frame.pts in indices:
                kept[indices[frame.pts]] = _upright(frame, size)
    return kept


def _decoded(stream: Any, packets: Iterable[Any]) -> Iterator[Any]:
    """Yield all frames of packets."""
    for packet in packets:
        _require_whole(packet, stream)
        yield from packet.decode()
    yield from stream.decode(None)


def _require_whole(packet: Any, stream: Any) -> None:
    """Raise `BrokenImageError` for a part of a JPEG image, which would be decoded in silence."""
    if stream.codec_context.name == "mjpeg" and packet.size:
        image = bytes(packet).rstrip(b"\0")
        if not (image.startswith(b"\xff\xd8") and image.endswith(b"\xff\xd9")):
            raise BrokenImageError("a packet is not a whole JPEG image")


def _require_sound(frame: Any) -> None:
    if frame.is_corrupt:
        raise BrokenImageError("a frame is damaged")


def _upright(frame: Any, size: FilmSize) -> NDArray[np.uint8]:
    """Return a frame's RGB values as it is shown; raise `BrokenImageError` for another size."""
    turned: NDArray[np.uint8] = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
    if turned.shape[:2] != (size.height, size.width):
        height, width = turned.shape[:2]
        raise BrokenImageError(f"{width} x {height} pixels, not {size.width} x {size.height}")
    return turned
