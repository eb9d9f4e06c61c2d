"""FilmSize: the numbers by which a film is planned."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple


class FilmSize(NamedTuple):
    """Size of a film.

    Attributes:
        frames: number of frames.
        height: height in pixels, after rotation.
        width: width in pixels, after rotation.
        rate: mean frames per second, as numerator.
        per: denominator of `rate`.
    """

    frames: int
    height: int
    width: int
    rate: int
    per: int

    @property
    def fps(self) -> float:
        """Mean frames per second."""
        return self.rate / self.per

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return self.frames * self.per / self.rate

    @classmethod
    def of(cls, frames: float, height: float, width: float, fps: float | Fraction) -> FilmSize:
        """Return the size of a film with `fps` frames per second.

        Raises:
            ValueError: a number is not positive.
        """
        rate = Fraction(fps).limit_denominator(1 << 20)
        frames, height, width = int(frames), int(height), int(width)
        if min(frames, height, width) <= 0 or rate <= 0:
            raise ValueError(f"has {frames} frames of {width} x {height} pixels at {fps} a second")
        return cls(frames, height, width, rate.numerator, rate.denominator)
