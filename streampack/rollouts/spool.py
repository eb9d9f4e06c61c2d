"""Spool: finished groups in a folder or store, so that a resumed run need not sample them anew.

A file is ``RUN/INCARNATION/SERIAL.npz`` behind a checksum. A load takes back the files of the
incarnation that saved the state, for prompts that the state has in flight, if no step or policy
version after the state sampled them. All other prompts are sampled anew. Files are removed when a
later state, saved for good, does not need them.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from streampack.conversion.shards import Destination
from streampack.errors import StorageError
from streampack.rollouts.answer import Answer, Ragged, sequences_of
from streampack.rollouts.schedule import Group

logger = logging.getLogger(__name__)

_DIGEST = 16  # bytes before the content
_WRITERS = 4


class Spool:
    """Finished groups of a run that were not trained yet.

    Args:
        folder: local path or URL; several runs may share it.
        rule: settings that must be the same where groups are taken back.

    Raises:
        ConfigError: the folder is a file.
    """

    def __init__(self, folder: str, rule: tuple[int, ...]) -> None:
        self._folder = Destination(str(folder))
        self._rule = [*rule]
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="streampack-spool")
        self._pending: set[Future[None]] = set()
        self._warned = False

    def add(self, place: str, group: Group, *, steps: int, version: int) -> None:
        """Write a finished group, in a thread.

        Args:
            place: run and incarnation, ``RUN/INCARNATION``.
            group: the group.
            steps: steps that were published when it was finished.
            version: policy version at that time, for answers without one.
        """
        sequences = sequences_of(group.answers)
        known = [answer.newest_version for answer in sequences]
        about: dict[str, Any] = {"rule": self._rule, "steps": steps, "born": group.born}
        about["sizes"] = [len(sequences_of([answer])) for answer in group.answers]
        about["version"] = max(version if each is None else each for each in known)
        name = f"{place}/{group.serial:012d}.npz"
        try:
            future = self._writers.submit(self._write, name, about, sequences)
        except RuntimeError:  # the interpreter ends, while samplers are still served
            return
        self._pending.add(future)
        future.add_done_callback(self._written)

    def take_back(
        self, place: str, serials: set[int], *, steps: int, version: int
    ) -> Iterator[tuple[int, int, list[tuple[Answer, ...]]]]:
        """Yield the serial, the birth and the answers of groups that a resumed run may train.

        Args:
            place: run and incarnation of the state.
            serials: prompts in flight in the state.
            steps, version: steps and published policy version of the state.
        """
        self.flush()
        left = 0
        for name, serial in self._files(place).items():
            if serial not in serials:
                continue
            try:
                about, answers = _decoded(self._folder.read(name))
            except (StorageError, ValueError, KeyError, EOFError) as error:
                logger.warning("The spooled group %s is damaged and left out: %s", name, error)
                continue
            same = about["rule"] == self._rule
            if same and about["steps"] <= steps and about["version"] <= version:
                yield serial, about["born"], answers
            else:
                left += 1
        if left:
            logger.info(
                "%d spooled groups were sampled after the state, or with other settings of the "
                "queue, and are sampled anew.",
                left,
            )

    def keep(self, run: str, place: str, needed: set[int], next: int) -> None:
        """Remove the files of a run that a saved state does not need.

        Args:
            run: the run.
            place: run and incarnation of the state.
            needed: prompts in flight in the state.
            next: serial from which on prompts were dispatched after the state.
        """
        self.flush()
        files = self._files(run)
        kept = {
            name
            for name, serial in files.items()
            if name.startswith(f"{place}/") and (serial in needed or serial >= next)
        }
        self._folder.remove(*sorted(files.keys() - kept))
        if self._folder.local is not None:
            for folder in (self._folder.local / run).iterdir() if files else ():
                if folder.name != place.rpartition("/")[2]:
                    with suppress(OSError):  # it has files
                        folder.rmdir()

    def flush(self) -> None:
        """Wait until all groups are written."""
        for future in [*self._pending]:
            future.exception()

    def _files(self, place: str) -> dict[str, int]:
        """Return the serial of each file below a folder."""
        names = (name for name in self._folder.names() if name.startswith(f"{place}/"))
        stems = {name: name.rpartition("/")[2].removesuffix(".npz") for name in names}
        return {name: int(stem) for name, stem in stems.items() if stem.isdecimal()}

    def _write(self, name: str, about: Mapping[str, Any], answers: Sequence[Answer]) -> None:
        with self._folder.scratch() as scratch:
            self._folder.write(name, _encoded(about, answers), scratch)

    def _written(self, future: Future[None]) -> None:
        self._pending.discard(future)
        error = future.exception()
        if error is not None and not self._warned:
            self._warned = True
            logger.warning(
                "Finished groups cannot be spooled, and would be sampled anew: %s", error
            )


def _encoded(about: Mapping[str, Any], answers: Sequence[Answer]) -> bytes:
    arrays: dict[str, Any] = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    for number, answer in enumerate(answers):
        arrays[f"{number}/ids"], arrays[f"{number}/loss_mask"] = answer.ids, answer.loss_mask
        for kind in ("token_fields", "document_fields"):
            for name, values in getattr(answer, kind).items():
                arrays[f"{number}/{kind}/{name}"] = values
        for place, image in enumerate(answer.images):
            arrays[f"{number}/images/{place}"] = np.frombuffer(
                image if isinstance(image, bytes) else image.encode(),
                dtype=np.uint8 if isinstance(image, bytes) else np.int8,
            )
        for name, (offsets, values) in answer.ragged_fields.items():
            arrays[f"{number}/offsets/{name}"], arrays[f"{number}/values/{name}"] = offsets, values
    file = io.BytesIO()
    np.savez(file, **arrays)
    content = file.getvalue()
    return hashlib.blake2b(content, digest_size=_DIGEST).digest() + content


def _decoded(data: bytes) -> tuple[dict[str, Any], list[tuple[Answer, ...]]]:
    """Return the description and the answers of a file.

    Raises:
        ValueError: it is damaged.
    """
    digest, content = data[:_DIGEST], data[_DIGEST:]
    if hashlib.blake2b(content, digest_size=_DIGEST).digest() != digest:
        raise ValueError("its content does not match its checksum")
    values: dict[str, dict[str, Any]] = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        about = json.loads(arrays["about"].tobytes())
        for key in arrays.files:
            number, _, name = key.partition("/")
            if name:
                kind, _, field = name.partition("/")
                answer = values.setdefault(number, {})
                if field:
                    answer.setdefault(kind, {})[field] = arrays[key]
                else:
                    answer[kind] = arrays[key]
    sequences = (_answer(values[str(number)]) for number in range(len(values)))
    sizes = about.get("sizes", [1] * len(values))
    return about, [tuple(islice(sequences, size)) for size in sizes]


def _answer(values: dict[str, Any]) -> Answer:
    offsets, flat = values.pop("offsets", {}), values.pop("values", {})
    ragged = {name: Ragged(offsets[name], flat[name]) for name in offsets}
    images = [
        each.tobytes() if each.dtype == np.uint8 else each.tobytes().decode()
        for each in values.pop("images", {}).values()
    ]
    return Answer(**values, ragged_fields=ragged, images=images)
