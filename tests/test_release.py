"""Facts stated in several places agree: version, Pythons, extras, scripts."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.metadata import metadata
from pathlib import Path

import pytest

import streampack
from scripts.release_notes import release_notes

ROOT = Path(__file__).parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()
CI = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
RELEASE = (ROOT / ".github" / "workflows" / "release.yml").read_text()
EXTRAS = dict(
    re.findall(
        r"^(\w+) = \[(.*?)\]$",
        PROJECT.split("[project.optional-dependencies]")[1].split("\n\n")[0],
        re.M | re.S,
    )
)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_version_is_written_once() -> None:
    assert re.search(r"^version = ", PROJECT, re.M) is None
    assert 'path = "streampack/__init__.py"' in PROJECT


def test_the_citation_has_the_version_and_the_licence_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.M) == [streampack.__version__]
    assert f"\nlicense: {metadata('streampack')['License-Expression']}\n" in citation


def test_a_release_needs_no_secret_and_publishes_only_tested_builds() -> None:
    assert "secrets." not in RELEASE
    jobs = dict(re.findall(r"^  (\w+):\n((?:    .*\n|\n)+)", RELEASE.split("\njobs:\n")[1], re.M))
    assert {name for name, job in jobs.items() if "id-token: write" in job} == {"publish", "deploy"}
    assert "needs: [build, site]" in jobs["publish"]
    assert all("needs: publish" in jobs[name] for name in ("announce", "deploy"))
    assert jobs["build"].index("scripts/test_wheel.sh") < jobs["build"].index("upload-artifact")
    assert "pypa/gh-action-pypi-publish@" in jobs["publish"]
    guide = (ROOT / "CONTRIBUTING.md").read_text().split("## Releasing")[1]
    assert all(name in guide for name in ("`release.yml`", "`pypi`", "`github-pages`"))


def test_ci_runs_every_python_that_is_promised() -> None:
    promised = re.findall(r"Programming Language :: Python :: (3\.\d+)", PROJECT)
    assert len(promised) == 4
    matrices = re.findall(r"python: (\[.*?\])", CI)
    assert len(matrices) == 2  # of the tests, and of the wheel
    for matrix in matrices:
        assert re.findall(r'"(.*?)"', matrix) == promised
    assert "versions: [newest, lowest]" in CI
    assert f'requires-python = ">={promised[0]}"' in PROJECT
    assert f"Python {promised[0]} to {promised[-1]}" in (ROOT / "README.md").read_text()


def test_scripts_that_are_named_exist() -> None:
    pages = (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "AGENTS.md").read_text()
    named = {*re.findall(r"bash (scripts/\w+\.sh)", CI + RELEASE + pages)}
    named |= {*re.findall(r"bash (scripts/\w+\.sh)", (ROOT / ".ci" / "run").read_text())}
    assert len(named) >= 6
    for script in named:
        assert (ROOT / script).is_file(), script


def test_one_command_and_ci_run_every_other_command() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Where")[0]
    named = {*re.findall(r"bash scripts/(\w+)\.sh", table)} - {"release_check"}
    release = (ROOT / "scripts" / "release_check.sh").read_text()
    assert len(named) == 9
    assert named <= {*re.findall(r"\w+", release)}
    assert named <= {*re.findall(r"\w+", CI)}


def test_tests_that_a_script_runs_exist() -> None:
    for script in (ROOT / "scripts").glob("*.sh"):
        run = re.sub(r"#.*", "", script.read_text())
        for named in re.findall(r"(?<!\S)tests/[^\s\"]+", run):
            before, several, after = re.fullmatch(r"([^{]*)(?:\{(.*)\}(.*))?", named).groups()
            for one in (several or "").split(","):
                assert (ROOT / f"{before}{one}{after or ''}").exists(), f"{script.name}: {named}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_extras_that_a_page_names_exist(page: Path) -> None:
    for several in re.findall(r"""["'](?:streampack|\.)\[([\w,]+)\]""", page.read_text()):
        assert {*several.split(",")} <= {*EXTRAS}


def test_all_has_every_extra_of_a_user() -> None:
    (inside,) = re.findall(r"streampack\[(.*?)\]", PROJECT.split("all = ")[1])[:1]
    left_out = {"order", "iceberg", "demo", "all", "dev"}  # Ray alone is 240 MB
    assert {*inside.split(",")} == {*EXTRAS} - left_out


def test_no_advice_installs_streampack_from_an_index_that_need_not_have_it() -> None:
    for file in [*PAGES, *(ROOT / "streampack").rglob("*.py"), *(ROOT / "demo").glob("*.py")]:
        assert not re.search(r"pip install \W*streampack\b", file.read_text()), file
    assert metadata("streampack")["License-Expression"] == "Apache-2.0"


CHANGES = (
    "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2027-01-02)\n\n- New.\n\n## 0.1.0\n\n- First.\n"
)
PACKAGE = '"""Doc."""\n\n__version__ = "0.2.0"\n'


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    assert release_notes("0.2.0", CHANGES, PACKAGE) == "- New."
    assert release_notes("0.2.0", CHANGES.replace("## Unreleased\n\n", ""), PACKAGE) == "- New."


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    run = ["git", *identity, *arguments]
    return subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_one_command_tags_a_clean_checkout_of_main_and_refuses_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "a")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.com")
    checkout, store = tmp_path / "checkout", tmp_path / "store.git"
    for name in ("scripts/release.sh", "scripts/release_notes.py", "streampack/__init__.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    (checkout / "CHANGELOG.md").write_text(f"## {streampack.__version__}\n\n- First.\n")
    git(tmp_path, "init", "-q", "--bare", str(store))
    git(checkout, "init", "-q", "-b", "main")
    git(checkout, "remote", "add", "origin", str(store))
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "first")
    git(checkout, "push", "-q", "origin", "main")

    def release() -> int:
        run = ["bash", "scripts/release.sh"]
        return subprocess.run(run, cwd=checkout, capture_output=True, check=False).returncode

    (checkout / "left.txt").touch()
    assert release() != 0
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "not pushed")
    assert release() != 0
    assert git(store, "tag") == ""
    git(checkout, "push", "-q", "origin", "main")
    assert release() == 0
    assert git(store, "tag").split() == [f"v{streampack.__version__}"]
