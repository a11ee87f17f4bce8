"""SQLAlchemy through the Postgres port, over psycopg and asyncpg: reflection, Core, ORM, cursors, isolation levels."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn

from tests.support.sql_door import HOT, ORDER_COUNT, TIERED, Door, every_rows, order


class Base(orm.DeclarativeBase):
    """Classes of tables."""


class Order(Base):
    """A row of shop.orders."""

    __tablename__ = "orders"
    __table_args__ = {"schema": "shop"}  # noqa: RUF012 (SQLAlchemy's own form)
    order_id: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, primary_key=True)
    customer: orm.Mapped[str]
    amount: orm.Mapped[Decimal] = orm.mapped_column(sa.Numeric(12, 2))
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(sa.DateTime(timezone=True))


Ask = Callable[[Callable[[sa.Engine], Any]], Any]


@pytest.fixture(params=["psycopg", "asyncpg"])
def ask(door: Door, request: pytest.FixtureRequest) -> Ask:
    """Runs a function with an engine. The functions are the same for both drivers."""
    given = door.dsn()
    names = (given["user"], given["password"], given["host"], given["port"], given["dbname"])
    url = sa.URL.create(f"postgresql+{request.param}", *names)

    def plainly(act: Callable[[sa.Engine], Any]) -> Any:
        engine = sa.create_engine(url, pool_pre_ping=True)
        try:
            return act(engine)
        finally:
            engine.dispose()

    async def in_a_loop(act: Callable[[sa.Engine], Any]) -> Any:
        engine = create_async_engine(url, pool_pre_ping=True)
        try:
            return await greenlet_spawn(act, engine.sync_engine)
        finally:
            await engine.dispose()

    return plainly if request.param == "psycopg" else lambda act: asyncio.run(in_a_loop(act))


def test_reflection_finds_tables_columns_and_keys(ask: Ask) -> None:
    def act(engine: sa.Engine) -> None:
        found = sa.inspect(engine)
        assert "shop" in found.get_schema_names()
        assert found.default_schema_name == "shop"
        assert set(found.get_table_names()) == {"orders", "events", "every", "OddNames"}
        assert [found.has_table(name, schema="shop") for name in ("orders", "nothing")] == [True, False]
        assert found.get_pk_constraint("orders", schema="shop")["constrained_columns"] == ["order_id"]
        columns = {each["name"]: each for each in found.get_columns("every", schema="shop")}
        assert columns["id"]["nullable"] is False
        assert isinstance(columns["price"]["type"], sa.Numeric)
        assert (columns["price"]["type"].precision, columns["price"]["type"].scale) == (20, 3)
        assert isinstance(columns["numbers"]["type"], postgresql.ARRAY)
        assert isinstance(columns["place"]["type"], postgresql.JSONB)
        for name in ("foreign_keys", "unique_constraints", "check_constraints", "indexes"):
            assert getattr(found, f"get_{name}")("orders", schema="shop") == [], name
        for name in ("view_names", "materialized_view_names", "sequence_names", "temp_table_names", "enums", "domains"):
            assert getattr(found, f"get_{name}")() == [], name
        assert found.get_table_comment("orders", schema="shop") == {"text": None}

    ask(act)


def test_reflected_tables_are_read(ask: Ask) -> None:
    def act(engine: sa.Engine) -> None:
        known = sa.MetaData()
        known.reflect(engine, schema="shop")
        every, odd, events = (known.tables[f"shop.{name}"] for name in ("every", "OddNames", "events"))
        with engine.connect() as connection:
            row = connection.execute(sa.select(every).where(every.c.id == 2)).mappings().one()
            expected = every_rows()[1] | {"place": {"city": 'a"b', "code": 7}, "props": {"a": 1, "ß": None}}
            assert dict(row) == expected
            assert connection.execute(sa.select(odd).where(odd.c["Größe"] == "groß")).all() == [(1, "groß", "x")]
            counted = sa.select(events.c.kind, sa.func.count()).group_by(events.c.kind).order_by(events.c.kind)
            assert connection.execute(counted).all() == [(kind, (TIERED + HOT) // 2) for kind in ("even", "odd")]

    ask(act)


def test_the_orm_reads(ask: Ask) -> None:
    def act(engine: sa.Engine) -> None:
        with orm.Session(engine) as session:
            seventh = session.get(Order, 7)
            assert seventh is not None
            assert (seventh.customer, seventh.amount, seventh.created_at) == tuple(order(7).values())[1:]
            late = dt.datetime(2026, 11, 20, 10, tzinfo=dt.UTC)
            chosen = sa.select(Order).where(Order.created_at >= late, Order.customer.like("customer 1%"))
            found = session.scalars(chosen.order_by(Order.order_id).limit(2).offset(1)).all()
            assert [each.order_id for each in found] == [71, 78]
            assert len(session.scalars(sa.select(Order).where(Order.order_id.in_([1, 2, 300]))).all()) == 2
            total = sa.select(sa.func.sum(Order.amount)).where(Order.order_id < 3)
            assert session.scalar(total) == Decimal("3.03")

    ask(act)


def test_rows_come_in_pieces(ask: Ask) -> None:
    def act(engine: sa.Engine) -> None:
        with orm.Session(engine) as session:
            pieces = session.scalars(sa.select(Order).execution_options(yield_per=7)).partitions()
            assert [len(piece) for piece in pieces] == [7] * (ORDER_COUNT // 7) + [ORDER_COUNT % 7]
        with engine.connect() as connection:
            streamed = connection.execution_options(stream_results=True, max_row_buffer=5)
            numbers = streamed.execute(sa.text("SELECT order_id FROM orders ORDER BY 1")).scalars()
            assert list(numbers) == list(range(ORDER_COUNT))

    ask(act)


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_every_isolation_level_reads(ask: Ask, level: str) -> None:
    def act(engine: sa.Engine) -> None:
        options: dict[str, Any] = {"postgresql_readonly": True} if level == "SERIALIZABLE" else {}
        with engine.connect().execution_options(isolation_level=level, **options) as connection:
            assert connection.execute(sa.text("SELECT count(*) FROM orders")).scalar() == ORDER_COUNT
            assert connection.default_isolation_level == "REPEATABLE READ"

    ask(act)


def test_errors_are_sqlalchemys(ask: Ask) -> None:
    wrong: list[tuple[str, type[Exception], str]] = [
        ("SELECT * FROM shop.nothing", sa.exc.ProgrammingError, "42P01"),
        ("SELECT nothing FROM orders", sa.exc.ProgrammingError, "42703"),
        ("SELEC 1", sa.exc.ProgrammingError, "42601"),
        ("DELETE FROM orders", sa.exc.DBAPIError, "25006"),
    ]

    def act(engine: sa.Engine) -> None:
        for text, kind, code in wrong:
            with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as error:
                connection.execute(sa.text(text))
            assert isinstance(error.value, kind), text
            assert getattr(error.value.orig, "sqlstate", "") == code
        with engine.connect() as connection:
            assert connection.scalar(sa.select(sa.func.current_setting("TimeZone"))) == "UTC"

    ask(act)
