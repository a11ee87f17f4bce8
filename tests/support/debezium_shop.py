"""A PostgreSQL database with every type and every kind of change, and its tables compared with the lake's.

- `Shop` makes the schema, changes rows by a seed, and adds a fence: a row whose event lies behind all earlier ones.
- A table is equal if the keys are the same and each value that Debezium sends is the same.
- `KINDS` says how a column of each type is compared; `UNSENT` names the columns that Debezium never sends.
"""

from __future__ import annotations

import base64
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from datetime import time as day_time
from decimal import Decimal
from typing import Any

import numpy as np

import lakestore as ls
from tests.support.postgres import Postgres

UNSENT = frozenset({"poly"})
"""Columns of types that Debezium leaves out unless `include.unknown.datatypes` is set."""


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    return None if value is None else str(value)


def _decimal(value: Any) -> Any:
    if isinstance(value, list):
        return [_decimal(part) for part in value]
    return value if value is None else str(Decimal(str(value)).normalize())


def _number(value: Any) -> Any:
    return value if value is None else str(float(value))


def _single(value: Any) -> Any:
    return value if value is None else str(np.float32(value))


def _moment(value: Any) -> Any:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value if value is None else value.replace(tzinfo=None).isoformat()


def _day(value: Any) -> Any:
    return date.fromisoformat(value.rstrip("Z")).isoformat() if isinstance(value, str) else _iso(value)


def _clock(value: Any) -> Any:
    return day_time.fromisoformat(value.rstrip("Z")).isoformat() if isinstance(value, str) else _iso(value)


def _iso(value: Any) -> Any:
    return None if value is None else value.isoformat()


def _bytes(value: Any) -> Any:
    value = base64.b64decode(value) if isinstance(value, str) else value
    return None if value is None else value.hex()


def _bits(value: Any) -> Any:
    value = base64.b64decode(value) if isinstance(value, str) else value
    return None if value is None else int.from_bytes(value, "little")


def _point(value: Any) -> Any:
    return None if value is None else [float(value["x"]), float(value["y"])]


def _json(value: Any) -> Any:
    return None if value is None else json.loads(value, parse_float=str)


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of a type are compared."""

    shown: str = "{c}"
    """The SQL expression of a column `{c}`, whose JSON is PostgreSQL's side."""
    ours: Callable[[Any], Any] = _same
    """The lake's value in the same form."""
    theirs: Callable[[Any], Any] = _same
    """The form of PostgreSQL's value, where SQL does not make it."""


_ISO_INTERVAL = (
    "'P' || extract(year from {c}) || 'Y' || extract(month from {c}) || 'M' || extract(day from {c}) || 'DT' ||"
    " extract(hour from {c}) || 'H' || extract(minute from {c}) || 'M' || trim_scale(extract(second from {c})) || 'S'"
)
_MICROSECONDS = (
    "((extract(year from {c}) * 12 + extract(month from {c})) * 2629800 + extract(day from {c}) * 86400 +"
    " extract(hour from {c}) * 3600 + extract(minute from {c}) * 60 + extract(second from {c}))"
)


