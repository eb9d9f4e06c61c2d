"""Users' type checkers accept the README, and find misspelt names in a loop."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
#: The names that each of the README's snippets takes from the code around it.
AROUND = (
    "",
    """
import torch
from streampack import PackedDataset, PackedLoader
device = torch.device("cpu")
model = torch.nn.Linear(1, 1)
""",
    """
from streampack import PackedDataset, PackedLoader
shards = "shards/*.parquet"
checkpoint: dict[str, dict[str, object]] = {}
""",
)
TYPES = """
from collections.abc import Iterator
from typing import Any

from typing_extensions import assert_type

from streampack import PackedBatch, PackedDataset, PackedLoader, sources
from streampack.batch import BatchGroup

dataset = PackedDataset([[1]], seq_len=8)
loader = PackedLoader(dataset, num_workers=2)
assert_type(iter(loader), Iterator[PackedBatch])
assert_type(next(iter(dataset)), PackedBatch)
assert_type(loader.accumulate(2), Iterator[BatchGroup[PackedBatch]])
assert_type(PackedDataset.evaluation([[1]], seq_len=8, epochs=2), PackedDataset)
assert_type(sources.MDS("shards", tokens="ids", dtype="uint16", reading=None), sources.MDS)
assert_type(loader.progress(), Iterator[PackedBatch])
assert_type(loader.progress(loader.accumulate(2)), Iterator[BatchGroup[PackedBatch]])

def length(batch: PackedBatch) -> int:
    return batch.seq_len

lengths = PackedLoader(dataset, transform=length)
assert_type(iter(lengths), Iterator[int])
assert_type(lengths.accumulate(2), Iterator[BatchGroup[int]])
arguments = PackedLoader(dataset, transform=lambda batch: batch.hf())
assert_type(iter(arguments), Iterator[dict[str, Any]])

def unnamed(any_loader: PackedLoader) -> None:
    assert_type(iter(any_loader), Iterator[PackedBatch])
"""
MISSPELT = """
from streampack import PackedDataset, PackedLoader, sources

dataset = PackedDataset([[1]], seq_len=8, batchsize=2)  # wrong
loader = PackedLoader(dataset, num_worker=2)  # wrong
PackedDataset.evaluation([[1]], seq_len=8, batchsize=2)  # wrong
sources.MDS("shards", token="ids", dtype="uint16")  # wrong
sources.Items([[1]], texts="text")  # wrong
for batch in loader:
    print(batch.imput_ids)  # wrong
    print(batch.hf(modle=None))  # wrong
    print(batch.to("cpu").max_seq_len)  # wrong
for group in loader.accumulate(4):
    print(group.num_los_tokens)  # wrong
    print([batch.cu_seqlen for batch in group])  # wrong
for batch in loader.progress():
    print(batch.num_document)  # wrong
print(loader.metrics().utilization, loader.metrics().utilisation)  # wrong
loader.state_dict(afer=None)  # wrong
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("user")
    assert len(SNIPPETS) == len(AROUND)
    texts = {f"readme_{n}.py": a + s for n, (a, s) in enumerate(zip(AROUND, SNIPPETS, strict=True))}
    for name, text in {**texts, "types.py": TYPES, "misspelt.py": MISSPELT}.items():
        (folder / f"user_{name}").write_text(text)
    return sorted(folder.iterdir())


def checked_by_mypy(pages: Sequence[Path]) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    # Tensor.backward has no types.
    command += ["--config-file=", "--untyped-calls-exclude=torch", *map(str, pages)]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "users")]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout


def checked_by_pyright(pages: Sequence[Path]) -> str:
    pytest.importorskip("pyright")
    folder = pages[0].parent
    settings = {"include": ["*.py"], "extraPaths": [str(ROOT)], "reportMissingModuleSource": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    command += ["--project", str(folder)]
    return subprocess.run(command, capture_output=True, text=True).stdout


@pytest.mark.parametrize("check", [checked_by_mypy, checked_by_pyright])
def test_exactly_the_misspelt_lines_are_errors(check: object, pages: list[Path]) -> None:
    report = check(pages)  # type: ignore[operator]
    found = {
        (Path(file).name, int(line))
        for file, line in re.findall(r"^\s*(\S+\.py):(\d+)(?::\d+)?(?: -|:) error", report, re.M)
    }
    lines = enumerate(MISSPELT.splitlines(), start=1)
    assert found == {("user_misspelt.py", n) for n, line in lines if "# wrong" in line}, report
