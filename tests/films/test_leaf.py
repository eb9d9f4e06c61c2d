"""Runs without films and sounds load neither; without PyAV an error names the extra's command."""

from __future__ import annotations

import sys

import pytest

from streampack.errors import MissingPackageError
from tests.support.forked import in_fork

FILMS = ("streampack.films", "streampack.sounds", "streampack.images.media_", "av.")


def loaded_by_a_run_with_images() -> list[str]:
    """Import streampack anew in this process, run over images, and return modules of films."""
    for name in [*sys.modules]:
        if name.startswith(("streampack", "tests.support.vision", "av.")) or name == "av":
            del sys.modules[name]
    from streampack.media import Images
    from tests.support.vision import records
    from tests.support.vision_runs import dataset

    assert len(list(dataset(Images(records(3), text="text")))) > 0
    return sorted(name for name in sys.modules if name.startswith(FILMS))


def test_runs_with_images_load_no_films_and_sounds() -> None:
    assert in_fork(loaded_by_a_run_with_images) == []


def test_runs_without_pyav_name_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    from streampack.media import Films, Sounds
    from tests.support.vision_runs import dataset

    for source in (Films([{"text": "a"}], text="text"), Sounds([{"text": "a"}], text="text")):
        with pytest.raises(MissingPackageError, match="pip install"):
            dataset(source)
