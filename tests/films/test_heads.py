"""Frames, rates and sizes of films from their heads, against PyAV, which decodes them."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from streampack.films import groups
from streampack.films.boxes import film_table
from streampack.films.files import declare, frames_of, size_of, sound_of
from streampack.films.groups import parts_of
from streampack.films.size import FilmSize
from streampack.images.boxes import moov_of
from streampack.images.images import BrokenImageError
from streampack.images.media_file import UncountedError, fetch_ahead
from streampack.sources import Storage
from streampack.storage.blocks import BLOCK_BYTES
from tests.support import sounds
from tests.support.clips import box_at, copied, counted, decoded, film, patched, turned
from tests.support.servers import HTTPServer

CLIPS: dict[str, Callable[[], bytes]] = {
    "H.264": lambda: film(13),
    "H.264, moov first": lambda: film(13, options={"movflags": "faststart"}),
    "H.264, a B-frame last": lambda: film(30, size=(32, 24), seed=1),
    "H.265": lambda: film(13, codec="libx265"),
    "VP9": lambda: film(13, codec="libvpx-vp9"),
    "AV1": lambda: film(13, size=(96, 64), codec="libsvtav1"),
    "MPEG-4": lambda: film(13, codec="mpeg4"),
    "3GP": lambda: film(13, form="3gp", codec="mpeg4"),
    "mov, ProRes": lambda: film(13, form="mov", codec="prores_ks"),
    "mov, JPEG": lambda: film(13, form="mov", codec="mjpeg"),
    "rate 30000/1001": lambda: film(31, rate=Fraction(30000, 1001)),
    "rate 12.5": lambda: film(31, rate=Fraction(25, 2)),
    "uneven times": lambda: film(12, times=[0, 1, 2, 5, 9, 10, 14, 20, 21, 22, 23, 40]),
    "late begin": lambda: film(12, times=range(9, 21)),
    "one frame": lambda: film(1),
    "with sound": lambda: film(13, sound=True),
    "many frames": lambda: film(3000, size=(16, 16)),
    **{f"turned by {each}": lambda each=each: turned(film(13), each) for each in (90, 180, 270)},
}


def head(data: bytes) -> tuple[FilmSize, int]:
    """Return the size, and the number of reads."""
    reads = []

    def read(start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(data)
        reads.append(stop - start)
        return data[start:stop]

    return film_table(*moov_of(read, len(data))).size, len(reads)


@pytest.mark.parametrize("kind", CLIPS)
def test_head_tells_the_numbers_that_pyav_counts_by_two_reads(kind: str, tmp_path: Path) -> None:
    data = CLIPS[kind]()
    size, reads = head(data)
    assert (*size[:3], pytest.approx(size.fps)) == counted(data)
    assert reads <= 2
    (tmp_path / "a.film").write_bytes(data)
    assert size_of(str(tmp_path / "a.film"), Storage()) == size_of(data, Storage()) == size


def test_films_whose_begin_is_cut_by_a_list_of_edits_have_the_frames_that_are_shown() -> None:
    data = film(40, rate=25)  # of 512 ticks, from 1,024 on; lengths count in thousandths
    for start in (0, 1023, 1024, 1536, 1537, 3000, 8000, 20_000):
        cut = cut_to(data, -(-(1024 + 40 * 512 - start) * 1000 // 12800), start)
        assert head(cut)[0].frames == counted(cut).frames, start


def test_films_and_sounds_that_were_cut_by_copying_packets_are_read() -> None:
    data = film(96, sound=4, sound_rate=44100, g="24", size=(64, 48))
    for start, stop, form in ((0.5, 9, "mp4"), (1.3, 3, "mp4"), (0, 2, "mp4"), (1.3, 3, "mov")):
        cut = copied(data, start, stop, form)
        size = size_of(cut, Storage(), sound=True)
        assert (*size[:3], pytest.approx(size.fps)) == counted(cut)
        assert size.sound == sounds.counted(cut)


@pytest.mark.parametrize("bf", ["3", "0"])
def test_films_that_are_trimmed_at_their_end_have_the_frames_that_are_shown_where_asked(
    bf: str,
) -> None:
    data = film(40, rate=25, bf=bf)
    for start, length in ((1024, 1000), (1500, 40), (0, 400), (9000, 500), (3000, 81)):
        cut = cut_to(data, length, start)
        with pytest.raises(BrokenImageError, match="packets"):
            size_of(cut, Storage())
        size = size_of(cut, Storage(), count_packets=True)
        assert (*size[:3], pytest.approx(size.fps)) == counted(cut)
        whole, _ = decoded(cut)
        wanted = [0, size.frames // 2, size.frames - 1]
        assert np.array_equal(frames_of(cut, size, wanted, None), whole[wanted])


def test_two_edits_and_edits_that_show_nothing_are_refused() -> None:
    data = film(40, rate=25)
    at = box_at(data, b"elst")
    for change in (
        patched(data, at + 4, (2).to_bytes(4, "big")),
        patched(data, at + 8, struct.pack(">Ii", 400, -1)),
        patched(data, at + 8, struct.pack(">Ii", 0, 1024)),
        patched(data, at + 8, struct.pack(">Ii", 9000, 1024)),
        cut_to(data, 1000, 1024),
        cut_to(data, 1600, 1025),
        cut_to(data, 1600, 0),
        patched(data, at + 16, (2 << 16).to_bytes(4, "big")),
    ):
        with pytest.raises(UncountedError):
            head(change)


UNCOUNTED: dict[str, Callable[[], bytes]] = {
    "webm": lambda: film(7, form="webm", codec="libvpx"),
    "mkv": lambda: film(7, form="matroska"),
    "avi": lambda: film(7, form="avi", codec="mpeg4"),
    "fragmented": lambda: film(7, options={"movflags": "frag_keyframe+empty_moov"}),
}


@pytest.mark.parametrize("kind", UNCOUNTED)
def test_heads_without_a_count_are_refused_and_packets_are_counted_where_asked(kind: str) -> None:
    data = UNCOUNTED[kind]()
    with pytest.raises(BrokenImageError, match="sizes="):
        size_of(data, Storage())
    size = size_of(data, Storage(), count_packets=True)
    assert (*size[:3], pytest.approx(size.fps)) == counted(data)


@pytest.mark.parametrize(
    "data", [b"", b"text", b"#EXTM3U\nfile:///etc/passwd", b"\0\0\0\1mdat", film(3)[:900]]
)
def test_files_that_are_not_films_are_named(data: bytes, tmp_path: Path) -> None:
    for count_packets in (False, True):
        with pytest.raises(BrokenImageError):
            size_of(data, Storage(), count_packets=count_packets)
    with pytest.raises(BrokenImageError):
        size_of(str(tmp_path / "missing.mp4"), Storage())
    with pytest.raises(BrokenImageError):
        frames_of(data, FilmSize(3, 48, 64, 24, 1), [0, 2], None)


def test_heads_of_2_gb_films_are_two_small_ranges(tmp_path: Path) -> None:
    data = film(13)
    at = data.index(b"mdat") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    moved = len(data) - at - size
    path = tmp_path / "large.mp4"
    with path.open("wb") as file:
        file.write(data[:at] + struct.pack(">I4sQ", 1, b"mdat", 2 << 30))
        file.seek(at + (2 << 30))
        file.write(data[-moved:])
    reads = []

    def read(start: int, stop: int) -> bytes:
        reads.append(stop - start)
        return Storage().read_range(str(path), start, stop)

    assert film_table(*moov_of(read, path.stat().st_size)).size.frames == 13
    assert len(reads) == 2
    assert sum(reads) < 1 << 17


LONG: dict[str, Callable[[], bytes]] = {
    "H.264": lambda: film(400, g="24"),
    "H.264, open groups": lambda: film(400, g="24", **{"x264-params": "open-gop=1:log-level=none"}),
    "H.265": lambda: film(400, codec="libx265", g="24"),
    "VP9": lambda: film(400, codec="libvpx-vp9", g="24"),
    "MPEG-4": lambda: film(400, codec="mpeg4", g="24"),
    "mov, JPEG": lambda: film(400, form="mov", codec="mjpeg"),
    "uneven": lambda: film(300, g="24", times=np.cumsum(np.arange(300) % 5 + 1).tolist()),
    "cut": lambda: cut_to(film(400, rate=25, g="24"), 15_377, 9_000),
    "cut at both ends": lambda: cut_to(film(400, rate=25, g="24"), 9_377, 9_000),
    "one group": lambda: film(400, g="999"),
}


def cut_to(data: bytes, length: int, start: int) -> bytes:
    cut = patched(data, box_at(data, b"elst") + 8, struct.pack(">Ii", length, start))
    return patched(cut, box_at(data, b"tkhd") + 20, length.to_bytes(4, "big"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", LONG)
def test_frames_that_are_sought_are_the_frames_of_the_film_read_whole(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = LONG[kind]()
    size = size_of(data, Storage(), count_packets=True)
    rng = np.random.default_rng(1)
    wanted = [[0, size.frames - 1], [5, 100, 101, 230], [size.frames - 2], [120, 120, 121]]
    wanted += [sorted(rng.integers(0, size.frames, 5).tolist()) for _ in range(4)]
    sought = [frames_of(data, size, each, None) for each in wanted]
    monkeypatch.setattr(groups, "_LEAST_SKIPPED", 1 << 30)
    for each, frames in zip(wanted, sought, strict=True):
        assert np.array_equal(frames, frames_of(data, size, each, None)), each


@pytest.fixture(scope="module")
def long() -> bytes:
    """A film of six megabytes with sound, and its head at its end."""
    settings = {"g": "30", "qp": "1", "preset": "ultrafast"}
    return film(600, size=(128, 96), sound=True, **settings)


def test_bytes_of_a_film_by_url_are_its_head_and_the_groups_that_are_touched(
    long: bytes, http: HTTPServer, storage: Storage
) -> None:
    data = long
    (http.folder / "long.mp4").write_bytes(data)
    url, wanted = f"{http.url}/long.mp4", [3, 400, 403]
    size = size_of(url, storage)
    assert http.count("GET") == 2
    assert http.count("HEAD") == 0
    http.requests.clear()
    assert np.array_equal(
        frames_of(url, size, wanted, storage), frames_of(data, size, wanted, None)
    )
    table = film_table(*moov_of(lambda start, stop: data[start:stop], len(data)))
    parts = [(0, 1), (data.index(b"moov"), len(data)), *parts_of(table, wanted)]
    blocks = {
        block for start, stop in parts
        for block in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
    }  # fmt: skip
    asked = [tuple(map(int, each.range[6:].split("-"))) for each in http.requests if each.range]
    fetched = sum(last + 1 - first for first, last in asked)
    assert fetched == sum(min(BLOCK_BYTES, len(data) - each * BLOCK_BYTES) for each in blocks)
    assert fetched < len(data) / 2


def test_groups_of_a_film_by_url_are_fetched_before_it_is_decoded(
    long: bytes, http: HTTPServer, storage: Storage
) -> None:
    data = long
    (http.folder / "long.mp4").write_bytes(data)
    table = film_table(*moov_of(lambda start, stop: data[start:stop], len(data)))
    (first, _), (_, end) = parts_of(table, [400])[1:][0], parts_of(table, [400])[-1]
    came = threading.Event()
    http.hold = lambda start, stop: came.set() if first < stop and start < end < len(data) else None
    fetch_ahead(f"{http.url}/long.mp4", storage, partial(declare, indices=[400]))
    assert came.wait(60)


def test_heads_that_do_not_fit_the_film_are_errors_when_it_is_decoded() -> None:
    data = film(24)
    size = size_of(data, Storage())
    assert frames_of(data, size, [0, 7, 23], None).shape == (3, 48, 64, 3)
    for wrong in (
        size._replace(frames=25), size._replace(frames=23), size._replace(height=50),
        size._replace(width=48, height=64), size._replace(rate=25),
    ):  # fmt: skip
        with pytest.raises(BrokenImageError):
            frames_of(data, wrong, [0, wrong.frames - 1], None)


def test_film_of_an_unknown_codec_is_an_error_not_the_end_of_the_process() -> None:
    data = film(3)
    unknown = patched(data, data.index(b"avc1"), b"zzzz")  # the brand of the file, then the codec
    unknown = unknown.replace(b"avc1", b"zzzz")
    with pytest.raises(BrokenImageError):
        frames_of(unknown, size_of(unknown, Storage()), [0], None)


@pytest.mark.parametrize("kind", ["H.264", "mov, JPEG", "turned by 90"])
def test_flipped_bits_of_heads_are_errors_or_what_is_decoded(kind: str) -> None:
    data = CLIPS[kind]()
    begin, original = data.index(b"moov") - 4, size_of(data, Storage())
    rng, errors, same = np.random.default_rng(0), 0, 0
    for _ in range(60):
        at = int(rng.integers(begin, len(data)))
        flipped = patched(data, at, bytes([data[at] ^ 1 << int(rng.integers(8))]))
        try:
            size = size_of(flipped, Storage())
            frames = frames_of(flipped, size, [0, size.frames - 1], None)
        except BrokenImageError:
            errors += 1
            continue
        assert frames.shape == (2, size.height, size.width, 3), at
        assert size.frames == counted(flipped).frames, at
        same += size[:3] == original[:3] and abs(size.fps / original.fps - 1) < 0.002
    assert errors > 4
    assert errors + same == 60


def test_a_flipped_size_of_a_packet_gives_no_part_of_another_jpeg_image() -> None:
    data, wanted = film(80, form="mov", codec="mjpeg"), [2, 40, 79]
    size, rng = size_of(data, Storage()), np.random.default_rng(0)
    frames, errors = frames_of(data, size, wanted, None), 0
    begin = box_at(data, b"stsz") + 12
    for at in rng.integers(begin, begin + 4 * 80, 40).tolist():
        flipped = patched(data, at, bytes([data[at] ^ 1 << int(rng.integers(8))]))
        try:
            assert np.array_equal(frames_of(flipped, size, wanted, None), frames)
        except BrokenImageError:
            errors += 1
    assert errors > 30


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["H.264", "mov, JPEG", "with sound", "uneven times"])
def test_no_flipped_bit_of_a_head_tells_other_frames_or_another_rate(kind: str) -> None:
    data = CLIPS[kind]()
    begin, original, close = data.index(b"moov") - 4, size_of(data, Storage()), 0.005
    places = {*range(48), *range(begin, len(data))}
    if kind == "uneven times":  # the duration of its last frame is not known
        close, edits = 0.2, data.index(b"elst")
        places -= {*range(edits, edits + 24)}  # which may end elsewhere by the longest frame
    others = []
    for at in sorted(places):
        for bit in range(8):
            try:
                size = size_of(patched(data, at, bytes([data[at] ^ 1 << bit])), Storage())
            except BrokenImageError:
                continue
            if size.frames != original.frames or abs(size.fps / original.fps - 1) > close:
                others.append((at, bit, size))
    assert not others


@pytest.mark.slow
def test_no_flipped_bit_of_a_head_takes_the_sound_of_a_film_or_changes_its_length() -> None:
    data = film(13, size=(32, 24), sound=1.5)
    begin, original, others = data.index(b"moov") - 4, size_of(data, Storage(), sound=True), []
    for at in (*range(48), *range(begin, len(data))):
        for bit in range(8):
            flipped = patched(data, at, bytes([data[at] ^ 1 << bit]))
            try:
                size = size_of(flipped, Storage(), sound=True)
                if size[:3] == original[:3] and size.sound == original.sound:
                    continue
                frames_of(flipped, size, [0, size.frames - 1], None)
                sound_of(flipped, size, 16000, None)
            except BrokenImageError:
                continue
            if size.frames != original.frames or abs(size.samples - original.samples) > 32:
                others.append((at, bit, size))
    assert original.samples == 25600
    assert not others
