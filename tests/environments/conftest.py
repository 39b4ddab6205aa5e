"""Environments of a test's own, written for both libraries."""

import pytest


@pytest.fixture(params=["gym", "gymnasium"])
def own(tmp_path, request):
    """Names a class of the module's `OWN`, in which LIBRARY stands for a library."""
    path = tmp_path / "own.py"
    path.write_text(request.module.OWN.replace("LIBRARY", request.param))

    def named(name):
        return f"{path}:{name}"

    named.path, named.library = path, request.param
    return named
