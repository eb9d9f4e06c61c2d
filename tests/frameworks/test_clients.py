"""Real trainers train on every token and resume exactly, each by the command of its page."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"fabric": "lightning", "nanochat": "rustbpe"}


@pytest.mark.parametrize(
    "client", ["transformers", "trl", "fabric", "litgpt", "torchtitan", "nanochat"]
)
def test_a_client_trains_on_every_token_cuts_nothing_that_fits_and_resumes(client: str) -> None:
    if not importlib.util.find_spec(PACKAGES.get(client, client)):
        pytest.skip(f"{client} is not installed")
    command = [sys.executable, "-m", "examples.clients", client]
    if client == "nanochat":
        if "NANOCHAT" not in os.environ:
            pytest.skip("NANOCHAT names no checkout of nanochat")
        command.append(os.environ["NANOCHAT"])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    heads, *lines = done.stdout.splitlines()[-9:]
    ours = {line[:42].strip(": "): line.split()[-1] for line in lines}
    assert heads.split()[0] == client
    assert heads.split()[-1] == "streampack"
    assert ours["of these never trained on"] == "0.0%"
    assert ours["documents cut that fit into a row"] == "0"
    assert float(ours["slots that are padding"].rstrip("%")) < 2
    assert lines[-1].split()[-1] == "yes"
