import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("mindspore_rl", "algorithms", "distribution")
MAPPED = {"mindspore_rl": "mindspore_rl"} | {
    folder: f"mindspore_rl/{folder}" for folder in SOURCES[1:]
}


@pytest.mark.slow
def test_wheel_holds_one_package_with_algorithms_and_policies(tmp_path):
    # A copy: a build leaves build/ behind, and what lies there would enter the next wheel.
    source = tmp_path / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "requirements.txt", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    built = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        requirements = archive.read(metadata).decode()
        entry_points = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"mindspore_rl", metadata.split("/")[0]}
    assert "numpy<2,>=1.26" in requirements.replace(" ", "")
    assert "msrl = mindspore_rl.cli:main" in entry_points
    expected = {
        f"{target}/{path.relative_to(ROOT / folder)}"
        for folder, target in MAPPED.items()
        for pattern in ("*.py", "*.yaml", "*.cpp", "*.c", "*.cu", "*.h")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert expected - names == set()
