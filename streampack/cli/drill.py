"""`streampack drill`, which stops and restarts a training command and compares the runs."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from streampack.cli.options import AsJson

if TYPE_CHECKING:
    from streampack.drill.report import DrillReport


def drill(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND", help="The training command with its arguments."),
    ],
    checkpoints: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder that the command saves to. It is exchanged for an empty one: where an "
            "argument or a variable of the environment names it, or else by a link in its place, "
            "if it is missing or empty.",
        ),
    ],
    resume: Annotated[
        str,
        typer.Option(metavar="ARGUMENTS", help="Appended to the command at a restart."),
    ] = "",
    workdir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for checkpoints and outputs; a temporary one."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=3, help="Steps to compare; by default three saves and some steps after them."
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="No drill begins later, and the undisturbed run ends.")
    ] = 5.0,
    seed: Annotated[int, typer.Option(help="Seed of the moments.")] = 0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Disturbance to try, such as kill.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Kill, stop and restart a training command, and compare its batches, losses and states.

    The exit status is 1 if there is a fault, or if the command cannot be drilled.
    """
    from streampack.drill.command import Command
    from streampack.drill.drill import Drill

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console(stderr=True)
    folder = (workdir or Path(tempfile.mkdtemp(prefix="streampack-drill-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    named = Command.checked(command, checkpoints, resume)
    with console.status("") as status:
        report = Drill(
            named, folder, steps, 60 * minutes, seed, only or (), tell=status.update
        ).run()
    if as_json:
        print(json.dumps(report.as_dict()))
    else:
        _print_page(report, folder)
    raise typer.Exit(0 if report else 1)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _print_page(report: DrillReport, folder: Path) -> None:
    from streampack.drill.kinds import KINDS

    console = Console(soft_wrap=False)
    reference = report.reference
    saves = ", ".join(map(str, reference.saves))
    console.print(
        f"undisturbed: {reference.steps} steps on {reference.ranks} ranks in "
        f"{reference.seconds:.1f} s, saves after step {saves}"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("disturbance", "stopped", "continued", "lost", "batches", "losses"):
        table.add_column(name)
    for trial in report.trials:
        same = {True: "the same", False: "[red]others[/red]", None: "-"}[trial.is_same]
        figures = (trial.stopped_at, trial.continued_from)
        table.add_row(
            trial.description,
            *("-" if figure is None else str(figure) for figure in figures),
            "-" if trial.lost_s is None else f"{trial.lost_s:.1f} s",
            same,
            "-" if trial.loss_difference is None else f"{trial.loss_difference:.1e}",
        )
    console.print(table)
    for trial in report.trials:
        if trial.note:
            console.print(f"{trial.name}: {trial.note}", markup=False, highlight=False)
    for name, reason in report.not_tried.items():
        console.print(f"not tried: {name} ({reason})")
    for part in reference.not_seen:
        console.print(f"not seen: {part}")
    if report:
        console.print("\n[green]No fault.[/green]")
    for kind, pairs in report.kinds.items():
        trial, fault = pairs[0]
        after = ", ".join(trial.name for trial, _ in pairs)
        detail = f": {fault.detail}" if fault.detail else ""
        console.print(f"\n[bold red]{kind}[/bold red] (after {after}){detail}", highlight=False)
        lines = (KINDS[kind].consequence, KINDS[kind].remedy, report.line(kind))
        for line in filter(None, lines):
            console.print(Padding(line, (0, 0, 0, 2)), highlight=False, markup=False)
    console.print(f"\noutputs: {folder}")
