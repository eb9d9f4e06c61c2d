"""The snippets of docs/media.md ("media.md")."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.vision import qwen_model, qwen_processor, records

PAGE = Path(__file__).parent.parent.parent / "docs" / "media.md"


def test_the_snippets_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    with open("pages.jsonl", "w") as file:
        for i, record in enumerate(records(12)):
            names = [f"{i}-{k}.png" for k in range(len(record["images"]))]
            for name, data in zip(names, record["images"], strict=True):
                Path("photos", name).write_bytes(data)
            file.write(json.dumps({**record, "images": names}) + "\n")
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {
        "processor": qwen_processor(),
        "model": qwen_model("Qwen2VL", embed_dim=16, hidden_size=32, mlp_ratio=2),
    }
    for snippet in snippets:
        exec(compile(snippet.replace("2048", "256"), "media.md", "exec"), names)
    assert torch.isfinite(names["loss"])
    assert sum(batch.num_documents for batch in names["dataset"]) == 12
