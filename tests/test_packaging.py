import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspore_rl import errors
from mindspore_rl.errors import install

ROOT = Path(__file__).parents[1]
SOURCES = ("mindspore_rl", "algorithms", "distribution")
MAPPED = {"mindspore_rl": "mindspore_rl"} | {
    folder: f"mindspore_rl/{folder}" for folder in SOURCES[1:]
}


GAP = r"[\s\"',]+"
FETCH = re.compile(
    rf"\b(?:pip[\d.]*|uv(?:{GAP}pip)?|pipx|conda|mamba|poetry){GAP}"
    rf"(?:-\S+{GAP})*(?:install|add|download)\b(.*)"
)
"""A command that fetches packages, and its arguments."""
OTHERS = {"torch==2.13.0", "benchmarl==1.5.2", "mpe2", "cleanrl==1.2.0", "$file"}
"""Packages of scripts/mappo_baseline.py and setup_peers.sh, in separate environments."""


def fetched(text: str) -> Iterator[str]:
    """Returns the packages that commands in a text fetch; a command may span lines."""
    for rest in FETCH.findall(re.sub(r"""["']\s*\n\s*f?["']|\\\n""", "", text)):
        for word in rest.split():
            if not word.startswith("-"):
                yield word.replace("\\", "").strip("'\"`,;:()")
            if word.endswith(('"', "`")):
                break


def is_ours(target: str) -> bool:
    return re.fullmatch(r"(\.|FILE\.whl)(\[[\w,]+\]|\{extras\})?|\$what", target) is not None


def test_commands_fetch_this_project_from_its_folder_only():
    """An index has another mindspore_rl, which a command with the bare name would fetch."""
    folders = (ROOT / name for name in (*SOURCES, "docs", "scripts", "tests", ".ci"))
    files = [*ROOT.glob("*"), *(file for folder in folders for file in folder.rglob("*"))]
    for file in files:
        if file.is_file() and "__pycache__" not in file.parts and file != Path(__file__):
            text = file.read_text(errors="replace")
            wrong = {word for word in fetched(text) if not is_ours(word)} - OTHERS
            assert not wrong, f"{file} fetches {wrong}"
            assert "mindspore_rl[" not in text, f"{file} names an extra by a name of an index"


@pytest.mark.parametrize(
    "text",
    [
        "pip install -U mindspore_rl",
        "`pip install 'mindspore_rl[gpu]'`",
        '"pip install "\n    "mindspore_rl"',
        '["pip", "install", "mindspore_rl"]',
        "pip install . \\\n    mindspore",
        "uv pip install --system mpich",
    ],
)
def test_commands_that_fetch_by_a_name_are_found(text):
    assert any(not is_ours(word) for word in fetched(text))


def test_messages_say_what_to_install():
    assert install() == "in the checkout of mindspore_rl: pip install '.'"
    assert install("gpu") == "in the checkout of mindspore_rl: pip install '.[gpu]'"


def test_a_wheel_says_what_to_install_without_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages/mindspore_rl/errors.py"))
    assert install("plot") == "with the wheel of msrl-fragments: pip install 'FILE.whl[plot]'"


@pytest.mark.slow
def test_wheel_holds_one_package_with_algorithms_and_policies(tmp_path):
    # A copy: a build creates build/, whose contents would enter the next wheel.
    source = tmp_path / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    files = ("setup.py", "pyproject.toml", "requirements.txt", "README.md", "LICENSE")
    for name in files:
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    built = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        requirements = archive.read(metadata).decode()
        entry_points = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert "Name: msrl-fragments" in requirements
    for line in (
        "Author: The mindspore_rl maintainers",
        "License-File: LICENSE",
        "Project-URL: Source, https://mindspore-rl.invalid/source",
        "Description-Content-Type: text/markdown",
        (ROOT / "README.md").read_text().splitlines()[2],
    ):
        assert line in requirements
    tops = {name.split("/")[0] for name in names}
    assert tops == {"mindspore_rl", metadata.split("/")[0]}
    assert "numpy<2,>=1.26" in requirements.replace(" ", "")
    assert "msrl = mindspore_rl.cli.main:main" in entry_points
    expected = {
        f"{target}/{path.relative_to(ROOT / folder)}"
        for folder, target in MAPPED.items()
        for pattern in ("*.py", "py.typed", "*.yaml", "*.cpp", "*.c", "*.cu", "*.h")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert expected - names == set()
