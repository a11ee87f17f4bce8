"""Tables that PyIceberg made in the catalog become tables of ours, and plain tables again; without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore.errors import Conflict, Corrupt, Invalid, NotFound
from lakestore.iceberg import adopted_rows
from lakestore.union import lake_snapshot
from lakestore.union.verify import verify
from lakestore_server.main import Server
from tests.support.log_tierer import LogTierer
from tests.support.sql_views import view_request

NAME, SOURCE = "shop.orders", "old.orders"
TAGS = pa.list_(pa.field("element", pa.struct([pa.field("name", pa.string()), pa.field("n", pa.int32())])))
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", TAGS), ("price", pa.decimal128(9, 2))])


@pytest.fixture
def catalog(server: Server) -> RestCatalog:
    return RestCatalog("lake", uri=f"http://{server.about['http']}/iceberg")


def _rows(begin: int, end: int) -> pa.Table:
    ids = range(begin, end)
    columns = [
        list(ids),
        [f"ñ {i}" for i in ids],
        [[{"name": "t", "n": i}] * (i % 3) for i in ids],
        [None for _ in ids],
    ]
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _made(catalog: RestCatalog, rows: int = 1_000, files: int = 4, name: str = SOURCE) -> list[dict[str, Any]]:
    """A plain table of several files."""
    catalog.create_namespace_if_not_exists("old")
    table = catalog.create_table(name, SCHEMA)
    for number in range(files):
        table.append(_rows(number * rows // files, (number + 1) * rows // files))
    model: list[dict[str, Any]] = _rows(0, rows).to_pylist()
    return model


def _files(catalog: RestCatalog, name: str) -> list[str]:
    return sorted(catalog.load_table(name).inspect.files()["file_path"].to_pylist())


def _check(lake: ls.Lake, model: list[dict[str, Any]]) -> None:
    lake_snapshot.forget()
    found = lake.table(NAME).scan().to_arrow().to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == model
    said = lake.sql(f"SELECT count(*), sum(id) FROM {NAME}").to_arrow().to_pylist()
    assert list(said[0].values()) == [len(model), sum(row["id"] for row in model)]
    assert verify(lake.transport, NAME).problems() == []


def test_keyed_table_is_adopted_and_released(lake: ls.Lake, catalog: RestCatalog) -> None:
    model = _made(catalog)
    files = _files(catalog, SOURCE)
    table = lake.adopt(SOURCE, NAME, primary_key=["id"])
    assert _files(catalog, NAME) == files
    assert not catalog.table_exists(SOURCE)
    assert [each.name for each in lake.tables()] == [NAME]
    _check(lake, model)
    table.upsert([{**model[5], "name": "five"}])
    table.delete([{"id": 6}])
    assert [row["name"] for row in table.lookup([{"id": 5}, {"id": 6}, {"id": 7}]).to_pylist()] == ["five", "ñ 7"]
    model[5]["name"] = "five"
    del model[6]
    _check(lake, model)
    with pytest.raises(Conflict, match="has 2 changes that are not in the lake yet"):
        lake.release(NAME)


def test_numbers_of_adopted_rows_are_those_of_the_log(lake: ls.Lake, catalog: RestCatalog) -> None:
    _made(catalog)
    table = lake.adopt(SOURCE, NAME, primary_key=["id"], buckets=3)
    names = ["id", "__bucket", "__offset", "__timestamp"]
    cold = {row["id"]: row for row in table.scan(columns=names).to_arrow().to_pylist()}
    hot = {row["id"]: row for row in table.lookup([{"id": id} for id in cold], columns=names).to_pylist()}
    assert cold == hot
    for id in (0, 8, 999):
        where = f"__bucket = {cold[id]['__bucket']} and __offset = {cold[id]['__offset']}"
        assert table.scan(columns=["id"], where=where).to_arrow()["id"].to_pylist() == [id]
    assert table.scan(where="__offset >= 0").count() == 1_000


def test_log_table_goes_on_and_is_released(server: Server, lake: ls.Lake, catalog: RestCatalog) -> None:
    model = _made(catalog)
    table = lake.adopt(SOURCE, NAME)
    _check(lake, model)
    before = lake.snapshot().token
    table.append(_rows(5_000, 5_010))
    LogTierer(server, lake.transport).flush(NAME)
    _check(lake, model + _rows(5_000, 5_010).to_pylist())
    old = table.scan(columns=["id"], at=before).to_arrow()
    assert sorted(old["id"].to_pylist()) == list(range(1_000))
    assert lake.release(NAME, to="old.plain") == []
    plain = catalog.load_table("old.plain")
    assert [part.name for part in plain.schema().fields] == SCHEMA.names
    assert plain.scan().to_arrow().num_rows == 1_010
    assert not [key for key in plain.properties if key.startswith("lakestore.")]
    assert lake.tables() == []
    plain.append(_rows(1_010, 1_011))  # anybody may write again
    with pytest.raises(Invalid, match="has row numbers of a table that was released or half"):
        lake.adopt("old.plain", NAME, primary_key=["id"])


def test_files_of_another_table_are_refused(lake: ls.Lake, catalog: RestCatalog) -> None:
    _made(catalog, 10, 1)
    other = catalog.create_table("old.other", SCHEMA)
    other.add_files(_files(catalog, SOURCE), check_duplicate_files=False)
    with pytest.raises(Invalid, match="lies outside the table's folder"):
        lake.adopt("old.other", NAME, primary_key=["id"])
    with catalog.load_table(SOURCE).transaction() as update:
        update.set_properties({"gc.enabled": "false"})
    with pytest.raises(Invalid, match=r"says gc\.enabled=false"):
        lake.adopt(SOURCE, NAME, primary_key=["id"])


@pytest.mark.parametrize("rows", [1_000, 200_000])
def test_other_engines_read_the_head(server: Server, lake: ls.Lake, catalog: RestCatalog, rows: int) -> None:
    """Position deletes of a presented cut are found by offset files: of small data files, and of large ones."""
    _made(catalog, rows, 2)
    table = lake.adopt(SOURCE, NAME, primary_key=["id"])
    table.delete([{"id": 6}, {"id": rows - 1}])
    table.upsert([{"id": 7, "name": "seven"}])
    now = RestCatalog("now", uri=f"http://{server.about['http']}/iceberg", warehouse="now")
    found = {row["id"]: row["name"] for row in now.load_table(NAME).scan().to_arrow().to_pylist()}
    assert found == {**{i: f"ñ {i}" for i in range(rows - 1) if i != 6}, 7: "seven"}


@pytest.mark.parametrize("other", [0, 3])
def test_duplicate_key_is_refused_with_both_files(lake: ls.Lake, catalog: RestCatalog, other: int) -> None:
    _made(catalog)
    table = catalog.load_table(SOURCE)
    table.append(_rows(other * 250 + 7, other * 250 + 8))
    said = rf"cannot have the key \(id\): id={other * 250 + 7} is in a row of (\S+) and in another row of (\S+)"
    with pytest.raises(Invalid, match=said) as caught:
        lake.adopt(SOURCE, NAME, primary_key=["id"])
    assert sum(path in caught.value.message for path in _files(catalog, SOURCE)) == 2
    assert lake.tables() == []
    assert catalog.load_table(SOURCE).scan().to_arrow().num_rows == 1_001


def test_two_rows_of_one_file_are_refused(lake: ls.Lake, catalog: RestCatalog) -> None:
    _made(catalog, 4, 1)
    catalog.load_table(SOURCE).append(pa.concat_tables([_rows(9, 10), _rows(9, 10)]).combine_chunks())
    with pytest.raises(Invalid, match=r"id=9 is in a row of (\S+) and in another row of \1"):
        lake.adopt(SOURCE, NAME, primary_key=["id"])


def test_what_cannot_be_adopted_is_refused(lake: ls.Lake, catalog: RestCatalog) -> None:
    _made(catalog, 10, 1)
    catalog.load_table(SOURCE).append(pa.table({"name": ["x"]}, schema=pa.schema([("name", pa.string())])))
    with pytest.raises(Invalid, match="column 'id' has nulls in data file"):
        lake.adopt(SOURCE, NAME, primary_key=["id"])
    with pytest.raises(Invalid, match="has no column 'nothing' for the key"):
        lake.adopt(SOURCE, NAME, primary_key=["nothing"])
    with pytest.raises(NotFound, match=r"the catalog has no table old\.gone"):
        lake.adopt("old.gone", NAME, primary_key=["id"])
    lake.create_table(NAME, {"id": "int64"}, primary_key=["id"])
    with pytest.raises(Conflict, match="exists already"):
        lake.adopt(SOURCE, NAME, primary_key=["name"])
    with pytest.raises(Invalid, match="is a Lakestore table already"):
        lake.adopt(NAME, "shop.more", primary_key=["id"])
    with pytest.raises(Invalid, match="is for adoptions that run"):
        lake.adopt(SOURCE, "shop.more__adopting", primary_key=["id"])
    parted = catalog.load_table(SOURCE)
    with parted.update_spec() as update:
        update.add_identity("price")
    parted.append(_rows(5_000, 5_001))
    with parted.update_spec() as update:
        update.remove_field("price")
    with parted.update_schema() as columns:
        columns.delete_column("price")
    with pytest.raises(Invalid, match="has an earlier partitioning, whose field 'price' is of no column that is there"):
        lake.adopt(SOURCE, "shop.more")


def _ends(stage: str) -> Callable[[str, int, int], None]:
    def tell(at: str, done: int, total: int) -> None:
        if at == stage and done > total // 3:
            raise KeyboardInterrupt

    return tell


def test_the_name_of_a_view_is_refused_before_a_row_is_read(
    server: Server, lake: ls.Lake, catalog: RestCatalog
) -> None:
    _made(catalog, 40, 2)
    catalog.create_namespace("shop")
    server.catalog.views.create("shop", view_request("orders", spark="SELECT 1"))
    with pytest.raises(Conflict, match=r"there is a view shop\.orders: choose another name"):
        lake.adopt(SOURCE, NAME)
    assert [each.name for each in lake.tables()] == []


def test_killed_run_goes_on(lake: ls.Lake, catalog: RestCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _made(catalog)
    monkeypatch.setattr("lakestore.client.adoption.COMMIT_ROWS", 300)
    for end in ("rows", "numbers"):
        with pytest.raises(KeyboardInterrupt):
            lake.adopt(SOURCE, NAME, primary_key=["id"], tell=_ends(end))
        with pytest.raises(NotFound):
            lake.table(NAME)
        assert catalog.load_table(SOURCE).scan().to_arrow().num_rows == 1_000
    rows: list[int] = []
    lake.adopt(SOURCE, NAME, primary_key=["id"], tell=lambda stage, at, _: rows.append(at) if stage == "rows" else None)
    assert rows == []  # all were there
    _check(lake, model)


def test_killed_run_goes_on_in_a_process_that_wrote_before_it(
    server: Server, lake: ls.Lake, catalog: RestCatalog
) -> None:
    model = _made(catalog)
    with ls.connect(server.about["grpc"]) as other:
        other.create_table("shop.more", SCHEMA).append(_rows(0, 1))
        with pytest.raises(KeyboardInterrupt):
            lake.adopt(SOURCE, NAME, primary_key=["id"], tell=_ends("numbers"))
        other.adopt(SOURCE, NAME, primary_key=["id"])
    _check(lake, model)


def test_table_that_changed_begins_again(lake: ls.Lake, catalog: RestCatalog) -> None:
    _made(catalog)
    with pytest.raises(KeyboardInterrupt):
        lake.adopt(SOURCE, NAME, primary_key=["id"], tell=_ends("numbers"))
    catalog.load_table(SOURCE).append(_rows(1_000, 1_001))

    def meanwhile(stage: str, done: int, total: int) -> None:
        if stage == "numbers" and done == total:
            catalog.load_table(SOURCE).append(_rows(1_001, 1_002))

    with pytest.raises(Conflict, match="was changed while it was adopted"):
        lake.adopt(SOURCE, NAME, primary_key=["id"], tell=meanwhile)
    lake.adopt(SOURCE, NAME, primary_key=["id"])
    _check(lake, _rows(0, 1_002).to_pylist())


@pytest.mark.parametrize("key", [["id"], []])
def test_a_table_begins_with_its_adoption(
    server: Server, lake: ls.Lake, catalog: RestCatalog, monkeypatch: pytest.MonkeyPatch, key: list[str]
) -> None:
    """At positions of the load no reader sees a part of the rows. Changes from `earliest` have all of them."""
    _made(catalog)
    monkeypatch.setattr("lakestore.client.adoption.COMMIT_ROWS", 300)
    before: list[str] = []
    table = lake.adopt(SOURCE, NAME, primary_key=key, tell=lambda *_: before.append(lake.snapshot().token))
    for token in before:
        with pytest.raises(Invalid, match="did not exist at this position"):
            table.scan(at=token).to_arrow()
        with pytest.raises(Invalid, match="did not exist at this position"):
            lake.sql(f"FROM {NAME}", at=token).to_arrow()
        if key:
            with pytest.raises(Invalid, match="did not exist at this position"):
                table.lookup([{"id": 1}], at=token)
        cut = RestCatalog("at", uri=f"http://{server.about['http']}/iceberg", warehouse=f"at:{token}")
        with pytest.raises(NoSuchTableError):
            cut.load_table(NAME)
        assert cut.list_tables("shop") == []
    assert table.scan(at=lake.snapshot().token).count() == 1_000
    assert sum(batch.table.num_rows for batch in table.changes("earliest", until="now")) == 1_000


def test_the_table_of_a_running_adoption_keeps_name_and_columns(lake: ls.Lake, catalog: RestCatalog) -> None:
    _made(catalog)
    with pytest.raises(KeyboardInterrupt):
        lake.adopt(SOURCE, NAME, primary_key=["id"], tell=_ends("numbers"))
    staging = lake.table(f"{NAME}__adopting")
    said = "takes the rows of an adoption, which gives it its name"
    with pytest.raises(Conflict, match=said):
        staging.rename("shop.half")
    with pytest.raises(Conflict, match=said):
        staging.alter(add={"more": "int64"})
    lake.drop_table(staging.name)
    with pytest.raises(Conflict, match=said):
        lake.undrop(staging.name, as_name="shop.half")


def test_data_file_that_is_named_twice_is_refused(lake: ls.Lake, catalog: RestCatalog) -> None:
    """Its offset file has one number for a position, and two rows would have it."""
    _made(catalog)
    catalog.load_table(SOURCE).add_files(_files(catalog, SOURCE)[:1], check_duplicate_files=False)
    with pytest.raises(Invalid, match=r"has the data file \S+ 2 times"):
        lake.adopt(SOURCE, NAME)


def test_row_of_another_writer_is_refused(lake: ls.Lake, catalog: RestCatalog) -> None:
    _made(catalog)

    def meanwhile(stage: str, done: int, total: int) -> None:
        if stage == "numbers" and done == total:
            lake.table(f"{NAME}__adopting").upsert(_rows(-1, 0))

    with pytest.raises(Conflict, match="somebody else wrote to it"):
        lake.adopt(SOURCE, NAME, primary_key=["id"], tell=meanwhile)
    with pytest.raises(NotFound):
        lake.table(NAME)


def test_damaged_offset_file_never_answers(lake: ls.Lake, catalog: RestCatalog) -> None:
    _made(catalog, 10, 1)
    table = lake.adopt(SOURCE, NAME, primary_key=["id"])
    [file] = _files(catalog, NAME)
    path = Path(adopted_rows.place_of(file, table.definition.uuid).removeprefix("file://"))
    assert adopted_rows.data_file_of(str(path)) == file.removeprefix("file://")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Corrupt, match="does not match its checksum"):
        table.scan(columns=["id", "__offset"]).to_arrow()
    path.unlink()
    table.delete([{"id": 8}])
    with pytest.raises(Corrupt, match=r"its offset file .* is missing"):
        table.scan(columns=["id"]).to_arrow()


def test_the_end_is_there_after_a_restart(tmp_path: Path) -> None:
    from lakestore_server.settings import Settings

    settings = Settings(tmp_path / "ein Ordner", port=0, http_port=0, lease_grace_seconds=0.0)
    for number in range(3):
        server = Server(settings)
        server.start()
        try:
            with ls.connect(server.about["grpc"]) as lake:
                if not number:
                    _made(RestCatalog("lake", uri=f"http://{server.about['http']}/iceberg"))
                    lake.adopt(SOURCE, NAME, primary_key=["id"])
                _check(lake, _rows(0, 1_000).to_pylist())
        finally:
            server.close()


def test_plain_rows_cannot_be_appended_to_an_adopted_table(lake: ls.Lake, catalog: RestCatalog) -> None:
    _made(catalog, 10, 1)
    lake.adopt(SOURCE, SOURCE, primary_key=["id"])
    table = catalog.load_table(SOURCE)
    more = table.scan().to_arrow().slice(0, 1)
    with pytest.raises(Exception, match=r"rows of old\.orders are written through Lakestore"):
        table.append(more)
    assert lake.table(SOURCE).scan().count() == 10


def test_commands(
    server: Server, lake: ls.Lake, catalog: RestCatalog, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("LAKESTORE_SERVER", server.about["grpc"])
    _made(catalog)
    adopt = ["adopt", f"lake.{SOURCE}", "--as", NAME]
    assert run_command(adopt) == 1
    assert "say the columns of the primary key with --key, or --log" in capsys.readouterr().err
    assert run_command(["adopt", f"prod.{SOURCE}", "--as", NAME, "--log"]) == 1
    assert "this server has no catalog 'prod'" in capsys.readouterr().err
    assert run_command([*adopt, "--key", "id"]) == 0
    said = capsys.readouterr()
    assert f"table {NAME} has the 1,000 rows of lake.{SOURCE}; no data file was rewritten" in said.out
    assert "rows indexed, of 1,000 rows: 1,000 rows" in said.err
    assert run_command(["release", NAME, "--to", SOURCE, "--yes"]) == 0
    assert f"{SOURCE} is a plain Iceberg table of the catalog now" in capsys.readouterr().out
    assert catalog.load_table(SOURCE).scan().to_arrow().num_rows == 1_000
    assert run_command([*adopt, "--key", "id", "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)
    assert run_command(["release", NAME, "--to", SOURCE, "--yes", "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)
