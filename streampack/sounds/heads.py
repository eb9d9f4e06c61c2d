"""Samples and rate of a sound, from the head of its wav, flac, mp3, ogg or m4a file."""

from __future__ import annotations

import struct
from typing import NamedTuple

from streampack.images.boxes import has_boxes, moov_of
from streampack.images.media_file import FIRST_BYTES, MediaFile, UncountedError
from streampack.sounds.tracks import samples_of_track

_MOST_CHUNKS = 1000
_LEAST_RATE, _MOST_RATE = 1000, 768_000
_UNCOUNTED = "and its head does not count the samples"


class SoundSize(NamedTuple):
    """Size of a sound: its number of samples in each channel, and samples per second."""

    samples: int
    rate: int

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return self.samples / self.rate

    @classmethod
    def of(cls, samples: float, rate: float) -> SoundSize:
        """Return the size of a sound; raise `ValueError` for impossible numbers."""
        if not (0 < samples < 1 << 40 and _LEAST_RATE <= rate <= _MOST_RATE):
            raise ValueError(f"has {samples} samples at {rate} a second")
        return cls(int(samples), int(rate))

    def at(self, rate: int) -> int:
        """Return the number of samples at another rate, rounded up."""
        return -(-self.samples * rate // self.rate)


def format_of(start: bytes) -> str:
    """Return FFmpeg's name of a format by the first bytes of a file.

    Raises:
        UncountedError: it is of another format.
    """
    if start[:4] == b"RIFF" and start[8:12] in (b"WAVE", b"AVI "):
        return "wav" if start[8:12] == b"WAVE" else "avi"
    if start[:3] == b"ID3" or (start[:1] == b"\xff" and start[1:2] >= b"\xe0"):
        return "mp3" if start[:3] == b"ID3" or start[1] & 6 else "aac"
    names = {b"fLaC": "flac", b"OggS": "ogg", b"\x1aE\xdf\xa3": "matroska"}
    if start[:4] in names:
        return names[start[:4]]
    if has_boxes(start):
        return "mov"
    raise UncountedError("is not a wav, flac, mp3, ogg, mp4, mov, webm, mkv or avi file")


def size_in_head(file: MediaFile) -> SoundSize:
    """Return the samples that PyAV decodes from a file, and their rate, by one or two reads.

    Raises:
        UncountedError: the head does not count the samples, or is damaged.
    """
    kind = format_of(file.start)
    readers = {"wav": _in_wav, "flac": _in_flac, "mp3": _in_mp3, "ogg": _in_ogg}
    try:
        if kind == "mov":
            return SoundSize.of(*samples_of_track(moov_of(file.part, file.num_bytes)[1]))
        if kind in readers:
            return SoundSize.of(*readers[kind](file))
    except UncountedError:
        raise
    except (struct.error, IndexError, ValueError) as error:
        raise UncountedError(f"is {kind} with a damaged head ({error})") from error
    raise UncountedError(f"is {kind}, {_UNCOUNTED}")


def _in_flac(file: MediaFile) -> tuple[int, int]:
    data = file.part(0, min(42, file.num_bytes))
    packed = int.from_bytes(data[18:26], "big")
    if data[4] & 127 or len(data) < 42 or not packed & (1 << 36) - 1:
        raise UncountedError(f"is flac, {_UNCOUNTED}")
    return packed & (1 << 36) - 1, packed >> 44


def _in_wav(file: MediaFile) -> tuple[int, int]:
    """Read a wav file, which is a list of chunks: "fmt " and "data" among others."""
    low, at, rate, width = 0, 12, 0, 0
    data = file.part(0, min(FIRST_BYTES, file.num_bytes))
    for _ in range(_MOST_CHUNKS):
        if at + 8 > file.num_bytes:
            break
        if at + 32 > low + len(data) < file.num_bytes:
            low, data = at, file.part(at, min(at + FIRST_BYTES, file.num_bytes))
        kind, size = struct.unpack_from("<4sI", data, at - low)
        if kind == b"fmt ":
            form, channels, rate, each_s, width, bits = struct.unpack_from(
                "<HHIIHH", data, at - low + 8
            )
            if form not in (1, 3, 6, 7, 0xFFFE):  # integers, floats, A-law, mu-law; or any of these
                raise UncountedError(f"is a compressed wav, {_UNCOUNTED}")
            if each_s != rate * width or width != channels * -(-bits // 8):
                raise UncountedError("is wav, and contradicts itself on its rate or its channels")
        if kind == b"data":
            if not width or not 0 < size <= file.num_bytes - at - 8 or size % width:
                raise UncountedError(f"is wav, and declares {size} bytes of samples")
            return size // width, rate
        at += 8 + size + size % 2
    raise UncountedError("is a wav without samples")


# --------------------------------------------------------------------------------------------- mp3

#: Samples per second by version 1's table; versions 2 and 2.5 have a half and a quarter of these.
_MP3_RATES = (44100, 48000, 32000)
_LEAST_FRAME = 200
#: Samples by which the decoder is late.
_MP3_DELAY = 529
#: Bytes under a checksum, and its polynomial.
_MOST_SUMMED, _CRC_16 = 190, 0xA001
#: Programs that write the encoder's delay and padding behind the Xing head.
_WITH_DELAY = (b"LAME", b"Lavf", b"Lavc")


def _in_mp3(file: MediaFile) -> tuple[int, int]:
    """Read the Xing, Info or VBRI head in the first frame of an mp3 file, after its ID3 tags."""
    low = at = 0
    data = file.part(0, min(FIRST_BYTES, file.num_bytes))
    while data[at - low : at - low + 3] == b"ID3":
        flags, *sizes = data[at - low + 5 : at - low + 10]
        if max(sizes) > 127 or len(sizes) < 4:
            raise UncountedError("has a damaged ID3 tag")
        at += 10 + sum(size << 7 * i for i, size in enumerate(reversed(sizes)))
        at += 10 * (flags >> 4 & 1)
        if at + _LEAST_FRAME > low + len(data) < file.num_bytes:
            low, data = at, file.part(at, min(at + FIRST_BYTES, file.num_bytes))
    frame = data[at - low :]
    version, layer, bits, rate = frame[1] >> 3 & 3, frame[1] >> 1 & 3, frame[2] >> 4, frame[2] >> 2
    is_head = frame[0] == 0xFF and frame[1] >= 0xE0 and version != 1 and layer == 1
    if not is_head or bits in (0, 15) or rate & 3 == 3:
        raise UncountedError("is mp3, and its first frame is damaged or follows other bytes")
    samples, rate = (
        (1152 if version == 3 else 576),
        _MP3_RATES[rate & 3] >> (0, 1, 1, 2)[3 - version],
    )
    is_mono = frame[3] >> 6 == 3
    head = 4 + ((17 if is_mono else 32) if version == 3 else (9 if is_mono else 17))
    if frame[head : head + 4] in (b"Xing", b"Info"):
        return _in_xing(frame, head + 4, file.num_bytes - at, samples), rate
    if frame[36:40] == b"VBRI" and frame[40:42] == b"\0\1":
        return int.from_bytes(frame[50:54], "big") * samples, rate
    raise UncountedError(f"is mp3 without a Xing or VBRI head, {_UNCOUNTED}")


def _in_xing(frame: bytes, at: int, num_bytes: int, samples: int) -> int:
    """Return the samples of an mp3 file after its encoder's delay and before its padding.

    Args:
        frame: the first frame.
        at: where the fields of the Xing head begin.
        num_bytes: size of the file from the first frame.
        samples: samples of a frame.
    """
    flags, frames = struct.unpack_from(">II", frame, at)
    at += 8
    if not flags & 1:
        raise UncountedError(f"is mp3, {_UNCOUNTED}")
    if flags & 2:
        (declared,) = struct.unpack_from(">I", frame, at)
        at += 4
        if abs(declared - num_bytes) > min(declared, num_bytes) // 16:
            raise UncountedError(f"declares {declared} bytes of mp3 and has {num_bytes}")
    at += 100 * (flags >> 2 & 1) + 4 * (flags >> 3 & 1)
    whole: int = frames * samples
    _require_checksum(frame, at)
    if frame[at : at + 4] not in _WITH_DELAY:
        return whole
    packed = int.from_bytes(frame[at + 21 : at + 24], "big")
    delay, padding = packed >> 12, (packed & 4095) - _MP3_DELAY
    if padding > samples:  # FFmpeg cuts the last frame alone
        raise UncountedError(f"is mp3, and its head declares {padding} samples of padding")
    return whole - delay - _MP3_DELAY - max(padding, 0)


def _require_checksum(frame: bytes, at: int) -> None:
    """Raise `UncountedError` for a wrong checksum of the first frame, if an encoder wrote one.

    Args:
        frame: the first frame.
        at: where the encoder's name begins, after which its fields take 32 bytes up to the sum.
    """
    end = at + 34
    declared = int.from_bytes(frame[end : end + 2], "big")
    if not any(frame[at : at + 4]) and any(name in frame[at : at + 116] for name in _WITH_DELAY):
        raise UncountedError("is mp3 with a Xing head that lacks a field")
    if not any(frame[at : at + 4]) or not declared:
        return
    # LAME sums up the bytes before, FFmpeg 190 bytes, as LAME's head has with two channels.
    for head in (frame[:end], frame[:end].ljust(_MOST_SUMMED, b"\0")):
        total = 0
        for byte in head:
            total ^= byte
            for _ in range(8):
                total = total >> 1 ^ (_CRC_16 if total & 1 else 0)
        if total == declared:
            return
    raise UncountedError("is mp3 with a damaged Xing head")


# --------------------------------------------------------------------------------------------- ogg

#: Largest page, with its head.
_MOST_PAGE = 27 + 255 + 255 * 255
#: Samples of an opus frame at 48 kHz by its configuration: SILK, hybrid, CELT.
_OPUS_FRAMES = (*(480, 960, 1920, 2880) * 3, *(480, 960) * 2, *(120, 240, 480, 960) * 4)


class _Page(NamedTuple):
    """A page of an ogg file; `end` is the byte after it, `sizes` has one byte per segment."""

    granule: int
    serial: int
    number: int
    body: int
    sizes: bytes
    end: int


def _page(data: bytes, at: int) -> _Page:
    sign, version, _, granule, serial, number, _, count = struct.unpack_from("<4sBBqIIIB", data, at)
    sizes = data[at + 27 : at + 27 + count]
    if sign != b"OggS" or version or len(sizes) < count:
        raise UncountedError("is ogg with a damaged page")
    body = at + 27 + count
    return _Page(granule, serial, number, body, sizes, body + sum(sizes))


def _in_ogg(file: MediaFile) -> tuple[int, int]:
    """Read the first page of an ogg file, which tells the codec, and the last one, with its end."""
    data = file.part(0, min(FIRST_BYTES, file.num_bytes))
    first = _page(data, 0)
    head, rate, begin, least = data[first.body : first.end], 48000, 0, 0
    if head[:8] == b"OpusHead":
        begin = int.from_bytes(head[10:12], "little") + _opus_begin(data, first)
    elif head[:7] == b"\1vorbis":
        rate = int.from_bytes(head[12:16], "little")
        page = _sound_page(data, first)
        least = page.number + 1 if page else 0
    else:
        raise UncountedError(f"is ogg of a codec other than opus and vorbis, {_UNCOUNTED}")
    tail = data
    if file.num_bytes > len(data):
        tail = file.part(max(file.num_bytes - _MOST_PAGE, 0), file.num_bytes)
    at = tail.rfind(b"OggS")
    while at >= 0:
        last = _page(tail, at)
        if last.end == len(tail):
            if last.serial != first.serial or last.granule < 0:
                break
            if last.number < least:
                raise UncountedError("is ogg vorbis of one page, which FFmpeg does not cut exactly")
            return last.granule - begin, rate
        at = tail.rfind(b"OggS", 0, at)
    raise UncountedError("is ogg that is cut, or holds several streams")


def _sound_page(data: bytes, first: _Page) -> _Page | None:
    """Return the first page with sound, or None if it begins behind `data`."""
    at = first.end
    while at + 27 <= len(data):
        page = _page(data, at)
        if page.serial == first.serial and page.granule > 0:
            return page
        at = page.end
    return None


def _opus_begin(data: bytes, first: _Page) -> int:
    """Return the time at which an opus stream begins, which is 0 unless it was cut from another.

    It follows from the first page with sound; where that is beyond `data`, it is taken for 0.
    """
    if (page := _sound_page(data, first)) is None:
        return 0
    samples, at, is_new = 0, page.body, True
    for size in page.sizes:
        if is_new and at + 1 < len(data):
            form = data[at] & 3
            count = data[at + 1] & 63 if form == 3 else min(form + 1, 2)
            samples += _OPUS_FRAMES[data[at] >> 3] * count
        at, is_new = at + size, size < 255
    return max(page.granule - samples, 0)
