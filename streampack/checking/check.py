"""Check a loader: read its batches, compare them with the documents, and report the faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

from streampack.arguments import whole_number
from streampack.checking.coverage import Coverage, check_epoch, loss_of
from streampack.checking.faults import KINDS, FaultLog
from streampack.checking.loaders import Loaders, in_step
from streampack.checking.marked import MarkedDocuments, marked_documents
from streampack.checking.reading import NO_TARGET, View, read
from streampack.checking.report import CheckReport
from streampack.checking.resume import Saved, check_resume, digest_of, first_line, states_of
from streampack.checking.slots import check_slots
from streampack.checking.truth import (
    Truth,
    by_claims,
    by_documents,
    by_end_tokens,
    declared_padding,
    separators,
)
from streampack.checking.with_model import check_model, has_routers
from streampack.errors import ConfigError

#: Epochs of an endless loader that are read. Up to eight workers that each read a whole stream come
#: to their end before.
EPOCHS = 9
#: Batches in which tokens between documents are looked for before any is checked.
LOOKED_AT = 4

#: Batches of a step by rank, as they are and in one form.
Step = dict[int, tuple[Any, View]]
#: Batches of a step, and whether each rank is behind the last microbatch of a list.
Batches = tuple[list[Any], bool]


def check(
    loader: Any,
    *,
    documents: MarkedDocuments | None = None,
    model: Any = None,
    call: Callable[[Any], Any] | None = None,
    tokenizer: Any = None,
    eos_id: int | None = None,
    bos_id: int | None = None,
    pad_id: int | None = None,
    shifted: bool | None = None,
    routers: bool | None = None,
    ranks: int = 1,
    max_batches: int = 1000,
    resume_after: int = 3,
    ignore: Sequence[str] = (),
) -> CheckReport:
    """Check the batches of any loader for faults of packing, labels, epochs and resume.

    Batches may have the form of transformers (`input_ids`, `labels`, `position_ids`,
    `cu_seq_lens_q`, `seq_idx`, `attention_mask` of two or four dimensions or with numbers of
    documents), Megatron-LM (`tokens`, `labels`, `loss_mask`, a mask in which True hides),
    torchtitan (a pair of inputs and labels), torchtune, MaxText (`inputs`, `inputs_segmentation`,
    `targets`), litgpt (rows of ids), or be a `PackedBatch`. The loader needs no change. Its corpus
    does: marked documents tell for each slot which token of which document it is.

        def make_loader(documents):
            ...  # your loader, over these lists of ids

        report = streampack.check(make_loader)

    Without marked documents, boundaries are compared with end tokens if their id is known, and
    otherwise only with each other.

    Args:
        loader: an iterable of batches; a list of them, one per rank; or a function that returns
            either. A function may have the arguments `documents` (marked documents, a sequence of
            lists of ids), `rank` and `world_size`. Choose a function where you can: the resume is
            then tried in a new loader.
        documents: result of `marked_documents` that the loader reads. None gives a function 400
            documents, and reads other loaders without.
        model: module that is run on the first batch with several documents, as ``model(**batch)``,
            with documents changed and with documents alone. It needs a vocabulary of
            ``documents.vocab_size``.
        call: function from a batch, a dictionary with changed ids, to outputs for each slot, for
            models with another signature.
        tokenizer: tokenizer of transformers with the ids of special tokens.
        eos_id: id at the end of documents. None takes the tokenizer's, or the token that the loader
            places between marked documents.
        bos_id: id at the beginning of documents; None likewise.
        pad_id: id of padding, for batches without a mask of padding; None takes the tokenizer's.
        shifted: True if labels are the next token of each slot. None decides by the names in the
            batch: `input_ids` with `labels` are not shifted.
        routers: the model has routers of experts, which must know padding. None looks at `model`.
        ranks: number of ranks, for a function with the argument `rank`.
        max_batches: batches to read of each rank, at most. Endless loaders are read for nine epochs
            of marked documents.
        resume_after: batches before the state that is loaded again; 0 tries no resume. Needs
            loaders with `state_dict` and `load_state_dict`.
        ignore: kinds of faults to leave out, such as "documents-see-each-other" for rows that are
            meant to be one context.

    Raises:
        ConfigError: an argument or a batch cannot be understood.
    """
    if set(ignore) - KINDS.keys():
        raise ConfigError(
            f"ignore must name kinds of faults, got {sorted(set(ignore) - KINDS.keys())}.",
            f"Choose from {', '.join(KINDS)}.",
            setting="ignore",
        )
    if tokenizer is not None:
        eos_id = tokenizer.eos_token_id if eos_id is None else eos_id
        bos_id = tokenizer.bos_token_id if bos_id is None else bos_id
        pad_id = tokenizer.pad_token_id if pad_id is None else pad_id
    loaders = Loaders(loader, documents, whole_number("ranks", ranks))
    if documents is None and loaders.takes_documents:
        special = [token for token in (eos_id, bos_id) if token is not None]
        vocabulary = None if tokenizer is None else len(tokenizer)
        documents = marked_documents(reserved=special, pad_id=pad_id or 0, vocab_size=vocabulary)
        loaders = loaders.with_documents(documents)
    run = _Check(
        documents=documents,
        eos_id=documents.eos_id if documents is not None and eos_id is None else eos_id,
        bos_id=bos_id,
        pad_id=documents.pad_id if documents is not None and pad_id is None else pad_id,
        read=partial(read, shifted=shifted),
        model=model,
        call=call,
        routers=routers,
        log=FaultLog(frozenset(ignore)),
    )
    return run.over(loaders, whole_number("max_batches", max_batches), resume_after)


class _Check:
    """The state of a check while it reads; arguments as of `check`."""

    def __init__(
        self,
        *,
        documents: MarkedDocuments | None,
        eos_id: int | None,
        bos_id: int | None,
        pad_id: int | None,
        read: Callable[[Any], View],
        model: Any,
        call: Callable[[Any], Any] | None,
        routers: bool | None,
        log: FaultLog,
    ) -> None:
        self.documents, self.eos_id, self.bos_id, self.pad_id = documents, eos_id, bos_id, pad_id
        self.read, self.model, self.call, self.log = read, model, call, log
        self.routers = has_routers(model) if routers is None else routers
        self.slots = self.padding = 0
        self.learnt: int | None = None
        self.boundaries, self.truth = "", "claims"
        self.unread: dict[str, None] = {}
        self.model_checked = False
        self.coverage: list[Coverage] = []
        self._pending: list[tuple[int, Step]] | None = []

    def over(self, loaders: Loaders, most: int, resume_after: int) -> CheckReport:
        """Read the loaders and return the report."""
        own = loaders.make()
        if self.documents is not None:
            self.coverage = [Coverage(self.documents) for _ in own]
        saved: Saved | str = "the run ended before"
        tried = False
        steps, ended = 0, False
        stream = in_step(own)
        while steps < most and not self._has_read_enough():
            read = self._next(stream, steps)
            if not read:
                ended = read is None
                break
            batches, whole = read
            step = {
                rank: (batch, self.read(batch))
                for rank, batch in enumerate(batches)
                if batch is not None
            }
            if isinstance(saved, Saved):
                for rank, (_, view) in step.items():
                    saved.later[rank].append(digest_of(view))
            self._add(steps, step, len(own))
            steps += 1
            if 0 < resume_after <= steps and whole and not tried:
                saved, tried = self._saved(own, steps), True
        self._flush()
        if not steps:
            raise ConfigError(
                "loader must give at least one batch, but it gave none.",
                "Pass a loader that was not read before, with more documents than a batch.",
                setting="loader",
            )
        total = self._total()
        if ended and self.coverage:  # buffers of endless loaders may hold documents back for long
            self.log.rank, self.log.batch = -1, -1
            check_epoch(self.coverage, self.log)
        resumed = isinstance(saved, Saved) and any(saved.later)
        if isinstance(saved, Saved) and resumed:
            longest = max(map(len, saved.later)) + ended
            try:
                check_resume(loaders, saved, self.read, ended, longest, self.log)
            except Exception as error:
                self._raised("resume-raises", saved.after, error)
        return CheckReport(
            faults=tuple(self.log.by_kind.values()),
            ranks=len(own),
            batches=steps,
            ended=ended,
            slots=self.slots,
            padding=self.padding,
            learnt=self.learnt,
            boundaries=self.boundaries,
            truth=self.truth,
            loss=None if total is None else loss_of(total),
            resumed=resumed,
            not_resumed="" if resumed or isinstance(saved, Saved) else saved,
            unread=tuple(self.unread),
            model_checked=self.model_checked,
        )

    def _next(self, stream: Iterator[Batches], steps: int) -> Batches | tuple[()] | None:
        """Return the next batches; None at the end, and nothing if a loader raises after some."""
        try:
            return next(stream, None)
        except Exception as error:
            if not steps:
                raise
            self._flush()
            self._raised("loader-raises", steps, error)
            return ()

    def _raised(self, kind: str, batch: int, error: Exception) -> None:
        self.log.rank, self.log.batch = -1, batch
        self.log.add(kind, detail=f"{type(error).__name__}: {first_line(error)}")

    def _has_read_enough(self) -> bool:
        """Return True if an endless loader has given several epochs of the documents."""
        delivered = sum(int(coverage.times.sum()) for coverage in self.coverage)
        return self.documents is not None and delivered >= EPOCHS * self.documents.num_tokens

    def _saved(self, loaders: Sequence[Any], after: int) -> Saved | str:
        states = states_of(loaders)
        if isinstance(states, str):
            return states
        total = self._total()
        coverage = None if total is None else total.copy()
        return Saved(after, states, coverage, [[] for _ in loaders])

    def _total(self) -> Coverage | None:
        return reduce(add, self.coverage) if self.coverage else None

    def _add(self, index: int, step: Step, ranks: int) -> None:
        """Count a step; check it once the tokens between documents are known."""
        self.log.rank, self.log.batch = -1, index
        shapes = {view.tokens.shape for _, view in step.values()}
        if len(step) < ranks:
            self.log.add("steps-differ", detail=f"ranks {sorted(step)} have a batch, others none")
        elif len(shapes) > 1:
            self.log.add("shapes-differ", detail=", ".join(map(str, sorted(shapes))))
        elif ranks > 1 and self.documents is not None:
            batches = {digest_of(view) for _, view in step.values()}
            self.log.add("documents-on-two-ranks", count=len(step) - len(batches))
        for rank, (_, view) in step.items():
            if self.coverage:
                self.coverage[rank].add(view)
        if self._pending is None:
            self._check(index, step)
            return
        self._pending.append((index, step))
        if len(self._pending) == LOOKED_AT:
            self._flush()

    def _flush(self) -> None:
        pending, self._pending = self._pending or [], None
        if self.documents is not None and self.eos_id is None and self.bos_id is None:
            views = [view for _, step in pending for _, view in step.values()]
            self.eos_id, self.bos_id = separators(views, self.documents)
        for index, step in pending:
            self._check(index, step)

    def _check(self, index: int, step: Step) -> None:
        for rank, (batch, view) in step.items():
            self.log.rank, self.log.batch = rank, index
            truth = self._truth_of(view)
            padding = truth.document < 0
            self.truth, self.boundaries = truth.by, view.claimed_by or self.boundaries
            self.unread |= dict.fromkeys(view.unread)
            self.slots += view.tokens.size
            self.padding += int(padding.sum())
            if view.targets is not None:
                self.learnt = (self.learnt or 0) + int((view.targets != NO_TARGET).sum())
            check_slots(view, truth, self.log)
            if self.routers and not view.has_padding_mask:
                self.log.add_slots("padding-in-routers", padding)
            if self.model is not None and not self.model_checked:
                self.model_checked = check_model(
                    self.model, batch, view, truth, self.call, self.log
                )

    def _truth_of(self, view: View) -> Truth:
        if self.documents is not None:
            return by_documents(view, self.documents, self.eos_id, self.bos_id)
        padding = declared_padding(view, self.pad_id, self.eos_id)
        if self.eos_id is not None or self.bos_id is not None:
            return by_end_tokens(view, self.eos_id, self.bos_id, padding)
        return by_claims(view, padding)
