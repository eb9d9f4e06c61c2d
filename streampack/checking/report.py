"""The result of a check, as an object and as one page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from streampack.checking.coverage import Loss
from streampack.checking.faults import Fault


@dataclass(frozen=True)
class CheckReport:
    """Result of `check`; true if no fault was found.

    Attributes:
        faults: the first fault of each kind, in the order in which they were met.
        ranks: number of loaders.
        batches: batches read of each loader, at most.
        ended: True if all loaders came to their end.
        slots: slots of the batches.
        padding: slots of padding among them.
        learnt: slots with a label that counts; None if the batches have no labels.
        boundaries: name of the entry with which batches claim boundaries, such as "cu_seqlens" or
            "positions"; "" if they claim none.
        truth: source of the true boundaries: "documents", "end tokens", or "claims" if they are
            unknown, so that boundaries are only compared with each other.
        loss: tokens of the marked documents that were delivered and learnt; None without them.
        unread: names of entries of the batches that were not understood, or not compared.
        resumed: True if a state was loaded and the batches behind it compared.
        not_resumed: reason why no state was loaded, or "".
        model_checked: True if a model was run.
    """

    faults: tuple[Fault, ...]
    ranks: int
    batches: int
    ended: bool
    slots: int
    padding: int
    learnt: int | None
    boundaries: str
    truth: str
    loss: Loss | None
    resumed: bool
    model_checked: bool
    unread: tuple[str, ...] = ()
    not_resumed: str = ""

    def __bool__(self) -> bool:
        return not self.faults

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of faults."""
        return tuple(fault.kind for fault in self.faults)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold."""
        faults = [
            {**asdict(fault), "consequence": fault.consequence, "remedy": fault.remedy}
            for fault in self.faults
        ]
        return {**asdict(self), "faults": faults}

    def figures(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the value, as text, of each figure of the report."""
        ranks = f"{self.ranks} ranks, " if self.ranks > 1 else ""
        end = "to the end" if self.ended else "not to the end"
        yield "read", f"{ranks}{self.batches:,} batches each, {end}"
        yield "boundaries", f"by {self.boundaries}" if self.boundaries else "none in the batches"
        yield "compared with", "marked documents" if self.truth == "documents" else self.truth
        yield "padding", _share(self.padding, self.slots, "slots")
        if self.learnt is None:
            yield "with a label", "not compared: the batches have no labels"
        else:
            yield "with a label", _share(self.learnt, self.slots, "slots")
        if self.loss is not None:
            lost = self.loss.tokens - self.loss.delivered
            yield "tokens never delivered", _share(lost, self.loss.tokens, "tokens")
            lost = self.loss.learnable - self.loss.learnt
            if self.learnt is not None:
                yield "tokens never learnt", _share(lost, self.loss.learnable, "learnable tokens")
        if self.unread:
            yield "not compared", ", ".join(self.unread)
        reason = f": {self.not_resumed}" if self.not_resumed else ""
        yield "resume", "tried" if self.resumed else f"not tried{reason}"
        yield "model", "run" if self.model_checked else "not run"

    def __str__(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.figures()]
        for fault in self.faults:
            lines += [f"{fault.kind}: {fault.first}", f"  {fault.consequence}", f"  {fault.remedy}"]
        return "\n".join([*lines, "" if self.faults else "no fault"]).strip()


def _share(part: int, whole: int, unit: str) -> str:
    return f"{part:,} of {whole:,} {unit}, {part / max(whole, 1):.1%}"
