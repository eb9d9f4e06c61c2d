"""The program itself: its version, its name as a module, and its lines on a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import streampack
from streampack.cli.say import say

SENTENCE = "A sentence of some words that is longer than a line may be. " * 3
PATH = "s3://bucket/" + "folder/" * 20 + "part.parquet"


def test_the_version_is_told_by_the_module_that_is_the_program() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "streampack", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == f"streampack {streampack.__version__}\n"


@pytest.mark.parametrize("width", [120, 60])
def test_sentences_are_broken_between_words_on_a_terminal_and_left_whole_elsewhere(
    width: int,
) -> None:
    terminal, file = io.StringIO(), io.StringIO()
    say(Console(file=terminal, force_terminal=True, color_system=None, width=width), SENTENCE)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= min(width, 80)
    assert " ".join(line.strip() for line in lines) == SENTENCE.strip()
    say(Console(file=file, width=width), SENTENCE)
    assert file.getvalue().strip() == SENTENCE.strip()


def test_a_path_is_not_broken() -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, color_system=None, width=80)
    say(console, f"The file is {PATH} and no other.")
    assert PATH in terminal.getvalue()


def test_errors_are_broken_between_words_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    run = subprocess.run(
        [sys.executable, "-m", "streampack", "explain", "nowhere.jsonl"],
        stderr=theirs, cwd=tmp_path, check=False,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode().replace("\r\n", "\n")
    os.close(ours)
    assert run.returncode == 1
    lines = said.strip().splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert "nowhere.jsonl" in " ".join(lines)
