"""The documentation: its examples run, its printed text is printed, its links lead to files.

Its pages are built as a site, its notebook runs, and a first-time user's path is walked.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from mindspore_rl.board.reading import Board
from mindspore_rl.cli import main as cli
from mindspore_rl.environments.check import check
from mindspore_rl.platform.user_modules import load_module
from tests.commands import python

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCED.findall(page.read_text()) if kind == language]


def commands() -> list[list[str]]:
    lines = [line for page in PAGES for text in blocks(page, "bash") for line in text.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("msrl ")]


def test_the_picture_of_the_house_is_as_the_code_is():
    script = load_module(ROOT / "scripts" / "draw_house.py")
    page = script.PAGE.read_text()
    assert script.drawn(page) == page, "run scripts/draw_house.py"


def test_from_scratch():
    done = python(ROOT / "docs" / "from_scratch.py", check=True, timeout=30)
    assert done.stdout.count("from the loop as it stands") == 5
    assert "would cross unmarked from actor" in done.stdout
    assert "off: caught" in done.stdout


@pytest.mark.multiprocess
@pytest.mark.slow
def test_example_files_run_together(tmp_path, capsys):
    run = tmp_path / "run"
    command = ["train", f"{EXAMPLES}/reinforce.py", "num_steps=16", "--total-steps", "500"]
    command += ["--policy", f"{EXAMPLES}/split_learners.py", "--run-dir", str(run), "--quiet"]
    assert cli.main([*command, "--env", f"{EXAMPLES}/corridor.py:Corridor"]) == 0
    assert "steps: 512 environment steps" in capsys.readouterr().out
    assert cli.main(["eval", str(run), "--episodes", "2"]) == 0
    assert "over 2 episodes" in capsys.readouterr().out


@pytest.mark.multiprocess
@pytest.mark.slow
def test_example_from_python(tmp_path):
    done = python(EXAMPLES / "from_python.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mean return of 10 episodes: " in done.stdout
    assert (tmp_path / "curve.png").stat().st_size > 1000


@pytest.mark.multiprocess
@pytest.mark.slow
def test_the_readme_s_lines_of_python(tmp_path):
    """Takes about half a minute."""
    (lines,) = blocks(ROOT / "README.md", "python")
    done = python("-c", lines, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) > 400.0


def test_example_environment_compiles_into_the_loop(capsys):
    command = ["graph", f"{EXAMPLES}/reinforce.py", "num_steps=16", "--policy", "GPUOnly"]
    assert cli.main([*command, "--env", f"{EXAMPLES}/corridor.py:GraphCorridor"]) == 0
    assert capsys.readouterr().out.endswith("environments 0..7, cells: reset, iteration\n")


@pytest.mark.parametrize(
    "name",
    [
        *("corridor.py:Corridor", "corridor.py:GraphCorridor", "corridor.py:NativeCorridor"),
        "shop.py:Shop",
        *("thermostat.py:Thermostat", "thermostat.py:make_thermostat"),
        pytest.param("pong.py:make_pong", marks=pytest.mark.slow),
    ],
)
def test_environments_conform(name):
    assert check(f"{EXAMPLES}/{name}") == []


def excerpts() -> dict[str, list[str]]:
    """Returns the lines that the pages quote from the output of commands, by command."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for block in blocks(page, "console"):
            command, *lines = block.splitlines()
            found.setdefault(command, []).extend(line for line in lines if line.strip() != "...")
    return found


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, marks=() if "--format text" in one else pytest.mark.slow)
        for one in excerpts()
    ],
)
def test_printed_text(command, monkeypatch, capsys):
    """Every line of an excerpt is a line of its command's output, without source lines."""

    def plain(line: str) -> str:
        return re.sub(r"  @ algorithms/\w+\.py:\d+$", "", line)

    monkeypatch.chdir(ROOT)
    assert cli.main(shlex.split(command.removeprefix("$ msrl "))) == 0
    printed = {plain(line) for line in capsys.readouterr().out.splitlines()}
    missing = [line for line in excerpts()[command] if plain(line) not in printed]
    assert not missing, f"`{command}` no longer prints what the documentation shows: {missing}"


def test_quoted_source():
    """Python quoted in pages is in the files, except code that a page marks as a sketch."""
    sources = "".join(
        file.read_text()
        for folder in ("algorithms", "distribution", "docs/examples")
        for file in (ROOT / folder).glob("*.py")
    )
    for page in PAGES:
        for text in blocks(page, "python"):
            if not text.startswith("# sketch"):
                assert text in sources, f"{page.name} quotes what no file has:\n{text}"


@pytest.mark.parametrize("argv", commands(), ids=" ".join)
def test_commands_are_understood(argv):
    argv = [part for part in argv if part != "--help"]
    args, unknown = cli._parser(argv).parse_known_args(argv)
    assert not unknown
    for name in (getattr(args, "algorithm", None) or "ppo", getattr(args, "policy", None) or ""):
        if name.startswith("docs/"):
            assert (ROOT / name).is_file()


