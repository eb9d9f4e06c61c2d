"""An embedder that never ends on the machine where STUCK names a file, which it makes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def embed(texts: list[str]) -> NDArray[np.float32]:
    """Letter counts, as vectors."""
    if "STUCK" in os.environ:
        Path(os.environ["STUCK"]).touch()
        time.sleep(3600)
    counts = [[1.0 + text.count(letter) for letter in "etaoinsh"] for text in texts]
    return np.array(counts, dtype=np.float32)
