"""The pages as a site: every link has a target, and every name of the API is included."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_it_is_built_without_a_warning(tmp_path):
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
    assert (
        "mindspore_rl/environments/environment.py"
        in (tmp_path / "add_an_environment" / "index.html").read_text()
    )
