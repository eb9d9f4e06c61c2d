"""FilmSize: the numbers by which a film is planned."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from streampack.sounds.heads import SoundSize


class FilmSize(NamedTuple):
    """Size of a film.

    Attributes:
        frames: number of frames.
        height: height in pixels, after rotation.
        width: width in pixels, after rotation.
        rate: mean frames per second, as numerator.
        per: denominator of `rate`.
        samples: number of samples of its sound in a channel; 0 without sound, and in runs that do
            not read it.
        sound_rate: these samples per second.
    """

    frames: int
    height: int
    width: int
    rate: int
    per: int
    samples: int = 0
    sound_rate: int = 0

    @property
    def fps(self) -> float:
        """Mean frames per second."""
        return self.rate / self.per

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return self.frames * self.per / self.rate

    @classmethod
    def of(
        cls,
        frames: float,
        height: float,
        width: float,
        fps: float | Fraction,
        samples: float = 0,
        sound_rate: float = 0,
    ) -> FilmSize:
        """Return the size of a film with `fps` frames per second.

        Raises:
            ValueError: a number is not positive.
        """
        rate = Fraction(fps).limit_denominator(1 << 20)
        frames, height, width = int(frames), int(height), int(width)
        if min(frames, height, width) <= 0 or rate <= 0:
            raise ValueError(f"has {frames} frames of {width} x {height} pixels at {fps} a second")
        sound = SoundSize.of(samples, sound_rate) if samples else (0, 0)
        return cls(frames, height, width, rate.numerator, rate.denominator, *sound)

    @property
    def sound(self) -> SoundSize:
        """Size of the sound."""
        return SoundSize(self.samples, self.sound_rate)
