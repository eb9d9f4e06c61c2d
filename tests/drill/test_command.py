"""The command saves into an empty folder, or is refused, and its real folder stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from streampack.drill.command import Command
from streampack.errors import ConfigError

NEW = Path("/new")


def command(*arguments: str, checkpoints: str = "out", resume: str = "") -> Command:
    return Command.checked(["python", *arguments], Path(checkpoints), resume)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_folder_is_exchanged_in_any_argument_that_names_it(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "ckpt.pt").touch()
    named = command(
        "train.py", "out", "--dir=out/", f"--save={folder}/out", "run.dir=out/a", "./out/b",
        "outer", resume="--from out/last.pt",
    )  # fmt: skip
    assert named.exchanged(NEW, restart=True) == [
        *("python", "train.py", "/new", "--dir=/new", "--save=/new", "run.dir=/new/a", "/new/b"),
        *("outer", "--from", "/new/last.pt"),
    ]
    assert "--from" not in named.exchanged(NEW, restart=False)


def test_the_folder_is_exchanged_in_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "ckpt.pt").touch()
    monkeypatch.setenv("OUT_DIR", f"{folder}/out/run")
    variables = command("train.py").environment(NEW, folder, {})
    assert variables["OUT_DIR"] == "/new/run"
    assert variables["WANDB_MODE"] == "offline"


def test_a_folder_that_nothing_names_is_a_link_while_the_command_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLDPWD", f"{folder}/out")  # of the shell, which was there
    unnamed = command("train.py")
    for existed in (False, True):
        with unnamed.linked(folder / "new"):
            assert (folder / "out").readlink() == folder / "new"
        assert (folder / "out").exists() == existed
        (folder / "out").mkdir(exist_ok=True)


@pytest.mark.parametrize("checkpoints", [".", "..", "full"])
def test_a_folder_that_cannot_be_exchanged_is_refused(folder: Path, checkpoints: str) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "ckpt.pt").touch()
    with pytest.raises(ConfigError) as error:
        command("train.py", checkpoints=checkpoints)
    assert error.value.setting == "checkpoints"
    assert command("train.py", "full", checkpoints="full")  # the advice


def test_a_command_that_is_missing_is_refused() -> None:
    for arguments in ([], ["no-such-program"]):
        with pytest.raises(ConfigError) as error:
            Command.checked(arguments, Path("out"), "")
        assert error.value.setting == "command"


def test_torchrun_starts_as_many_ranks_as_a_drill_asks_for() -> None:
    for arguments in (("--nproc-per-node", "2"), ("--nproc_per_node=2",)):
        several = command(*arguments, "train.py")
        assert several.ranks == 2
        assert several.with_ranks(4).ranks == 4
    assert command("--nproc-per-node", "gpu", "train.py").ranks is None
