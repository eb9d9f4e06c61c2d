"""The job: runs the stages one after the other, each of which can be resumed.

Results of stages are in the work folder until the end. Then the destination has the shards, and
beside them ``_order/`` with the summary, the names of near-duplicates and the beginnings of runs.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from typing import Any

import numpy as np

from streampack.conversion.api import IN_ORDER
from streampack.conversion.folders import alone, writing_to
from streampack.conversion.shards import HIDDEN, Destination, no_documents
from streampack.corpus_order import by_value, duplicates, embed, search, write
from streampack.corpus_order.corpus import Corpus
from streampack.corpus_order.settings import CorpusOrder
from streampack.corpus_order.summary import Summary, duplicates_listed, summarise
from streampack.ordering.bm25 import BM25
from streampack.sources.base import Source
from streampack.sources.resolve import open as open_source
from streampack.tasks.engine import Engine, run_here
from streampack.tasks.on_ray import on_ray

STAGES = ("copy", "embed", "index", "search", "duplicates", "path", "write")
SETTINGS = "settings.json"
RESULTS = "_order"
NOTE = f"{HIDDEN}/order.json"  # kept in the destination, because the work folder may be elsewhere

Report = Callable[[str, int, int], None]


def order_corpus(
    source: Any,
    destination: str,
    *,
    address: str | None = None,
    workers: int | None = None,
    report: Report = lambda stage, done, total: None,
    **settings: Any,
) -> Summary:
    """Write a corpus in an order that puts related documents next to each other, or by a field.

    A repeated call continues a stopped job and gives the same shards, with any number of workers on
    one machine. On another machine faiss may find other neighbours.

    Args:
        source: any source of `PackedDataset` but a mixture; it must be readable more than once.
        destination: folder or URL for the shards; empty, or holding an unfinished run of the same
            settings. Beside the shards it gets ``_order/`` with `summary.json`,
            `duplicates.jsonl`, `documents.parquet`, the source file of each document in order and
            its position there, and `runs.npy`, the indices of the documents with which runs begin.
            Shards have only ids or texts; other columns stay in the source.
        address: address of a Ray cluster with machines that see the same files; None uses Ray on
            this machine and starts it if necessary.
        workers: Ray workers on this machine, by default one per core; 0 runs all tasks in this
            process, without Ray.
        report: function called with a stage, the number of its finished tasks, and of all tasks.
        settings: settings of `CorpusOrder`, such as ``by=ByField("score", pace="quantiles")``.

    Raises:
        ConfigError: the destination is not empty, or holds another job; a setting is invalid; an
            embedder returned invalid vectors; Ray or faiss is not installed.
        ContentError: a broken document, with on_error="raise".
        StorageError: reading or writing failed; repeat the call to continue.
        WorkerError: Ray repeatedly lost the workers of a task.
    """
    opened_source = source if isinstance(source, Source) else open_source(source, reading=IN_ORDER)
    job = CorpusOrder(source=opened_source, destination=Destination(destination), **settings)
    return run_job(job, address=address, workers=workers, report=report)


def run_job(
    job: CorpusOrder,
    *,
    address: str | None = None,
    workers: int | None = None,
    report: Report = lambda stage, done, total: None,
) -> Summary:
    """Run a job, or continue it; see `order_corpus`."""
    job.source.prepare()
    folder = job.files.folder.parent
    here = workers == 0 and address is None
    opened = nullcontext(run_here) if here else on_ray(address, workers)
    with alone(folder, job.destination.url), opened as engine:
        _begin(job)
        shards = _Run(job, engine, report).run()
        return _finish(job, shards)


def _begin(job: CorpusOrder) -> None:
    saved, what = job.files.read(SETTINGS), "order"
    if saved and any(job.files.path("embed").glob("*.json")):  # a part is finished
        job.destination.refuse_other(what, saved, job.settings(), str(job.work or ""))
    else:
        job.destination.begin(what)
        job.files.clear()  # a machine assumed dead may have written files of another job
        job.files.note(SETTINGS, job.settings())
    with writing_to(job.files.folder):
        job.destination.write(NOTE, b"{}", job.files.folder)


class _Run:
    """One run of the stages."""

    def __init__(self, job: CorpusOrder, engine: Engine, report: Report) -> None:
        self.job, self.files = job, job.files
        self.engine, self.report = engine, report

    def run(self) -> int:
        """Run all stages; return the number of shards."""
        job, parts = self.job, range(self.job.num_parts)
        each_part = [(p,) for p in parts]
        self._tasks("copy", embed.copy_part, each_part, "embed/{0:05}.copied.json")
        if job.by is not None:
            for part in parts:
                by_value.note_part(job, part)
            self._gathered()
            self._here("path", by_value.sort_path, "path/note.json")
            return self._written()
        if isinstance(job.similarity.embedding, BM25):
            self._here("copy", embed.add_counts, embed.TERMS)
        self._tasks("embed", embed.embed_part, each_part, "embed/{0:05}.json")
        corpus = self._gathered()
        shards = 1
        if not job.exact(len(corpus)):
            shards = len(search.index_shards(corpus))
            self._here("index", search.train_index, search.TRAINED)
            of_index = [(s,) for s in range(shards)]
            self._tasks("index", search.fill_shard, of_index, "index/{0:05}.faiss")
        self.report("index", 1, 1)
        with_shards = [(shards, p) for p in parts]
        pairs = [(s, p) for s in range(shards) for p in parts]
        self._tasks("search", search.search_part, pairs, "search/{0:05}.{1:05}.npy")
        stage = "duplicates"
        self._tasks(stage, duplicates.find_pairs, with_shards, "duplicates/{1:05}.pairs.npy")
        self._here(stage, duplicates.gather_wanted, "duplicates/wanted.npy")
        self._tasks(stage, duplicates.embed_whole, each_part, "duplicates/{0:05}.whole.npy")
        self._here(stage, duplicates.choose_duplicates, "duplicates/duplicate_of.npy")
        self._tasks("path", search.search_again, with_shards, "path/{1:05}.again.npy")
        self._here("path", lambda job: write.find_path(job, shards), "path/note.json")
        return self._written()

    def _gathered(self) -> Corpus:
        """Return the corpus of all parts.

        Raises:
            ContentError: it has no document.
        """
        corpus = Corpus.gather_notes(self.files, self.job.num_parts)
        if not len(corpus):
            self.job.destination.remove(NOTE)
            self.files.clear()
            raise no_documents()
        return corpus

    def _written(self) -> int:
        """Write the shards along the path; return their number."""
        self._here("write", write.plan_shards, "write/starts.npy")
        count = len(self.files.load("write/starts.npy")) - 1
        write.forget_missing(self.job, count)
        self._tasks("write", write.write_part, [(s,) for s in range(count)], "write/{0:05}.json")
        return count

    def _tasks(
        self,
        stage: str,
        function: Callable[..., None],
        tasks: Sequence[tuple[int, ...]],
        result: str,
    ) -> None:
        """Run the tasks of a stage, unless its last file, `result`, exists."""
        left = [task for task in tasks if not self.files.has(result.format(*task))]
        done = len(tasks) - len(left)
        self.report(stage, done, len(tasks))
        with closing(self.engine(function, self.job, left)) as finished:
            for _ in finished:
                done += 1
                self.report(stage, done, len(tasks))

    def _here(self, stage: str, function: Callable[[CorpusOrder], Any], result: str) -> None:
        """Call `function` in this process, unless `result` exists."""
        self.report(stage, 0, 1)
        if not self.files.has(result):
            function(self.job)
        self.report(stage, 1, 1)


def _finish(job: CorpusOrder, shards: int) -> Summary:
    """Check that no document is lost, write the results and remove the work files."""
    summary = summarise(job, shards)
    with writing_to(job.files.folder):
        _put_results(job, summary)
    job.destination.remove(NOTE)
    job.files.path(SETTINGS).unlink()  # the job cannot be continued from here on
    job.files.clear()
    return summary


def _put_results(job: CorpusOrder, summary: Summary) -> None:
    """Write the files beside the shards."""
    folder = job.files.folder
    listed = folder / "duplicates.jsonl"
    with listed.open("w", encoding="utf-8") as file:
        for record in duplicates_listed(job):
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    job.destination.put(listed, f"{RESULTS}/duplicates.jsonl")
    named = folder / "documents.parquet"
    write.write_documents(job, named)
    job.destination.put(named, f"{RESULTS}/documents.parquet")
    np.save(runs := io.BytesIO(), job.files.load("path/runs.npy"))
    job.destination.write(f"{RESULTS}/runs.npy", runs.getvalue(), folder)
    job.destination.write(f"{RESULTS}/summary.json", summary.as_json(), folder)
