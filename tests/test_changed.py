"""Which tests `make check` runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import changed, house
from tests.support.changed import ALWAYS, DOCS, FOLDERS, UNIT, chosen


def test_a_changed_module_stands_for_the_folder_of_its_room() -> None:
    assert f"{UNIT}/commit" in chosen(["server/lakestore_server/commit/queue.py"])
    assert f"{UNIT}/iceberg" in chosen(["server/lakestore_server/catalog/contents.py"])
    assert {f"{UNIT}/spark", f"{UNIT}/source"} <= set(chosen(["spark_reader/lakestore_spark/__init__.py"]))


def test_unit_tests_that_import_a_changed_module_are_chosen_too() -> None:
    picked = chosen(["lakestore/union/verify.py"])
    importing = {
        str(path.relative_to(house.ROOT))
        for path in (house.ROOT / UNIT).rglob("test_*.py")
        if "from lakestore.union.verify import" in path.read_text()
    }
    assert importing
    assert all(file in picked or str(Path(file).parent) in picked for file in importing)


def test_a_module_that_no_unit_test_imports_takes_the_tests_of_its_importers() -> None:
    tests = [path for path in (house.ROOT / UNIT).rglob("test_*.py") if "lakestore_server.service" in path.read_text()]
    assert not tests
    assert not (house.ROOT / UNIT / "service").exists()
    assert len(chosen(["server/lakestore_server/service.py"])) > len([ALWAYS])


@pytest.mark.parametrize(
    ("file", "picked"),
    [
        ("tests/unit/commit/test_pace.py", ["tests/unit/commit/test_pace.py"]),
        ("tests/network/test_client.py", []),
        ("docs/tables.md", [DOCS]),
        ("Makefile", []),
        ("lakestore/gone.py", []),
    ],
)
def test_other_files(file: str, picked: list[str]) -> None:
    assert chosen([file]) == sorted([ALWAYS, *picked])


def test_a_file_of_a_chosen_folder_is_not_named_again() -> None:
    files = ["tests/unit/commit/test_pace.py", "server/lakestore_server/commit/queue.py"]
    assert "tests/unit/commit/test_pace.py" not in chosen(files)


def test_every_folder_of_unit_tests_belongs_to_a_room_that_exists() -> None:
    rooms = {house.room_of(module) for module in house.modules()}
    assert set(FOLDERS) <= rooms
    folders = {folder for room in rooms for folder in FOLDERS.get(room, (room.rpartition(".")[2],))}
    here = {path.name for path in (house.ROOT / UNIT).iterdir() if (path / "__init__.py").exists()}
    assert here <= folders


def test_changed_files_are_those_of_the_branch_and_those_new_to_git(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    for name in ("same", "gone", "edited"):
        (tmp_path / name).write_text("1")
    git("add", "-A")
    git("commit", "-m", "one")
    git("checkout", "-b", "branch")
    (tmp_path / "committed").write_text("1")
    git("add", "-A")
    git("commit", "-m", "two")
    (tmp_path / "gone").unlink()
    (tmp_path / "edited").write_text("2")
    (tmp_path / "new").write_text("1")
    assert sorted(changed.changed(tmp_path)) == ["committed", "edited", "new"]


def test_without_git_nothing_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    assert changed.changed(tmp_path) == []
