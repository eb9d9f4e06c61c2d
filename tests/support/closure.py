"""The modules of streampack that a run imports, and their lines of code.

    python -m tests.support.closure

prints them for every kind of run in `RUNS`.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.support.deleted_leaves import ROOT

_BEGIN = """
import json, os, sys
import numpy as np, pyarrow as pa, pyarrow.feather, pyarrow.parquet as pq, tokenizers, torch.utils.data
folder, kinds, without = sys.argv[1], *map(json.loads, sys.argv[2:])
for kind in kinds:
    if os.fork() == 0:
        break
    if status := os.wait()[1]:
        sys.exit(os.waitstatus_to_exitcode(status))
else:
    sys.exit()
from tests.support.deleted_leaves import delete
delete(without[kind])
from streampack import PackedDataset, PackedLoader, TokenRules
exec(kinds[kind])
"""  # noqa: E501
_END = """
for batch in PackedLoader(dataset):
    batch.input_ids
loaded = {n: getattr(m, "__file__", None) for n, m in sys.modules.items() if n.startswith("streampack")}
loaded = {name: file for name, file in loaded.items() if file and file.endswith(".py")}
print(json.dumps([kind, loaded]), flush=True)
os._exit(0)
"""  # noqa: E501

#: The body of a program by the kind of its run: it makes `dataset` in `folder`.
RUNS = {
    "memory": "dataset = PackedDataset([[1, 2, 3]] * 100, seq_len=16)",
    "ids": """
ids = [np.arange(1, 5 + i % 90, dtype=np.int32) for i in range(500)]
pq.write_table(pa.table({"input_ids": ids}), folder + "/ids.parquet")
dataset = PackedDataset(folder + "/ids.parquet", seq_len=128)
""",
    "text": """
from tokenizers import Tokenizer, models, pre_tokenizers
tokenizer = Tokenizer(models.WordLevel({"<e>": 0, "a": 1, "b": 2}, unk_token="<e>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
texts = ["a b " * (1 + i % 40) for i in range(500)]
pq.write_table(pa.table({"text": texts}), folder + "/text.parquet")
rules = TokenRules(eos_id=0, pad_id=0)
dataset = PackedDataset(folder + "/text.parquet", seq_len=128, tokenizer=tokenizer, token_rules=rules)
""",  # noqa: E501
}


def loaded_modules(without: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Path]]:
    """The files of streampack's modules that runs import, by kind of `RUNS` and module name.

    Each run is in a fork of one process that has imported torch and other libraries, but nothing of
    streampack.

    Args:
        without: by kind, modules and packages that cannot be imported, as if their files were
            deleted.
    """
    bodies = {kind: RUNS[kind] for kind in without}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _BEGIN + _END, folder, *map(json.dumps, (bodies, without))]
        variables = {**os.environ, "NUMBA_DISABLE_JIT": "1"}  # nothing is loaded from caches
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=variables
        )
    assert not done.returncode, done.stderr
    loaded = dict(map(json.loads, done.stdout.splitlines()))
    return {kind: {name: Path(loaded[kind][name]) for name in loaded[kind]} for kind in without}


@cache
def code_lines(path: Path) -> int:
    """Lines of a file without blank lines, comments and docstrings."""
    source = path.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.body and ast.get_docstring(node) is not None:
            first = node.body[0]
            documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return sum(
        1
        for number, line in enumerate(source.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in documented
    )


if __name__ == "__main__":
    for kind, files in loaded_modules(dict.fromkeys(RUNS, ())).items():
        sizes = {name: code_lines(path) for name, path in files.items()}
        print(f"{kind}: {len(files)} modules, {sum(sizes.values())} lines")
        for name in sorted(sizes):
            print(f"  {sizes[name]:5} {name}")
