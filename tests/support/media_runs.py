"""Runs with films or sounds that are hashed, replayed and explained."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from streampack import PackedLoader

SCRIPT = """
from tests.support.{module} import {processor}
from tests.support.vision_runs import dataset
from streampack.media import {source}

def make():
    given = {source}("{path}", text="text", folder="{folder}")
    return dataset(given, {processor}(), **{settings})
"""


def hashed(batches: Any) -> str:
    """A hash of ids, labels, positions, documents and patches of batches."""
    digest = hashlib.blake2b(digest_size=8)
    for batch in batches:
        for name in ("input_ids", "labels", "position_ids", "document_ids", "cu_seqlens"):
            digest.update(getattr(batch, name).numpy().tobytes())
        digest.update(batch.document_fields["patches"].numpy().tobytes())
    return digest.hexdigest()


def script(
    folder: Path, source: str, processor: str, records: list[dict[str, Any]], **settings: Any
) -> str:
    """Write files of media by their records, and a script with a run over them.

    Args:
        source: name of the source, and in lower case of its module.
        processor: name of the function that makes the processor, in that module.
        records: records with the bytes of one medium each, as "video" or "audio".
    """
    lines = []
    for number, record in enumerate(records):
        (kind,) = {"video", "audio"} & {*record}
        (folder / f"{number}").write_bytes(record[kind])
        lines.append(json.dumps({**record, kind: f"{number}"}) + "\n")
    (folder / "records.jsonl").write_text("".join(lines))
    written = SCRIPT.format(
        module=source.lower(), processor=processor, source=source, path=folder / "records.jsonl",
        folder=folder, settings=settings,
    )  # fmt: skip
    (folder / "train.py").write_text(written)
    return f"{folder / 'train.py'}:make"


def assert_replayed(named: str, folder: Path, printed: Any) -> list[Any]:
    """Resume and replay a run after its first batch; return all its batches.

    Args:
        named: the run, as `streampack replay` takes it.
        folder: for the state.
        printed: pytest's `capsys`.
    """
    from streampack.cli.options import object_at
    from streampack.cli.replay import replay

    made = object_at(named).with_provenance()
    batches = [*PackedLoader(made)]
    loader = PackedLoader(object_at(named))
    next(iter(loader))
    state = folder / "state.json"
    state.write_text(json.dumps(loader.state_dict()))
    resumed = PackedLoader(object_at(named))
    resumed.load_state_dict(json.loads(state.read_text()))
    following = next(iter(resumed))
    assert following.input_ids.equal(batches[1].input_ids)
    assert following.media.keys() == batches[1].media.keys()
    assert all(following.media[name].equal(batches[1].media[name]) for name in following.media)
    replay([state], dataset=named)
    shown = printed.readouterr().out
    assert all(f"{piece}" in shown for piece in made.locate(batches[1]))
    assert "tokens]" in shown
    return batches
