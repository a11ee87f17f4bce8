"""The documentation builds as a site, offline and without a warning; its pages fetch nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_of_the_documents_is_on_the_site(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists(), page.name
    assert "Lakestore keeps rows that change" in (site / "index.html").read_text()


def test_every_page_is_in_the_navigation(site: Path) -> None:
    shown = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}.html"' in shown, page.name


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        assert [found[0] for found in FETCHED.finditer(page.read_text())] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", style.read_text()), style.name


def test_the_reference_of_python_has_every_public_method_of_a_table(site: Path) -> None:
    text = (site / "python.html").read_text()
    for name in ("upsert", "delete", "append", "lookup", "scan", "changes", "writer"):
        assert f'id="lakestore.client.table.Table.{name}"' in text, name


def test_links_into_the_checkout_lead_to_files_of_the_site(site: Path) -> None:
    for page in site.glob("*.html"):
        for link in re.findall(r'href="([^"#:?]+)"', page.read_text()):
            if not link.startswith(("/", "data")):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
