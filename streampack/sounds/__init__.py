"""Documents with sounds: samples are counted from the heads of files.

A sound's tokens follow from its number of samples and their rate; sounds are decoded once the batch
is planned. Only runs with such a source import this package.
"""

from streampack.sounds.source import Sounds

__all__ = ["Sounds"]
