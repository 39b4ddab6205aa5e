"""Tests must detect the classic mistakes of distributed learning, injected into generated code."""

import re

import pytest

from tests.compiler import inproc


def _mean_of_means(source: str) -> str:
    """Each replica divides by its own number of samples, and the means are averaged."""
    return re.sub(
        r"(gradient_function\(.*?, )(\d+)\)", r"\1\2 // 8 * len(w.env_indices) * 3)", source
    )


def _gradient_twice(source: str) -> str:
    """The sum over replicas is computed twice."""
    return re.sub(r"(gradient_function\(.*?, )(\d+)\)", r"\1\2 / 3)", source)


def _noise_by_rank(source: str) -> str:
    """Every replica numbers its environments from 0."""
    return source.replace(
        "def run(w):", "def run(w):\n    w.env_indices = range(len(w.env_indices))", 1
    )


BUGS = {
    "mean of means": _mean_of_means,
    "gradient counted twice": _gradient_twice,
    "noise by local index": _noise_by_rank,
}
SHOWS = {
    "mean of means": "gradient",
    "gradient counted twice": "gradient",
    "noise by local index": "action",
}


@pytest.fixture(scope="module")
def job():
    return inproc.request(inproc.PROGRAMS / "two_phase.py", "MultipleLearners", 3)


@pytest.fixture(scope="module")
def reference(job, tmp_path_factory):
    return inproc.run_reference(job, tmp_path_factory.mktemp("reference"))


def test_nothing_injected(job, reference, tmp_path):
    assert inproc.run_and_compare(job, reference, tmp_path) == []


@pytest.mark.parametrize("bug", BUGS)
def test_injected_bug_shows(bug, job, reference, tmp_path):
    def spoil(folder):
        (file,) = (folder / "fragments").glob("*.py")
        source = file.read_text()
        spoiled = BUGS[bug](source)
        assert spoiled != source
        file.write_text(spoiled)

    wrong = inproc.run_and_compare(job, reference, tmp_path, spoil)
    assert any(f"boundary:{SHOWS[bug]}" in line for line in wrong)
