"""Bytes of a film by URL: ``python -m benchmarks.films``.

An mp4 film with sound, with `moov` at its end: some groups of pictures are encoded, and
their packets repeated up to the size that is asked for. SeaweedFS serves it, behind a proxy that
counts. "size" reads the head, as for the plan of a document; "frames" decodes the sampled frames
after it; "fsspec" gives PyAV the URL opened by fsspec, which seeks to the keyframe before each
frame. All decode the same frames. "exact" are the bytes of the head and of the packets of the
groups that are touched, "held" the bytes in a window, "decoded" its sampled frames.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from benchmarks.slow_store import SlowStore, slow_store
from demo.object_store import find_weed, object_store
from streampack.films.boxes import film_table
from streampack.films.files import frames_of, size_of
from streampack.films.groups import parts_of
from streampack.films.size import FilmSize
from streampack.images.attachments import Attachments, Medium
from streampack.images.boxes import moov_of
from streampack.sources import Storage

WIDTH, HEIGHT, RATE, GROUP = 1280, 720, 25, 50
_GROUPS = 4
_TRIES = 50


def write_film(path: Path, num_bytes: int) -> None:
    """Write a film of at least so many bytes, of repeated packets."""
    import av

    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
    with av.open(str(path), "w", format="mp4") as container:
        video = container.add_stream(
            "libx264", rate=RATE, options={"preset": "ultrafast", "g": f"{GROUP}", "crf": "18"}
        )
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        audio = container.add_stream("aac", rate=48000)
        seconds = Fraction(_GROUPS * GROUP, RATE)
        packets = [*_pictures(video, base), *_sound(audio, rng)]
        packets = [each for each in packets if 0 <= each.pts * each.time_base < seconds]
        packets.sort(key=lambda packet: packet.dts * packet.time_base)
        contents = [bytes(packet) for packet in packets]
        for number in range(-(-num_bytes // sum(map(len, contents)))):
            for packet, content in zip(packets, contents, strict=True):
                copied = av.Packet(content)
                later = int(number * seconds / packet.time_base)
                copied.pts, copied.dts = packet.pts + later, packet.dts + later
                copied.stream, copied.time_base = packet.stream, packet.time_base
                copied.is_keyframe = packet.is_keyframe
                container.mux(copied)


def _pictures(stream: Any, base: NDArray[np.uint8]) -> list[Any]:
    import av

    packets, rng = [], np.random.default_rng(1)
    for i in range(_GROUPS * GROUP):
        noise = rng.integers(0, 12, (HEIGHT // 4, WIDTH // 4, 1), dtype=np.uint8)
        image = np.roll(base // 2, i, axis=1).repeat(2, axis=0).repeat(2, axis=1) + noise
        image = image.repeat(4, axis=0).repeat(4, axis=1)
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts, frame.time_base = i, Fraction(1, RATE)
        packets += stream.encode(frame)
    return [*packets, *stream.encode(None)]


def _sound(stream: Any, rng: np.random.Generator) -> list[Any]:
    import av

    samples = 48000 * _GROUPS * GROUP // RATE
    values = rng.integers(-9999, 9999, (1, samples), dtype=np.int16)
    frame = av.AudioFrame.from_ndarray(values, format="s16", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = 48000, 0, Fraction(1, 48000)
    return [*stream.encode(frame), *stream.encode(None)]


def by_fsspec(url: str, indices: Sequence[int]) -> NDArray[np.uint8]:
    """Decode frames with PyAV, given the URL as fsspec opens it."""
    import av
    import fsspec

    fsspec.get_filesystem_class("s3").clear_instance_cache()
    kept = []
    with fsspec.open(url, "rb") as file, av.open(file) as container:
        stream = container.streams.video[0]
        for index in indices:
            pts = stream.start_time + int(Fraction(index, RATE) / stream.time_base)
            container.seek(pts, stream=stream)
            frame = next(each for each in container.decode(stream) if each.pts >= pts)
            kept.append(frame.to_ndarray(format="rgb24"))
    return np.stack(kept)


class Measured:
    """Bytes, requests and processor time of a call.

    Attributes:
        result: of the call.
    """

    def __init__(self, line: SlowStore, call: Callable[[], Any]) -> None:
        line.forget()
        began, cpu = time.perf_counter(), time.process_time()
        self.result = call()
        self.seconds, self.cpu = time.perf_counter() - began, time.process_time() - cpu
        self.served = dict(line.served)

    def row(self, name: str, num_bytes: int) -> list[str]:
        """A row of the table."""
        received = self.served["bytes"]
        return [
            name, f"{self.served['requests']}", f"{received / 1e6:,.2f}",
            f"{100 * received / num_bytes:.2f}", f"{self.cpu:.2f}", f"{self.seconds:.2f}",
        ]  # fmt: skip


def rows(path: Path, frames: int, folder: Path) -> Iterator[list[str]]:
    """Yield the rows of the table of bytes."""
    import boto3

    num_bytes = path.stat().st_size
    with object_store(folder / "store", find_weed()) as store:
        endpoint = store.environment["AWS_ENDPOINT_URL"]
        client = boto3.client("s3", endpoint_url=endpoint)
        client.upload_file(str(path), store.url.removeprefix("s3://"), path.name)
        port = urlsplit(endpoint).port or 0
        with slow_store(port, delay_s=0, bytes_per_s=1e12) as line:
            for name in ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"):
                os.environ[name] = f"http://127.0.0.1:{line.port}"
            url, storage = f"{store.url}/{path.name}", Storage(cache_dir=folder / "cache")
            sized = Measured(line, lambda: size_of(url, storage))
            size = sized.result
            indices = np.linspace(0, size.frames - 1, frames).astype(int).tolist()
            made = Measured(line, lambda: frames_of(url, size, indices, storage))
            theirs = Measured(line, lambda: by_fsspec(url, indices))
    assert np.array_equal(made.result, theirs.result)
    yield sized.row("size", num_bytes)
    yield made.row("frames", num_bytes)
    yield ["exact", "", f"{exact(path, indices) / 1e6:,.2f}", "", "", ""]
    yield theirs.row("PyAV by fsspec", num_bytes)
    held = Attachments((Medium("video", url),), (size,)).num_bytes
    yield ["held", "", f"{held / 1e6:.6f}", "", "", ""]
    yield ["decoded", "", f"{made.result.nbytes / 1e6:,.2f}", "", "", ""]


def exact(path: Path, indices: Sequence[int]) -> int:
    """Return the bytes of the head, and of the packets that are decoded for frames."""
    storage, num_bytes, reads = Storage(), path.stat().st_size, []

    def read(start: int, stop: int) -> bytes:
        reads.append(stop - start)
        return storage.read_range(str(path), start, stop)

    parts = parts_of(film_table(*moov_of(read, num_bytes)), indices)
    return sum(reads) + sum(stop - start for start, stop in parts)


def local(path: Path) -> list[str]:
    """A row with the time of a size from the head of a local file."""
    times = []
    for _ in range(_TRIES):
        began = time.process_time()
        size: FilmSize = size_of(str(path), Storage())
        times.append(time.process_time() - began)
    return [f"{size.frames:,}", f"{1e3 * min(times):.2f}", f"{1e3 * np.median(times):.2f}"]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=2000)
    parser.add_argument("--frames", type=int, default=16, help="sampled frames of the film")
    parser.add_argument("--folder", type=Path, help="of the film, which is kept and used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        path = (options.folder or Path(temporary)) / f"film-{options.megabytes:g}.mp4"
        if not path.exists():
            write_film(path, int(options.megabytes * 1e6))
        print_table(
            "A film by URL",
            ["", "requests", "MB", "of the file, %", "processor, s", "s"],
            [*rows(path, options.frames, Path(temporary))],
        )
        print_table(
            "The size of a film on a disk", ["frames", "least ms", "median ms"], [local(path)]
        )


if __name__ == "__main__":
    main()
