"""The notebook runs, and shows progress and a picture."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "first_steps.ipynb"


@pytest.fixture(name="outputs")
def executed(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_first_steps(outputs):
    training, returns, curve, actions = outputs
    told = "".join(output.get("text", "") for output in training)
    assert "env_steps 8,192/8,000" in told
    assert "stopped='steps'" in training[-1]["data"]["text/plain"]
    assert returns[-1]["data"]["text/plain"].startswith("array([")
    assert [sorted(o["data"]) for o in curve] == [["image/png", "text/plain"]]
    assert actions[-1]["data"]["text/plain"] == "array([1, 0], dtype=int32)"
