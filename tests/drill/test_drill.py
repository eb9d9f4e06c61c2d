"""`streampack drill` over real training scripts: twelve planted faults are named, and no others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from streampack.drill.kinds import KINDS

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
PYTHON = (sys.executable,)
#: How each script is started, the option with its folder, and its arguments at a restart.
COMMANDS = {
    "nanogpt": (PYTHON, "--out_dir=", "--init_from=resume"),
    "litgpt": (PYTHON, "--out_dir=", "--resume auto"),
    "torchtitan": (TORCHRUN, "--checkpoint.folder=", ""),
    "nanochat": (TORCHRUN, "", ""),
    "trainer": (PYTHON, "--output_dir=", ""),
    "lightning": (PYTHON, "--folder=", ""),
    "store": (PYTHON, "--out_dir=", ""),
}
#: Faults of the scripts: the disturbance that shows each, and the name that the drill gives it.
PLANTED = [
    ("nanogpt", "late", "kill", "batches-skipped"),
    ("nanogpt", "in place", "save", "cannot-continue"),
    ("nanogpt", "optimizer", "kill", "optimizer-forgotten"),
    ("nanogpt", "random", "kill", "random-states-forgotten"),
    ("litgpt", "scheduler", "kill", "scheduler-forgotten"),
    ("litgpt", "scaler", "kill", "scaler-forgotten"),
    ("litgpt", "workers", "kill", "workers-state-lost"),
    ("torchtitan", "rank 0", "kill", "rank-state-lost"),
    ("torchtitan", "epoch", "terminate", "order-differs"),
    ("torchtitan", "uncommitted", "commit", "cannot-continue"),
    ("nanochat", "prefetcher", "kill", "batches-skipped"),
    ("trainer", "no skip", "kill", "loader-forgotten"),
    ("lightning", "plain loader", "kill", "loader-forgotten"),
    ("store", "skips", "store", "data-left-out"),
    ("store", "throttled", "throttled store", "data-left-out"),
    ("store", "impatient", "slow store", "data-left-out"),
]
GATE = PLANTED[:1]


def command_of(script: str, fault: str, folder: Path, only: tuple[str, ...]) -> list[str]:
    start, option, resume = COMMANDS[script]
    named = [f"{option}{folder / 'out'}"] if option else []
    return [
        *(sys.executable, "-m", "streampack", "drill", "--checkpoints", str(folder / "out")),
        *("--workdir", str(folder / "drill"), f"--resume={resume}", "--json", "--minutes", "20"),
        *(part for name in only for part in ("--only", name)),
        *("--", *start, str(SCRIPTS / f"{script}_like.py"), *named, "--fault", fault),
    ]


def drill(script: str, fault: str, folder: Path, *only: str) -> dict[str, Any]:
    """Drill a script in a process; its report."""
    (folder / "out").mkdir()
    (folder / "out" / "mine").write_text("a checkpoint of the user")
    done = subprocess.run(
        command_of(script, fault, folder, only), capture_output=True, text=True,
        env={**os.environ, "NANOCHAT_BASE_DIR": str(folder / "out")},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert [path.name for path in (folder / "out").iterdir()] == ["mine"]
    assert not processes(folder)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == bool(report["faults"])
    return report


def processes(folder: Path) -> list[str]:
    """Living processes with the folder in their environment or their arguments."""
    living = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text and int(entry.name) != os.getpid():
            living.append((entry / "cmdline").read_text().replace("\0", " "))
    return living


def assert_named(script: str, fault: str, only: str, kind: str, folder: Path) -> None:
    report = drill(script, fault, folder, only)
    assert kind in report["faults"], report
    # A Trainer that does not skip batches does not restore random states either.
    others = {"random-states-forgotten"} if script == "trainer" else set()
    assert set(report["faults"]) <= {kind} | others
    hidden = script in ("trainer", "lightning") or not KINDS[kind].place
    assert hidden or f"{script}_like.py:" in report["faults"][kind]["line"]


@pytest.mark.parametrize(("script", "fault", "only", "kind"), GATE)
def test_a_planted_fault_is_named_with_its_line(
    script: str, fault: str, only: str, kind: str, tmp_path: Path
) -> None:
    assert_named(script, fault, only, kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("script", "fault", "only", "kind"), PLANTED[1:])
def test_every_planted_fault_is_named(
    script: str, fault: str, only: str, kind: str, tmp_path: Path
) -> None:
    assert_named(script, fault, only, kind, tmp_path)


@pytest.mark.slow
def test_a_right_script_has_no_fault_and_does_only_the_lost_steps_twice(tmp_path: Path) -> None:
    report = drill("nanogpt", "", tmp_path, "commit")
    assert report["faults"] == {}
    for trial in report["trials"]:
        assert trial["is_same"]
        assert trial["loss_difference"] == 0
        assert trial["continued_from"] == 4
        assert trial["redone"] == trial["stopped_at"] - 4
        assert trial["lost_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("script", COMMANDS)
def test_no_disturbance_of_a_right_script_is_a_fault(script: str, tmp_path: Path) -> None:
    report = drill(script, "", tmp_path)
    assert report["faults"] == {}
    assert len(report["trials"]) >= 5
    assert not [reason for reason in report["not_tried"].values() if "minutes" in reason]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "no retry"])
def test_an_error_or_the_same_batches_while_the_store_fails_are_not_a_fault(
    fault: str, tmp_path: Path
) -> None:
    report = drill("store", fault, tmp_path, "store", "throttled store", "slow store")
    assert report["faults"] == {}
    stopped = [trial["stopped_at"] < 14 for trial in report["trials"]]
    assert stopped == ([True, True, False] if fault else [False] * 3)  # late answers are no error
    for trial in report["trials"]:
        assert trial["is_same"]
        assert trial["note"] == ("went on by itself" if trial["stopped_at"] == 14 else "")


IGNORES = """
import runpy, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.path.insert(0, sys.argv[1])
del sys.argv[:1]
runpy.run_path(sys.argv[0] + "/nanogpt_like.py", run_name="__main__")
"""


@pytest.mark.slow
def test_a_command_that_ignores_sigterm_goes_on_by_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "streampack", "drill", "--checkpoints", "my out", "--json",
         "--workdir", "work", "--only", "terminate", "--", sys.executable, "-c", IGNORES,
         str(SCRIPTS), "--out_dir=my out"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads(done.stdout)["trials"]
    assert (trial["note"], trial["is_same"]) == ("went on by itself", True)
    assert not processes(tmp_path)
    assert not (tmp_path / "my out").exists()


@pytest.mark.slow
def test_a_name_that_no_disturbance_has_is_refused(tmp_path: Path) -> None:
    for name in ("kil", "worker"):  # unknown, and one that this command does not have
        (tmp_path / name).mkdir()
        done = subprocess.run(
            command_of("nanogpt", "", tmp_path / name, (name,)), capture_output=True, text=True
        )
        assert done.returncode == 1
        assert not done.stdout
        assert f"{name}" in done.stderr


def test_the_page_lists_every_kind_of_fault() -> None:
    page = (Path(__file__).parents[2] / "docs" / "drill.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in page] == []


def test_an_interrupted_drill_leaves_no_process_and_no_link(tmp_path: Path) -> None:
    arguments = command_of("torchtitan", "", tmp_path, ())
    program = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, start_new_session=True)
    events = tmp_path / "drill" / "reference" / "0"
    while len(list(events.glob("*.jsonl"))) < 3:  # torchrun and two ranks
        assert program.poll() is None, program.stderr
        time.sleep(0.02)
    program.send_signal(signal.SIGINT)
    assert program.wait(60) == 130
    assert not processes(tmp_path)
    assert not (tmp_path / "out").exists()


ENDLESS = """
import torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
"""
#: Ignores signals that end others, and leaves children without the drill's variables.
STUBBORN = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "900.125"], env={})
if not os.fork():
    time.sleep(900)
"""
#: Commands that cannot be judged: code, options of the drill, and a word of the error.
REFUSED = [
    ("raise ValueError(3)", (), "ValueError"),
    pytest.param("pass", (), "torch", marks=pytest.mark.slow),
    pytest.param("import no_such_module", (), "ModuleNotFoundError", marks=pytest.mark.slow),
    pytest.param("import time; time.sleep(900)", ("--minutes", "0.1"), "--minutes",
                 marks=pytest.mark.slow),
    pytest.param(ENDLESS, ("--minutes", "0.5"), "wrote no file", marks=pytest.mark.slow),
    pytest.param(STUBBORN, (), "torch", marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("code", "options", "word"), REFUSED)
def test_a_command_that_cannot_be_judged_is_refused_with_the_cause(
    code: str, options: tuple[str, ...], word: str, tmp_path: Path
) -> None:
    folder = tmp_path / "my run"
    done = subprocess.run(
        [sys.executable, "-m", "streampack", "drill", "--checkpoints", "my run/out", *options,
         "--workdir", "my run", "--", sys.executable, "-c", code],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "out").exists()
    assert not processes(folder)
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if _is_sleep(path)]


def _is_sleep(path: Path) -> bool:
    try:
        return b"900.125" in path.read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.sampled(1)
@pytest.mark.parametrize("code", ["open(P, 'a')", "os.remove(P)", "shutil.rmtree(D)"])
def test_a_write_into_the_real_folder_fails(code: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("a checkpoint of the user")
    hidden = f"D = {str(tmp_path)!r} + '/out'; P = D + '/mine'"  # unlike the argument, exchanged
    done = subprocess.run(
        [sys.executable, "-m", "streampack", "drill", "--checkpoints", str(tmp_path / "out"),
         "--workdir", str(tmp_path / "drill"), "--", sys.executable, "-c",
         f"import os, shutil; {hidden}; {code}", str(tmp_path / "out")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "PermissionError" in done.stderr
    assert (tmp_path / "out" / "mine").read_text() == "a checkpoint of the user"
