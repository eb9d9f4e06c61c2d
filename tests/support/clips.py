"""Films and sounds that PyAV writes, and the numbers that it counts by decoding them."""

from __future__ import annotations

import io
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("av", reason="PyAV, the extra [video]")


class Counted(NamedTuple):
    """A film as PyAV decodes it, with height and width after rotation."""

    frames: int
    height: int
    width: int
    fps: float


def film(
    frames: int = 12,
    *,
    size: tuple[int, int] = (64, 48),
    rate: Fraction | int = 24,
    form: str = "mp4",
    codec: str = "libx264",
    seed: int = 0,
    times: Any = None,
    options: dict[str, str] | None = None,
    sound: float = 0,
    sound_rate: int = 16000,
    **settings: str,
) -> bytes:
    """A film of moving colours.

    Args:
        size: width and height.
        times: time of each frame in units of 1 / rate; the default is one after the other.
        options: options of the container.
        sound: seconds of sound.
        sound_rate: samples of the sound per second.
        settings: options of the codec.
    """
    import av

    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:  # "faststart" opens the file once more
        path = Path(folder, "film")
        with av.open(str(path), "w", format=form, options=options or {}) as container:
            stream = container.add_stream(codec, rate=rate, options=settings)
            stream.width, stream.height = size
            stream.pix_fmt = {
                "prores_ks": "yuv422p10le",
                "mjpeg": "yuvj420p",
                "qtrle": "rgb24",
            }.get(codec, "yuv420p")
            second = container.add_stream("aac", rate=sound_rate) if sound else None
            for i in range(frames):
                image = np.roll(base // 2 + np.uint8(10 * i % 120), i, axis=1)
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.time_base = 1 / Fraction(rate)
                frame.pts = i if times is None else times[i]
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
            if second is not None:
                samples = int(sound * sound_rate)
                values = rng.integers(-9999, 9999, (1, samples), dtype=np.int16)
                noise = av.AudioFrame.from_ndarray(values, format="s16", layout="mono")
                noise.sample_rate = sound_rate
                container.mux(second.encode(noise))
                container.mux(second.encode(None))
        return path.read_bytes()


def copied(data: bytes, start: float, stop: float, form: str = "mp4") -> bytes:
    """Packets from the keyframe before `start` in seconds, as `ffmpeg -ss -to -c copy` cuts."""
    import av

    out = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(out, "w", format=form) as container:
        streams = {each.index: container.add_stream_from_template(each) for each in source.streams}
        source.seek(int(start * 1_000_000))
        for packet in source.demux():
            if packet.dts is None or packet.dts * packet.time_base >= stop:
                continue
            if packet.stream.type == "audio" and packet.pts * packet.time_base < start:
                continue
            offset = int(start / packet.time_base)
            packet.pts, packet.dts = packet.pts - offset, packet.dts - offset
            packet.stream = streams[packet.stream.index]
            container.mux(packet)
    return out.getvalue()


def decoded(data: bytes) -> tuple[np.ndarray, float]:
    """Decode a film whole, (frames, height, width, 3); return it and its frames per second."""
    import av

    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        frames = [
            np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
            for frame in container.decode(stream)
        ]
        return np.stack(frames), float(stream.average_rate)


def counted(data: bytes) -> Counted:
    """Decode a film whole."""
    import av

    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        rate = stream.average_rate
        frames = list(container.decode(stream))
    height, width = frames[0].height, frames[0].width
    if frames[0].rotation % 180:
        height, width = width, height
    return Counted(len(frames), height, width, float(rate or 0))


def box_at(data: bytes, kind: bytes, number: int = 0) -> int:
    """Where the content of a box begins."""
    at = -1
    for _ in range(number + 1):
        at = data.index(kind, at + 1)
    return at + 4


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


#: Matrices of `tkhd` that turn a film by quarters.
TURNS = {
    degrees: b"".join(
        (value & 0xFFFFFFFF).to_bytes(4, "big")
        for value in (a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    )
    for degrees, (a, b, c, d) in {
        0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0),
    }.items()
}  # fmt: skip


def turned(data: bytes, degrees: int) -> bytes:
    return patched(data, box_at(data, b"tkhd") + 40, TURNS[degrees])
