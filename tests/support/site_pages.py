"""The site's pages that lie outside docs/, and links between both as the site has them: hooks of mkdocs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "GUARANTEES.md": "GUARANTEES.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "jepsen/README.md": "jepsen-readme.md",
}
"""Path in the checkout to the page's name."""
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]*)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """The pages outside docs/, and the examples, beside those in it."""
    for path, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    for example in sorted((ROOT / "examples").rglob("*")):
        if example.is_file():
            files.append(File.generated(config, example.relative_to(ROOT).as_posix(), abs_src_path=str(example)))
    files.append(File.generated(config, "LICENSE.txt", abs_src_path=str(ROOT / "LICENSE")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A page's text with its links as the site has them."""
    here = Path(page.file.abs_src_path).parent

    def link(found: re.Match[str]) -> str:
        return f"]({target(here, found[1])}{found[2] or ''})"

    return _LINK.sub(link, markdown)


def target(folder: Path, link: str) -> str:
    """The place on the site of a file of the checkout that a page in a folder links to."""
    try:
        path = (folder / link).resolve().relative_to(ROOT).as_posix()
    except ValueError:
        return link
    if path == "LICENSE":
        return "LICENSE.txt"
    return PAGES.get(path, path.removeprefix("docs/"))
