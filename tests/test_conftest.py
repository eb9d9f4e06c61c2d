"""The test processes themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_threads_are_limited_before_a_library_that_reads_the_number_is_imported(
    tmp_path: Path,
) -> None:
    # With several threads of libgomp, ranks that tests fork from their process never end.
    (tmp_path / "torchvision.py").write_text(
        "import os\nprint(os.environ.get('OMP_NUM_THREADS'))\n"
    )
    root = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), root])}
    del environment["OMP_NUM_THREADS"]  # set by tests.conftest in this process
    command = [sys.executable, "-c", "import tests.conftest"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["1"]