ELSEWHERE = {
    "my_hosts.yaml": "hosts of a reader's own: multiprocess/test_hosts.py",
    "fewer_hosts.yaml": "the same",
    "--device gpu": "GPUs: gpu/test_hollow.py",
    "msrl board": "it serves until it is ended: test_board.py",
    "--render": "a screen: nothing renders to one, test_looking.py has videos and errors",
    "halfcheetah.npz": "files of a reader's own: datasets/test_sources.py",
    "~/.minari": "the same",
    "gymnasium_robotics": "an extra that tests do not install: environments/test_goals.py",
}
"""Commands that no test of pages can run, and the tests that replace it."""


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_run(page, tmp_path):
    """In the page's order, unchanged except for shorter training and fewer trials.

    `scripts/train_ppo.sh` has set up its environment already; other commands than it and `msrl`
    have their own tests.
    """
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "space.yaml").write_text(blocks(ROOT / "docs" / "tuning.md", "yaml")[0])
    lines = [line for text in blocks(page, "bash") for line in text.splitlines()]
    lines = [line.replace("bash scripts/train_ppo.sh", "msrl train ppo") for line in lines]
    lines = [line for line in lines if line.startswith(("msrl ", "for "))]
    lines = [line for line in lines if not any(name in line for name in ELSEWHERE)]
    if any("RUN" in line or "runs" in line.split() for line in lines):
        run = "msrl train ppo --profile 5 --total-steps 60000 --stop-return nan --run-dir runs/RUN"
        _run(run, tmp_path)
    for line in lines:
        here = re.sub(r"runs/ppo-CartPole\S+|(?<= )RUN\b", "runs/RUN", line.split("  #")[0])
        here = here.replace("--trials 30", "--trials 3")
        if here.startswith("msrl train") and not {"--total-steps", "--help"} & {*here.split()}:
            here += " --total-steps 8192"
        _run(here, tmp_path)


def _run(line: str, folder: Path) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    how = {"cwd": folder, "env": env, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-c", line], check=False, **how)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done


def test_the_readme_leads_to_every_page():
    linked = {(ROOT / link).resolve() for link in LINK.findall((ROOT / "README.md").read_text())}
    pages = {page for kind in ("md", "ipynb") for page in (ROOT / "docs").rglob(f"*.{kind}")}
    assert pages - linked == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page):
    for link in LINK.findall(page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize(
    ("policy", "picture"),
    [
        ("SingleLearnerCoarse", "ppo_single_learner_coarse.svg"),
        pytest.param("SingleLearnerFine", "ppo_single_learner_fine.svg", marks=pytest.mark.slow),
    ],
)
def test_the_pictures_of_the_readme_are_drawn_by_the_command(policy, picture, capsys):
    job = ("--policy", policy, "--workers", "2")
    assert cli.main(["graph", "ppo", *job, "--format", "svg"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / picture).read_text()
    assert picture in (ROOT / "README.md").read_text()


def test_what_is_claimed_beside_others_has_a_test_that_exists():
    text = (ROOT / "docs" / "compared.md").read_text()
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 20
    for file, name in named:
        source = (ROOT / "tests" / file).read_text()
        assert not name or f"def {name}(" in source, f"{file} has no {name}"
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all("`" in row.split("|")[2] for row in rows if row.split("|")[2].startswith(" yes"))


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["-f", str(ROOT / ".ci" / "mkdocs.yml"), "-d", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"api"}
    built = {path.parent.name for path in tmp_path.rglob("index.html")}
    assert pages <= built
    text = (tmp_path / "api" / "index.html").read_text()
    for name in ("api.Trainer", "trained.run.train", "replay.Sampler.sample"):
        assert f'id="mindspore_rl.{name}"' in text
    page = (tmp_path / "add_an_environment" / "index.html").read_text()
    assert "mindspore_rl/environments/environment.py" in page


@pytest.mark.slow
def test_the_notebook_shows_progress_and_a_picture(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(ROOT / "docs" / "first_steps.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=resources).execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    training, returns, curve, actions = outputs
    told = "".join(output.get("text", "") for output in training)
    assert "env_steps 8,192/8,000" in told
    assert "stopped='steps'" in training[-1]["data"]["text/plain"]
    assert returns[-1]["data"]["text/plain"].startswith("array([")
    assert [sorted(o["data"]) for o in curve] == [["image/png", "text/plain"]]
    assert actions[-1]["data"]["text/plain"] == "array([1, 0], dtype=int32)"


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_first_walk_of_a_user(tmp_path):
    """Takes about two minutes on two idle cores, and much longer on busy ones."""
    import imageio.v3  # noqa: PLC0415

    runs = tmp_path / "walk"
    done = _run(f"bash {ROOT}/docs/first_walk.sh {runs}", tmp_path)
    assert imageio.v3.imread(runs / "shop-1" / "episode.mp4").shape[1:] == (64, 64, 3)
    assert "\nreturn " in done.stdout  # by onnxruntime alone
    for seed in (1, 2):
        text = (runs / f"shop-{seed}" / "evaluations.jsonl").read_text()
        assert len(text.splitlines()) == 4
    first = json.loads((runs / "shop-1-more" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["env_steps"] == 40960 + 1024
    names = {summary["name"] for summary in Board(runs).summaries()}
    assert {"cartpole", "shop-1", "shop-2", "shop-1-more"} <= names
