"""What an attack is, and what counts as a finding."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from pathlib import Path

from streampack.errors import StreampackError

__all__ = ["Attack", "FoundError", "outcome_of"]

#: One case: it returns in a word how it ended, raises a `StreampackError` where the library
#: refused it, and anything else is a finding.
Attack = Callable[[random.Random], str]

#: Makes an attack in a folder of its own.
MakeAttack = Callable[[Path], Attack]


class FoundError(Exception):
    """The library did something that it must not do, without an error."""


def outcome_of(attack: Attack, rng: random.Random) -> tuple[str, str]:
    """How a case ended, and what was found, or ""."""
    try:
        return attack(rng), ""
    except StreampackError as error:
        sentences = str(error)
        if len(sentences) < 20 or "\n\n" in sentences:
            return "finding", f"an error without a sentence: {error!r}"
        return "refused", ""
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/streampack/" in frame.filename] or frames
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in (own[-1], frames[-1])]
        return "finding", f"{type(error).__name__}: {str(error)[:300]} ({', '.join(places)})"