def _interval(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else _decimal(Decimal(value) / 1_000_000)


PLAIN = Kind()
KINDS: Mapping[str, Kind] = {
    "text": Kind("{c}::text", _text),
    "numeric": Kind("{c}::text", _decimal, _decimal),
    "numeric[]": Kind("{c}::text[]", _decimal, _decimal),
    "money": Kind("{c}::numeric::text", _decimal, _decimal),
    "real": Kind("{c}::text", _single, _single),
    "double precision": Kind("{c}::text", _number, _number),
    "timestamp": Kind("{c}", _moment, _moment),
    "timestamptz": Kind("{c}", _moment, _moment),
    "date": Kind("{c}", _day, _day),
    "time": Kind("{c}", _clock, _clock),
    "timetz": Kind("({c} at time zone 'UTC')::time", _clock, _clock),
    "oid": Kind("{c}::bigint"),
    "bytea": Kind("encode({c}, 'hex')", _bytes),
    "bit(1)": Kind("{c} = B'1'"),
    "bit": Kind("{c}::text", _bits, lambda value: None if value is None else int(value or "0", 2)),
    "point": Kind("case when {c} is null then null else array[{c}[0], {c}[1]] end", _point,
                  lambda value: None if value is None else [float(part) for part in value]),
    "hstore": Kind("{c}::json::text", _json, _json),
    "interval": Kind(_MICROSECONDS + "::text", _interval, _decimal),
}  # fmt: skip
"""By the name of a type without its length; other types are compared as PostgreSQL's JSON has them."""
TEXTS = Kind("{c}::text", _text)
STRING_INTERVAL = Kind(_ISO_INTERVAL)
"""Intervals of a connector with `interval.handling.mode: string`."""

KITCHEN: Mapping[str, str] = {
    "id": "bigint primary key", "n_num": "numeric", "n_10_2": "numeric(10,2)", "n_38_10": "numeric(38,10)",
    "n_20_0": "numeric(20,0)", "n_neg": "numeric(5,-2)", "m": "money", "u": "uuid", "j": "json", "jb": "jsonb",
    "x": "xml", "ia": "int[]", "ta": "text[]", "na": "numeric(10,2)[]", "tstz": "timestamptz", "ts": "timestamp",
    "ts3": "timestamp(3)", "ts0": "timestamp(0)", "d": "date", "t": "time", "t3": "time(3)", "ttz": "timetz",
    "iv": "interval", "by": "bytea", "e": "app.mood", "b1": "bit(1)", "b8": "bit(8)", "vb": "bit varying(20)",
    "p": "point", "poly": "polygon", "h": "hstore", "r4": "real", "r8": "double precision", "s": "smallint",
    "i": "int", "c": "char(5)", "vc": "varchar(20)", "txt": "text", "big": "text", "bo": "boolean", "ip": "inet",
    "cd": "cidr", "mac": "macaddr", "ir": "int4range", "tsr": "tstzrange", "tsv": "tsvector", "o": "oid",
}  # fmt: skip
SCHEMA = f"""
create extension hstore;
create schema app;
create type app.mood as enum ('sad', 'ok', 'happy');
create table app.kitchen ({", ".join(f'"{name}" {kind}' for name, kind in KITCHEN.items())});
create table app.comp (a int, b text, c date, v numeric(12,4), note text, primary key (a, b, c));
create table app.toast (id int primary key, n int not null, big text, doc jsonb, raw bytea, words text[]);
create table app."MiXed Case" ("Id" int primary key, "Some Col" text, "select" int);
create table app.evolve (id int primary key, name text, qty int);
create table app.cleared (id int primary key, n int, txt text);
create table app.keyless (id int not null, n int, txt text, big text);
create table app.told (id int, n int, txt text);
create table app.debit (id int primary key, amount bigint not null);
create table app.credit (id int primary key, amount bigint not null);
create table app.fence (id int primary key, n int not null);
alter table app.toast alter big set storage external, alter raw set storage external;
alter table app.keyless replica identity full, alter big set storage external;
alter table app.told replica identity full;
create schema audit;
create table audit.told (op text, id int, n int, txt text);
create function audit.tell() returns trigger language plpgsql as $$ begin
  if tg_op = 'DELETE' then insert into audit.told select 'd', old.*;
  else insert into audit.told select case tg_op when 'INSERT' then 'c' else 'u' end, new.*; end if;
  return null; end $$;
"""
ROWS = """
insert into app.kitchen (id,n_num,n_10_2,n_38_10,n_20_0,n_neg,m,u,j,jb,x,ia,ta,na,tstz,ts,ts3,ts0,d,t,t3,ttz,iv,by,e,b1,
b8,vb,p,poly,h,r4,r8,s,i,c,vc,txt,big,bo,ip,cd,mac,ir,tsr,tsv,o) values
(1, 123.456789012345678901234567890, 99999999.99, 1234567890123456789012345678.0123456789, 12345678901234567890, 12300,
 '$1,234.56', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": 1,  "b":[1,2]}', '{"a": 1.10, "z": null, "k": "ü"}',
 '<a>1</a>', '{1,NULL,3}', '{a,"b,c",NULL,"d\\"q"}', '{1.10,2.20,NULL}', '2024-02-29 23:59:59.999999+05:30',
 '2024-02-29 23:59:59.999999', '2024-02-29 23:59:59.999', '2024-02-29 23:59:59', '2024-02-29', '23:59:59.999999',
 '23:59:59.999', '23:59:59.999999+05:30', '1 year 2 mons 3 days 04:05:06.789', '\\xdeadbeef00ff', 'happy', B'1',
 B'10101010', B'101', '(1.5,-2.25)', '((0,0),(1,1),(1,0))', 'a=>1,b=>NULL,"c d"=>"x"', 3.14, 2.718281828459045, 32767,
 2147483647, 'ab', 'varchar', 'text é 漢字 🎉', repeat('x', 10) || md5('1'), true, '192.168.1.1/24', '10.0.0.0/8',
 '08:00:2b:01:02:03', '[1,10)', '[2024-01-01,2024-02-01)', 'a fat cat', 42),
(2, -0.000001, -0.01, -0.0000000001, -1, -99900, '-$0.01', '00000000-0000-0000-0000-000000000000', 'null', '[]', null,
 '{}', '{}', null, '1900-01-01 00:00:00+00', '1900-01-01', '1969-12-31 23:59:59.999', '1969-12-31 23:59:59',
 '1900-01-01', '00:00:00', '00:00:00', '00:00:00+00', '-1 days', '\\x', 'sad', B'0', B'00000000', B'', '(0,0)', null,
 '', -0.0, '-0', -32768, -2147483648, '', '', '', '', false, '::1', '::/0', 'ff:ff:ff:ff:ff:ff', 'empty', 'empty', '',
 0),
(4, 7, 0.5, 0, 0, 0, '$92233720368547758.07'::money, 'ffffffff-ffff-ffff-ffff-ffffffffffff', '"s"', '"s"', '<b/>',
 '{2147483647}', '{"null",NULL}', '{}', '9999-12-31 23:59:59.999999+00', '9999-12-31 23:59:59.999999',
 '9999-12-31 23:59:59.999', '9999-12-31 23:59:59', '9999-12-31', '12:00:00', '12:00:00', '12:00:00-08', '100 years',
 decode(repeat('00ff', 2000), 'hex'), 'ok', B'1', B'11111111', B'1111', '(1e308,-1e-308)', null, 'k=>v', 1e30, 1e300, 0,
 0, 'abcde', 'x', E'tab\\tnl\\nq"''\\\\', repeat(md5('4'), 1000), true, '1.2.3.4', '1.2.3.0/24', '00:00:00:00:00:00',
 '(,5]', '(,)', 'b:1', 4294967295),
(5, 1e100, 0.10, 0, 99999999999999999999, 100, '0', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12', '{}',
 ('{"big": 12345678901234567890.123456789012345, "deep": [[[[1]]]], "d":"' || repeat('z', 9000) || '"}')::jsonb, null,
 '{1,2}', '{x}', '{0.00}', '0001-01-01 00:00:00+00', '0001-01-01', '0001-01-01', '0001-01-01', '0001-01-01',
 '12:34:56.789012', '12:34:56.789', '12:34:56.789012+00', '0', '\\x00', 'ok', B'0', B'00000001', B'0', '(3,4)', null,
 null, 0.1, 1e-7, 1, 1, 'a', 'b', 'c', (select string_agg(md5(g::text), '') from generate_series(1, 2000) g), null,
 null, null, null, null, null, null, 1);
insert into app.kitchen (id) values (3);
insert into app.comp select g % 7, 'k' || g, date '2024-01-01' + g, g * 1.2345,
  case when g % 5 = 0 then null else 'n' || g end from generate_series(1, 200) g;
insert into app.toast select g, 0, repeat(md5(g::text), 200), jsonb_build_object('v', (select string_agg(
  md5((g * 7 + k)::text), '') from generate_series(1, 200) k)), decode(repeat(md5(g::text), 200), 'hex'),
  array(select md5((g * k)::text) from generate_series(1, 200) k) from generate_series(1, 30) g;
insert into app."MiXed Case" values (1, 'a', 10), (2, null, 20);
insert into app.evolve select g, 'n' || g, g from generate_series(1, 20) g;
insert into app.debit select g, 0 from generate_series(1, 20) g;
insert into app.credit select g, 0 from generate_series(1, 20) g;
insert into app.fence values (0, 0);
insert into app.cleared select g, g, 'c' || g from generate_series(1, 30) g;
insert into app.keyless select g, g, null, repeat(md5(g::text), 200) from generate_series(1, 20) g;
insert into app.told select g % 5, g, 't' || g from generate_series(1, 10) g;
insert into audit.told select 'r', t.* from app.told t;
create trigger told after insert or update or delete on app.told for each row execute function audit.tell();
"""
DDL = (
    "alter table app.evolve add column price numeric(10,2); insert into app.evolve values (100, 'added', 2, 9.99);",
    "alter table app.evolve rename column qty to quantity; alter table app.evolve add column seen timestamptz;",
    "alter table app.evolve drop column name; alter table app.evolve alter column quantity type bigint;"
    " insert into app.evolve (id, quantity, price) values (101, 9999999999, 5.55);",
)
"""Changes of a schema, in their order."""
_ADDED = {
    "int": "id", "text": "'é' || id", "numeric(12,3)": "id * 0.125", "bytea": "decode(md5(id::text), 'hex')",
    "int[]": "array[id, null]", "date": "date '2024-01-01' + id", "boolean": "id % 2 = 0", "jsonb": "to_jsonb(id)",
    "timestamptz": "timestamptz '1969-12-31' + id * interval '1 h'", "interval": "id * interval '1 s'",
}  # fmt: skip
"""Types of columns that come and go, with their values."""
_COMING_AND_GOING = (
    "alter table app.evolve add column x{number} {kind}; update app.evolve set x{number} = {value};",
    "alter table app.evolve rename column x{number} to y{number}; alter table app.evolve add column w{number} int;"
    " update app.evolve set w{number} = id;",
    "alter table app.evolve alter column w{number} type bigint; update app.evolve set w{number} = id + 9999999999;",
    "alter table app.evolve drop column y{number}; alter table app.evolve add column y{number} {kind}"
    " default {constant};",
    "alter table app.evolve drop column y{number}; alter table app.evolve drop column w{number};",
)
COLUMN_STEPS = len(_COMING_AND_GOING)
"""Changes of the schema from a new column to its end."""


@dataclass
class Shop:
    """The database of one connector or several, and its seeded changes."""

    postgres: Postgres
    chance: random.Random
    fences: int = 0

    def make(self) -> None:
        """Make the schema, and rows that a snapshot brings."""
        self.postgres.run(SCHEMA + ROWS)

    def change(self, count: int) -> None:
        """Run transactions of every kind."""
        self.postgres.run("\n".join(self._statement() for _ in range(count)))

    def _statement(self) -> str:
        return self.chance.choice(_STATEMENTS).format(
            id=self.chance.randrange(1, 40),
            other=self.chance.randrange(1, 40),
            a=self.chance.randrange(7),
            k=self.chance.randrange(1, 200),
            n=self.chance.randrange(10**6),
        )

    def alter(self, number: int) -> None:
        """Run one of the changes of the schema, then touch each row, for a column's new name has no event.

        After the changes of `DDL`, a column of each type is added, renamed, widened, dropped and added again.
        """
        if number < len(DDL):
            statement = DDL[number]
        else:
            column, step = divmod(number - len(DDL), len(_COMING_AND_GOING))
            kind = list(_ADDED)[column % len(_ADDED)]
            constant = self.postgres.run(f"select quote_literal({_ADDED[kind]}) from (values (7)) v(id)").strip()
            statement = _COMING_AND_GOING[step].format(
                number=column, kind=kind, value=_ADDED[kind], constant=f"{constant}::{kind}"
            )
        self.postgres.run(f"{statement} update app.evolve set price = id * 0.01;")

    def fence(self) -> int:
        """Change a row behind all earlier changes; return the number of its transaction."""
        self.fences += 1
        set_fence = f"update app.fence set n = {self.fences} where id = 0"
        return int(self.postgres.run(f"{set_fence} returning pg_current_xact_id()"))


_STATEMENTS = (
    # A key changes while TOASTed values stay as they are, then the row changes under its new key.
    "update app.toast set id = {id} + 100 where id = {id} and not exists (select from app.toast where id = {id} + 100);"
    " update app.toast set n = n + 1 where id = {id} + 100;",
    "begin; update app.toast set id = id - 100, n = {n} where id = {id} + 100 and not exists"
    " (select from app.toast where id = {id}); commit;",
    "update app.toast set n = {n} where id = {id};",
    "update app.toast set big = repeat(md5('{n}'), 200) where id = {id};",
    "update app.toast set id = {other}, raw = null where id = {id} + 100 and not exists"
    " (select from app.toast where id = {other});",
    "delete from app.toast where id = {id};",
    "insert into app.toast values ({id}, {n}, repeat(md5('{n}'), 150), null, null, array['{n}', null]) on conflict (id)"
    " do update set n = excluded.n;",
    # Keys of several columns come, go, move and come again, in one transaction or in several.
    "insert into app.comp values ({a}, 'k{k}', date '2024-01-01' + {k}, {n} * 0.0001, 'l{n}') on conflict (a, b, c)"
    " do update set v = excluded.v, note = null;",
    "delete from app.comp where a = {a} and b = 'k{k}';",
    "begin; delete from app.comp where a = {a} and b = 'k{k}_m'; update app.comp set b = b || '_m' where a = {a} and"
    " b = 'k{k}'; commit;",
    "begin; delete from app.comp where a = {a} and c < date '2024-01-20'; insert into app.comp select {a}, 'k' || g,"
    " date '2024-01-01' + g, g, 're' from generate_series(1, 20) g on conflict do nothing; commit;",
    "begin; insert into app.comp values (99, 'rolled back', '2024-01-01'); rollback;",
    "update app.kitchen set txt = 'txt {n}', n_10_2 = {n} * 0.01, tstz = timestamptz '2024-01-01' + {n} * interval"
    " '1 second' where id in (1, 2, 4, 5);",
    "update app.kitchen set id = id + 1000 where id = 4; update app.kitchen set id = id - 1000 where id = 1004;",
    # The sum of two tables is 0 behind every transaction.
    "begin; update app.debit set amount = amount - {n} where id = {a} + 1; update app.credit set amount = amount + {n}"
    " where id = {a} + 3; commit;",
    'update app."MiXed Case" set "select" = {n}, "Some Col" = \'é{n}\' where "Id" = 2;',
    "insert into app.\"MiXed Case\" values ({id} + 10, 'c', {n}) on conflict do nothing;",
    # Rows come before a TRUNCATE, in its transaction, and behind it.
    "insert into app.cleared values ({id}, {n}, 'n{n}') on conflict (id) do update set n = excluded.n;",
    "update app.cleared set id = {id} where id = {other} and not exists (select from app.cleared where id = {id});",
    "begin; insert into app.cleared values ({id} + 100, {n}) on conflict do nothing; truncate app.cleared;"
    " insert into app.cleared select g, {n}, 'again' from generate_series({a}, 20) g; commit;",
    "truncate app.cleared, app.keyless;",
    # A table without a key, whose rows have one all the same.
    "insert into app.keyless select {id}, {n}, 'k{n}', repeat(md5('{n}'), 200) where not exists"
    " (select from app.keyless where id = {id});",
    "update app.keyless set n = {n} where id = {id};",
    "update app.keyless set id = {other}, txt = null where id = {id} and not exists"
    " (select from app.keyless where id = {other}); update app.keyless set n = n + 1 where id = {other};",
    "delete from app.keyless where id = {id};",
    # A table without a key, whose events are rows.
    "insert into app.told values ({a}, {n}, 't{n}'), ({a}, {n}, 't{n}');",
    "update app.told set txt = 'u{n}' where id = {a};",
    "begin; update app.told set id = id + 1, n = null where id = {a}; delete from app.told where id > 7; commit;",
    "delete from app.told where id = {a} and n % 3 = 0;",
)


def types(postgres: Postgres, table: str) -> dict[str, str]:
    """Return the columns of a table with their types, lengths left out."""
    rows = postgres.rows(
        "select attname as name, format_type(atttypid, null) as kind, format_type(atttypid, atttypmod) as whole"
        f" from pg_attribute where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped order by attnum"
    )
    short = {"timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz"}
    short |= {"time without time zone": "time", "time with time zone": "timetz", "bit varying": "bit"}
    return {row["name"]: "bit(1)" if row["whole"] == "bit(1)" else short.get(row["kind"], row["kind"]) for row in rows}


_AS_TEXT = frozenset({"json", "jsonb", "xml", "int4range", "tstzrange", "tsvector"})


def _kind(type_: str, kinds: Mapping[str, Kind]) -> Kind:
    if type_ in kinds:
        return kinds[type_]
    return TEXTS if type_ in _AS_TEXT else PLAIN


def differences(
    postgres: Postgres,
    lake: ls.Lake,
    table: str,
    bridged: str,
    kinds: Mapping[str, Kind] = KINDS,
) -> Iterator[str]:
    """Yield a sentence for each difference of a table in PostgreSQL and in the lake; none means that they are equal.

    A column whose values are all null may be missing in the lake: JSON without a schema tells no type of it.
    """
    columns = {name: kind for name, kind in types(postgres, table).items() if name not in UNSENT}
    key = [row["name"] for row in postgres.rows(
        f"select attname as name from pg_index join pg_attribute on attrelid = indrelid and attnum = any(indkey)"
        f" where indrelid = '{table}'::regclass and indisprimary"
    )] or ["id"]  # fmt: skip
    found = lake.table(bridged).scan().to_arrow()
    missing = sorted(set(columns) - set(found.column_names))
    if any(postgres.rows(f'select 1 as n from {table} where "{name}" is not null limit 1') for name in missing):
        yield f"{bridged} has no columns {missing}"
    shown = {name: _kind(kind, kinds) for name, kind in columns.items() if name not in missing}
    listed = ", ".join(f'{each.shown.format(c=chr(34) + name + chr(34))} as "{name}"' for name, each in shown.items())
    theirs = [
        {name: each.theirs(row[name]) for name, each in shown.items()}
        for row in postgres.rows(f"select {listed} from {table}")
    ]
    ours = [
        {name: each.ours(row[name]) for name, each in shown.items()} for row in found.select(list(shown)).to_pylist()
    ]
    yield from _unlike(bridged, _by_key(theirs, key), _by_key(ours, key), len(ours))


def told_differences(postgres: Postgres, lake: ls.Lake, bridged: str) -> Iterator[str]:
    """Yield a sentence where the log of `app.told` has other events than a trigger of PostgreSQL noted."""
    names = ["op", "id", "n", "txt"]
    noted = Counter(tuple(row.values()) for row in postgres.rows(f"select {', '.join(names)} from audit.told"))
    logged = Counter(
        tuple(row[name] for name in names) for row in lake.table(bridged).scan(names).to_arrow().to_pylist()
    )
    for name, events in (("lacks", noted - logged), ("has besides", logged - noted)):
        if events:
            yield f"{bridged} {name} {events.total()} events, as {list(events)[:5]}"


def _by_key(rows: Sequence[Mapping[str, Any]], key: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    return {str([row[name] for name in key]): row for row in rows}


def _unlike(
    table: str, theirs: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Mapping[str, Any]], count: int
) -> Iterator[str]:
    if count != len(ours):
        yield f"{table} has {count} rows of {len(ours)} keys"
    for name, keys in (("lacks", theirs.keys() - ours.keys()), ("has besides", ours.keys() - theirs.keys())):
        if keys:
            yield f"{table} {name} {len(keys)} keys, as {sorted(keys)[:5]}"
    unlike: dict[str, list[str]] = {}
    for key in sorted(theirs.keys() & ours.keys()):
        for name, value in theirs[key].items():
            if value != ours[key][name] and not (_is_nan(value) and _is_nan(ours[key][name])):
                unlike.setdefault(name, []).append(f"{key}: {str(value)[:80]!r} is {str(ours[key][name])[:80]!r}")
    for name, found in unlike.items():
        yield f"{table}.{name} differs in {len(found)} rows: {found[:3]}"


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
