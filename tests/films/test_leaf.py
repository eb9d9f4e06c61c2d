"""Runs without films and sounds load neither; without PyAV an error names the extra's command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from streampack.errors import MissingPackageError
from tests.support.forked import FIRST, ROOT

ALONE = """
import sys
from streampack.media import Images
from tests.support.vision import records
from tests.support.vision_runs import dataset
assert len(list(dataset(Images(records(3), text="text")))) > 0
print(sorted(name for name in sys.modules if name.startswith(
    ("streampack.films", "streampack.sounds", "streampack.images.media_", "av."))))
"""


def test_runs_with_images_load_no_films_and_sounds() -> None:
    command = [sys.executable, "-c", ALONE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FIRST), str(ROOT)])}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=600, env=environment
    )
    assert done.stdout.strip() == "[]"


def test_runs_without_pyav_name_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    from streampack.media import Films, Sounds
    from tests.support.vision_runs import dataset

    for source in (Films([{"text": "a"}], text="text"), Sounds([{"text": "a"}], text="text")):
        with pytest.raises(MissingPackageError, match="pip install"):
            dataset(source)
