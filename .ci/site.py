"""Adds pages to the site that are not in docs/: the READMEs, the changes, and the API."""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {
    "index.md": "README.md",
    "algorithms.md": "algorithms/README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "mappo.md": "algorithms/mappo.md",
}
MODULES = (
    "mindspore_rl.api",
    "mindspore_rl.trained.run",
    "mindspore_rl.policy",
    "mindspore_rl.environments.environment",
    "mindspore_rl.environments.spaces",
    "mindspore_rl.rl.networks",
    "mindspore_rl.rl.recurrent",
    "mindspore_rl.rl.action_distributions",
    "mindspore_rl.rl.losses",
    "mindspore_rl.rl.returns",
    "mindspore_rl.replay",
    "mindspore_rl.errors",
)
FILES = "files/"
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Adds these pages, and files of the project that pages link to."""
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=_linked(source)))
    style = (ROOT / ".ci" / "site.css").read_text(encoding="utf-8")
    files.append(File.generated(config, "site.css", content=style))
    modules = "\n\n".join(f"::: {module}" for module in MODULES)
    files.append(File.generated(config, "api.md", content=f"# API\n\n{modules}\n"))
    pages = [*ELSEWHERE.values(), *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    for source in pages:
        for path in filter(None, map(_outside, _targets(source))):
            if files.get_file_from_path(path) is None:
                content = (ROOT / path.removeprefix(FILES)).read_bytes()
                files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links of pages in docs/ to pages and files outside of it."""
    source = f"docs/{page.file.src_uri}"
    return _linked(source) if (ROOT / source).exists() else markdown


def _targets(source: str) -> list[str]:
    """Yields a page's link targets, relative to the project's root."""
    path = ROOT / source
    if not path.exists():
        return []
    found = LINK.findall(path.read_text(encoding="utf-8"))
    return [os.path.normpath(Path(source).parent / link) for link in found]


def _outside(target: str) -> str | None:
    """Returns the site's path of a file that is not a page; None: its path in docs/, or none."""
    if target.startswith("docs/") or target in ELSEWHERE.values() or not (ROOT / target).is_file():
        return None
    return f"{FILES}{target}"


def _linked(source: str) -> str:
    """Returns a page's text with the site's links."""
    places = {own: page for page, own in ELSEWHERE.items()}
    here = Path(places.get(source, source.removeprefix("docs/"))).parent

    def link(found: re.Match[str]) -> str:
        target = os.path.normpath(Path(source).parent / found[1])
        there = places.get(target) or _outside(target) or target.removeprefix("docs/")
        return f"]({os.path.relpath(there, here)}"

    return LINK.sub(link, (ROOT / source).read_text(encoding="utf-8"))
