"""Samples and rates of sounds from their heads, against PyAV, which decodes them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack.images.images import BrokenImageError
from streampack.sounds.files import samples_of, size_of
from streampack.sounds.heads import SoundSize
from streampack.sources import Storage
from tests.support.clips import box_at, patched
from tests.support.sounds import counted, sound


def mp3(samples: int = 9001, rate: int = 44100, **settings: Any) -> bytes:
    return sound(samples, rate, form="mp3", codec="libmp3lame", **settings)


def opus(samples: int = 9001, rate: int = 48000, **settings: Any) -> bytes:
    return sound(samples, rate, form="ogg", codec="libopus", **settings)


def m4a(samples: int = 9001, rate: int = 44100, **settings: Any) -> bytes:
    return sound(samples, rate, **{"form": "ipod", "codec": "aac", **settings})


def with_chunk(data: bytes, size: int) -> bytes:
    at = data.index(b"data")
    return data[:at] + b"junk" + size.to_bytes(4, "little") + bytes(size) + data[at:]


def with_tags(data: bytes, *sizes: int) -> bytes:
    """Put ID3 tags before an mp3 file in place of its own."""
    tags = (
        b"ID3\4\0\0" + bytes(size >> shift & 127 for shift in (21, 14, 7, 0)) + bytes(size)
        for size in sizes
    )
    return b"".join(tags) + data[data.index(b"\xff\xfb") :]


def without_delay(data: bytes) -> bytes:
    at = data.index(b"Info") + 120  # the encoder's name, and a checksum behind it
    return patched(patched(data, at, b"ABCD"), at + 34, b"\0\0")


def with_vbri() -> bytes:
    """An mp3 file of 128 kbit/s behind the head that other encoders than LAME write."""
    data = with_tags(mp3(options={"write_xing": "0"}))
    frames = counted(data)[0] // 1152
    fields = struct.pack(">4sHHHII", b"VBRI", 1, 0, 75, len(data), frames)
    return (b"\xff\xfb\x90\xc4" + bytes(32) + fields).ljust(417, b"\0") + data


HEADS: dict[str, Callable[[], bytes]] = {
    "wav": lambda: sound(4000),
    "wav, two channels": lambda: sound(12345, 44100, channels=2),
    "wav, one sample": lambda: sound(1, 8000),
    "wav with a list": lambda: with_chunk(sound(500), 300),
    "wav with much before the samples": lambda: with_chunk(sound(500), 100_000),
    "wav, mu-law": lambda: sound(4000, 8000, codec="pcm_mulaw"),
    "flac": lambda: sound(9001, 48000, form="flac", codec="flac"),
    "flac, two channels": lambda: sound(9001, 22050, channels=2, form="flac", codec="flac"),
    "mp3": mp3,
    "mp3 of version 2, two channels": lambda: mp3(9001, 22050, channels=2),
    "mp3 of version 2.5": lambda: mp3(9001, 8000),
    "mp3, one sample": lambda: mp3(1),
    "mp3 with a picture before it": lambda: with_tags(mp3(), 300_000),
    "mp3 with two tags": lambda: with_tags(mp3(), 500, 70),
    "mp3 with a tag at its end": lambda: mp3(90_000) + b"TAG" + bytes(125),
    "mp3 with a VBRI head": with_vbri,
    "mp3 without the encoder's delay": lambda: without_delay(mp3()),
    "opus": opus,
    "opus of 8 kHz, two channels": lambda: opus(9001, 8000, channels=2),
    "opus, one sample": lambda: opus(1),
    "opus of several pages": lambda: opus(150_000),
    "vorbis": lambda: sound(90_000, 48000, channels=2, form="ogg", codec="vorbis"),
    "m4a": m4a,
    "m4a, ALAC": lambda: m4a(codec="alac", channels=2),
    "mp4, mp3": lambda: m4a(9000, 16000, form="mp4", codec="libmp3lame"),
    "mp4, flac": lambda: m4a(form="mp4", codec="flac"),
    "mov": lambda: sound(4001, form="mov"),
}  # fmt: skip


class Counting(Storage):
    """Ranges that are read."""

    reads: list[int]

    def read_range(self, file: Any, start: int, stop: int) -> bytes:
        self.reads.append(stop - start)
        return super().read_range(file, start, stop)


@pytest.mark.parametrize("kind", HEADS)
def test_head_tells_the_samples_that_pyav_decodes_by_two_ranges(kind: str, tmp_path: Path) -> None:
    data = HEADS[kind]()
    size = size_of(data, Storage())
    assert size == counted(data)
    (tmp_path / "a").write_bytes(data)
    storage = Counting()
    storage.reads = []
    assert size_of(str(tmp_path / "a"), storage) == size
    assert sum(each > 12 for each in storage.reads) <= 2  # and the 12 bytes that tell the format


RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
FORMS = {
    "mp3": ("mp3", "libmp3lame", RATES, (1, 2)),
    "opus": ("ogg", "libopus", (8000, 12000, 16000, 24000, 48000), (1, 2)),
    "vorbis": ("ogg", "vorbis", RATES, (2,)),
    "aac": ("ipod", "aac", RATES, (1, 2)),
    "alac": ("ipod", "alac", RATES, (1, 2)),
    "mp3 in mp4": ("mp4", "libmp3lame", (16000, 44100), (1,)),
    "flac in mp4": ("mp4", "flac", (16000, 44100), (1, 2)),
    "mov": ("mov", "pcm_s16le", RATES, (1, 2)),
    "wav": ("wav", "pcm_s16le", RATES, (1, 2)),
    "flac": ("flac", "flac", RATES, (1, 2)),
}
LENGTHS = (1, 2, 100, 575, 576, 577, 1000, 1023, 1024, 1025, 1105, 1151, 1152, 1153, 2047, 2048,
           2049, 4000, 9001, 16000, 48017, 144017, 2_900_000)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_heads_of_all_rates_and_lengths_tell_the_samples_or_are_refused(form: str) -> None:
    kind, codec, rates, channels = FORMS[form]
    refused = tried = 0
    for rate in rates:
        for count in channels:
            for samples in LENGTHS[:-1] if rate not in (16000, 44100) or count == 2 else LENGTHS:
                data = sound(samples, rate, channels=count, form=kind, codec=codec)
                tried += 1
                try:
                    size = size_of(data, Storage())
                except BrokenImageError:
                    refused += 1
                    continue
                assert size == counted(data), (rate, count, samples)
    assert tried > 40
    assert refused <= tried * {"mp3": 0.02, "aac": 0.06, "mp3 in mp4": 0.2}.get(form, 0) or (
        form == "vorbis" and refused < tried  # below a second
    )


UNCOUNTED: dict[str, Callable[[], bytes]] = {
    "mp3 without a head": lambda: mp3(options={"write_xing": "0"}),
    "half of an mp3": lambda: mp3(90_000)[:9000],
    "webm": lambda: sound(9600, 48000, form="webm", codec="libopus"),
    "mka": lambda: sound(9600, form="matroska", codec="flac"),
    "vorbis of one page": lambda: sound(900, 48000, channels=2, form="ogg", codec="vorbis"),
    "ogg, flac": lambda: sound(9600, form="ogg", codec="flac"),
    "two ogg files": lambda: opus() + opus(seed=1),
    "fragmented m4a": lambda: m4a(options={"movflags": "frag_keyframe+empty_moov"}),
    "opus in mp4": lambda: sound(9600, 48000, form="mp4", codec="libopus"),
    "wav without a size": lambda: streamed(sound(4000)),
    "wav, ADPCM": lambda: sound(4000, codec="adpcm_ms"),
    "aac": lambda: sound(9216, form="adts", codec="aac"),
}


def streamed(data: bytes) -> bytes:
    return patched(data, data.index(b"data") + 4, b"\xff" * 4)


@pytest.mark.parametrize("kind", UNCOUNTED)
def test_heads_without_a_count_are_refused_and_decoded_where_asked(kind: str) -> None:
    data = UNCOUNTED[kind]()
    with pytest.raises(BrokenImageError, match="sizes="):
        size_of(data, Storage())
    if kind != "two ogg files":
        size = size_of(data, Storage(), count_packets=True)
        assert size == counted(data)
        assert len(samples_of(data, size, 16000, None)) == size.at(16000)


def with_edit(data: bytes, length: int, start: int) -> bytes:
    cut = patched(data, box_at(data, b"elst") + 8, struct.pack(">Ii", length, start))
    return patched(cut, box_at(data, b"tkhd") + 20, length.to_bytes(4, "big"))


def test_edits_of_m4a_files_cut_their_begin_as_pyav_cuts() -> None:
    data = m4a(44100)  # of 45,124 with the encoder's delay
    for start in (0, 1, 1023, 1024, 1025, 2112, 9000):
        cut = with_edit(data, -(-(45124 - start) * 1000 // 44100), start)
        assert size_of(cut, Storage()) == counted(cut), start
    at = box_at(data, b"elst") + 8
    for change in (
        patched(data, at - 4, (2).to_bytes(4, "big")),
        patched(data, at, struct.pack(">Ii", 0, 1024)),
        with_edit(data, 500, 1024),
        with_edit(data, 1000, 9000),
        with_edit(data, 500, 50_000),
        patched(data, box_at(data, b"mvhd") + 12, (2000).to_bytes(4, "big")),
        patched(data, box_at(data, b"mdhd") + 12, (48000).to_bytes(4, "big")),
        patched(data, data.index(b"\x12\x08\x56\xe5"), b"\x2b\x92\x08\x00"),  # HE-AAC
    ):
        with pytest.raises(BrokenImageError):
            size_of(change, Storage())


def test_opus_cut_from_a_stream_begins_at_its_first_page() -> None:
    data, at = opus(150_000), 0
    while (at := data.find(b"OggS", at)) >= 0:  # later granules, with the pages' checksums
        (granule,) = struct.unpack_from("<q", data, at + 6)
        stop = data.find(b"OggS", at + 4)
        page = data[at : stop if stop > 0 else len(data)]
        if granule:
            page = patched(page, 6, struct.pack("<q", granule + 480_000))
            page = patched(patched(page, 22, bytes(4)), 22, checksum(patched(page, 22, bytes(4))))
        data = data[:at] + page + data[at + len(page) :]
        at += 4
    assert size_of(data, Storage()) == counted(data) == (150_000, 48000)


def checksum(page: bytes) -> bytes:
    """Return the checksum of an ogg page."""
    value = 0
    for byte in page:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 ^ (0x04C11DB7 if value >> 31 else 0)) & 0xFFFFFFFF
    return struct.pack("<I", value)


NO_SOUNDS: dict[str, Callable[[], bytes]] = {
    "empty": bytes,
    "text": lambda: b"text",
    "list": lambda: b"#EXTM3U\nx",
    **{f"tag {mark!r}": partial(bytes, mark) for mark in (b"RIFF", b"ID3", b"OggS", b"fLaC")},
    "frame of mp3": lambda: b"\xff\xfb\x90",
    "cut wav": lambda: sound(400)[:60],
    "cut opus": lambda: opus()[:60],
    "cut m4a": lambda: m4a()[:90],
}


@pytest.mark.parametrize("kind", NO_SOUNDS)
def test_files_that_are_not_sounds_are_named(kind: str) -> None:
    data = NO_SOUNDS[kind]()
    with pytest.raises(BrokenImageError):
        size_of(data, Storage())
    with pytest.raises(BrokenImageError):
        samples_of(data, SoundSize(400, 16000), 16000, None)


#: Where the head of a file is, and how many of its bytes.
FLIPPED: dict[str, Callable[[bytes], tuple[int, int]]] = {
    "wav": lambda data: (0, 44),
    "wav, two channels": lambda data: (0, 44),
    "flac": lambda data: (0, 42),
    "mp3": lambda data: (0, 240),
    "mp3 with a VBRI head": lambda data: (0, 60),
    "opus of several pages": lambda data: (0, 130),
    "vorbis": lambda data: (data.rindex(b"OggS"), 40),
    "m4a": lambda data: (data.index(b"moov"), len(data) - data.index(b"moov")),
}


def flip(kind: str, tries: int) -> tuple[int, int]:
    """Flip bits of a head; return the numbers of errors and of files read as before."""
    data = HEADS[kind]()
    begin, length = FLIPPED[kind](data)
    rng, errors, same, original = np.random.default_rng(0), 0, 0, size_of(data, Storage())
    for _ in range(tries):
        at = begin + int(rng.integers(0, length))
        flipped = patched(data, at, bytes([data[at] ^ 1 << int(rng.integers(8))]))
        try:
            size = size_of(flipped, Storage())
            if size.rate > 1 << 17 or size.at(16000) > 1 << 22:
                continue
            values = samples_of(flipped, size, 16000, None)
        except BrokenImageError:
            errors += 1
            continue
        assert size == counted(flipped), at
        assert len(values) == size.at(16000)
        same += size == original
    return errors, same


@pytest.mark.parametrize("kind", FLIPPED)
def test_flipped_bits_of_heads_are_errors_or_counted_as_decoded(kind: str) -> None:
    errors, same = flip(kind, 24)
    assert errors > 0
    assert same > 0 or b"OggS" in HEADS[kind]()  # with checksums


@pytest.mark.slow
@pytest.mark.parametrize("kind", FLIPPED)
def test_a_thousand_flips_are_errors_or_counted_as_decoded(kind: str) -> None:
    errors, same = flip(kind, 1000)
    assert errors > 50
    assert same > 50 or b"OggS" in HEADS[kind]()


def test_heads_that_do_not_fit_the_sound_are_errors_when_it_is_decoded() -> None:
    for data in (mp3(), opus(), m4a(), sound(4000)):
        size = size_of(data, Storage())
        assert len(samples_of(data, size, 16000, None)) == size.at(16000)
        for wrong in (
            size._replace(samples=size.samples + 1), size._replace(samples=size.samples - 1),
            size._replace(rate=size.rate // 2),
        ):  # fmt: skip
            with pytest.raises(BrokenImageError):
                samples_of(data, wrong, 16000, None)
