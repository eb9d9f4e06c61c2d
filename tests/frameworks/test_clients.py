"""Real trainers train on every token and resume exactly, each by the command of its page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.clients.__main__ import NEEDS, missing_for
from tests.support.forked import FIRST

ROOT = Path(__file__).parents[2]


def test_a_client_names_the_packages_that_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, "litgpt", ("litgpt_of_nobody", "numpy", "jsonargparse_of_nobody"))
    assert "litgpt_of_nobody, jsonargparse_of_nobody" in missing_for("litgpt", None)
    monkeypatch.setitem(NEEDS, "nanochat", ("numpy",))
    assert "checkout" in missing_for("nanochat", None)


@pytest.mark.parametrize("client", [*NEEDS])
def test_a_client_trains_on_every_token_cuts_nothing_that_fits_and_resumes(client: str) -> None:
    path = os.environ.get("NANOCHAT", "")
    if missing := missing_for(client, path):
        pytest.skip(missing)
    paths = os.pathsep.join(map(str, [FIRST, ROOT]))
    done = subprocess.run(
        [sys.executable, "-m", "examples.clients", client, path],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    heads, *lines = done.stdout.splitlines()[-9:]
    ours = {line[:42].strip(": "): line.split()[-1] for line in lines}
    assert heads.split()[0] == client
    assert heads.split()[-1] == "streampack"
    assert ours["of these never trained on"] == "0.0%"
    assert ours["documents cut that fit into a row"] == "0"
    assert float(ours["slots that are padding"].rstrip("%")) < 2
    assert lines[-1].split()[-1] == "yes"
