"""The snippets of docs/check.md run, and print the output shown on the page."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.program import output_of

PAGE = Path(__file__).parents[2] / "docs" / "check.md"


def test_the_loader_of_the_page_has_the_faults_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loader, use = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "my_loader.py").write_text(loader)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = output_of("check", "my_loader.py:make_loader", code=1)
    exec(compile(use, "use", "exec"), {})
    sys.modules.pop("my_loader")
    promised = re.findall(r"# (\(.*\))$", use, flags=re.MULTILINE)
    shown = capsys.readouterr().out
    assert promised == shown.splitlines()[:1]
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert printed == shown.split("\n", 1)[1]
    for kind in eval(promised[0]):
        assert kind in page
