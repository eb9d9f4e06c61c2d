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
from collections.abc import Sequence
from pathlib import Path

from tests.support.deleted_leaves import ROOT

_BEGIN = """
import json, sys
folder, *without = sys.argv[1:]
from tests.support.deleted_leaves import delete
delete(without)
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from streampack import PackedDataset, PackedLoader, TokenRules
"""
_END = """
for batch in PackedLoader(dataset):
    batch.input_ids
loaded = {n: getattr(m, "__file__", None) for n, m in sys.modules.items() if n.startswith("streampack")}
print(json.dumps({name: file for name, file in loaded.items() if file and file.endswith(".py")}))
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


def loaded_modules(kind: str, *, without: Sequence[str] = ()) -> dict[str, Path]:
    """The files of streampack's modules that a run of this kind imports, by module name.

    Args:
        kind: of `RUNS`.
        without: modules and packages that cannot be imported, as if their files were deleted.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _BEGIN + RUNS[kind] + _END, folder, *without]
        variables = {**os.environ, "NUMBA_DISABLE_JIT": "1"}  # nothing is loaded from caches
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=variables
        )
    assert not done.returncode, done.stderr
    return {name: Path(file) for name, file in json.loads(done.stdout.splitlines()[-1]).items()}


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
    for kind in RUNS:
        files = loaded_modules(kind)
        sizes = {name: code_lines(path) for name, path in files.items()}
        print(f"{kind}: {len(files)} modules, {sum(sizes.values())} lines")
        for name in sorted(sizes):
            print(f"  {sizes[name]:5} {name}")
