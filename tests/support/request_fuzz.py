"""Requests that no client of ours sends, against a real server: definitions, steps, tokens, conditions, raw messages.

Each request is a good one that was changed: a value of its JSON, its token or its condition, bytes of its Arrow stream,
or bytes of the message itself. What the server takes is noted from its answers, so that its tables are known; what it
refuses has to be refused as one of our errors, and not as a defect.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pyarrow as pa
from google.protobuf.message import DecodeError

from lakestore.model.merge_engines import aggregate
from lakestore.model.table import define
from lakestore.rows import ipc
from lakestore.rows.bitmaps import bitmap
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc

TABLES_KEPT = 12
"""Tables that the requests made and that are left standing; older ones are dropped."""
CALL_SECONDS = 120.0
ANSWERS_READ = 8
"""Messages of a stream that are read before it is left."""
_CODES = {getattr(grpc.StatusCode, code) for code in ("INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED")}
_NEVER = {"Backup"}
"""RPCs that are not called: they write where the request says."""
KEYED, LOG, MERGED = "shop.keyed", "shop.log", "shop.merged"
OURS = (KEYED, LOG, MERGED)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("v", pa.string()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("d", pa.decimal128(12, 2)),
        ("f", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("bits", pa.binary()),
    ]
)
FUNCTIONS = {"v": "string_list", "f": "sum", "d": "max", "bits": "bitmap"}
ODD: list[Any] = [
    "\ud800", 10**30, -(10**30), 2**63, 2**64, -1, 0, 1, 5, 1.5, 1e308, True, False, None, [], {}, [[]], {"a": 1}, "",
    "x" * 300, "\x00", "9999999999999999d", "1" * 5_000 + "d", "id", "v", "t", "shop.keyed", "int64", "7d",
    {"bytes": 10**30}, {"column": "t", "after": "30d"}, "list<" * 40, "decimal(38,99)", "bucket(99999999999, id)",
    {"aggregate": {"v": "string_list"}}, "partial", {"versioned": "t"}, ["id"], "struct<a: int64>", "snapshot", "now",
    "2026-01-01T00:00Z", "0001-01-01T00:00+23:59", "9999-12-31T23:59-23:59",
]  # fmt: skip
_WORDS = (
    "id v t d f tags __bucket __offset absent = != < <= > >= AND OR NOT ( ) IN LIKE ILIKE BETWEEN IS NULL TRUE 1 2.5 -7"
    " 1e3 1e999 'x' 'a%' '2026-01-01' TIMESTAMP DATE TIMESTAMPTZ CAST AS INT DOUBLE DECIMAL(5,2) VARCHAR , :: \" x'ab'"
    " $$ /* -- ; SELECT id.v t.x [1] 99999999999999999999999999 INTERVAL ''' \u00e9 ANY(1) {} ? @ CASE WHEN END"
).split(" ")
_CONDITIONS = [
    "id > 3 AND v = 'x'", "id IN (1, 2, 3.5)", "NOT (v LIKE 'a%' OR t IS NULL)", "d BETWEEN 1 AND 2.5", "f = d", "id",
    "CAST(id AS DOUBLE) > f", "t >= TIMESTAMP '2026-01-01 00:00:00'", "t >= '2026-01-01'", "v = v", "TRUE",
    "d = 0.35e0", "CAST(v AS INT) = 3", "CAST(t AS DATE) = DATE '2026-01-01'", "v > 1", "f = 0.1",
    "tags IS NULL", "id = d",
]  # fmt: skip


class Refused(AssertionError):
    """A request that ended as none may."""


class Fuzz:
    """One series of requests, and what the server has taken of them."""

    def __init__(self, chance: random.Random, address: str, http_port: int) -> None:
        self.chance, self._http_port = chance, http_port
        self._channel = grpc.insecure_channel(address, options=rpc.options(1 << 30))
        self.rows: dict[str, int] = {}
        """Table to its live rows."""
        self.made: list[str] = []
        """Tables of the requests, the oldest first."""
        self.kinds: dict[str, int] = {}
        """Errors by kind, and how many requests were taken."""
        self._token = ""
        self._ids = 0
        self._series: tuple[Callable[[], None], ...] = (
            self._create, self._alter, self._commit, self._commit, self._position, self._condition, self._condition,
            self._raw, self._raw, self._catalog, self._look_up, self._talk,
        )  # fmt: skip
        for name, key, merge in (
            (KEYED, ["id"], "upsert"),
            (LOG, [], "upsert"),
            (MERGED, ["id"], aggregate(FUNCTIONS)),
        ):
            made = define(name, SCHEMA, primary_key=key, buckets=2, merge=merge).to_json()
            self.call("CreateTable", pb.CreateTableRequest(definition=made).SerializeToString())
        self._good_commit()

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def step(self) -> None:
        """One request of any kind."""
        self.chance.choice(self._series)()
        while len(self.made) > TABLES_KEPT:
            self.call("DropTable", pb.TableRequest(table=self.made[0]).SerializeToString())

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Send bytes as a request; the answers, and nothing if it was refused."""
        try:
            answers = list(self._answers(name, data))
        except grpc.RpcError as error:
            self._judge(name, data, error)
            return []
        self.kinds["taken"] = self.kinds.get("taken", 0) + 1
        for answer in answers:
            self._note(name, data, answer)
        return answers

    def _answers(self, name: str, data: bytes) -> Iterator[bytes]:
        path = rpc.TALK_PATH if name == "Talk" else f"/{rpc.SERVICE}/{name}"
        plain = {"request_serializer": None, "response_deserializer": None}
        if name in ("Write", "Talk"):
            stream = self._channel.stream_stream(path, **plain)(iter([data]), timeout=CALL_SECONDS)
        elif name in ("Changes", "Fetch"):
            stream = self._channel.unary_stream(path, **plain)(data, timeout=CALL_SECONDS)
        else:
            yield self._channel.unary_unary(path, **plain)(data, timeout=CALL_SECONDS)
            return
        for number, answer in enumerate(stream, 1):
            yield answer
            if number == ANSWERS_READ:
                stream.cancel()  # type: ignore[no-untyped-call]
                return

    def _judge(self, name: str, data: bytes, error: Any) -> None:
        code = error.code()
        said = {key: value for key, value in error.trailing_metadata() or ()}
        kind = (
            errors.unpack_error(said, code.name, error.details() or "").kind if errors.ERROR_KEY in said else code.name
        )
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if kind == "Internal" or code in _CODES or (code is grpc.StatusCode.UNAVAILABLE and not said):
            shown = base64.b64encode(data[:4_000]).decode()
            raise Refused(f"{name} ended as {kind} ({code.name}): {(error.details() or '')[:500]}; request {shown}")

    def _note(self, name: str, data: bytes, answer: bytes) -> None:
        """Keep what an answer says of the tables."""
        if name == "CreateTable" and not pb.CreateTableRequest.FromString(data).check_only:
            table = json.loads(pb.TableInfo.FromString(answer).definition)["name"]
            self.rows[table] = 0
            if table not in OURS:
                self.made.append(table)
        elif name == "DropTable":
            table = pb.TableRequest.FromString(data).table
            del self.rows[table]
            self.made.remove(table)
        elif name in ("Commit", "Write"):
            self._note_commit(pb.CommitAnswer.FromString(answer))
        elif name == "Talk":
            self._note_reply(data, pb.Reply.FromString(answer))
        elif name == "Changes":
            self._token = pb.ChangeBatch.FromString(answer).token or self._token

    def _note_commit(self, said: pb.CommitAnswer) -> None:
        if said.HasField("error"):
            self.kinds[said.error.kind] = self.kinds.get(said.error.kind, 0) + 1
            if said.error.kind == "Internal":
                raise Refused(f"Write answered {said.error.message}")
        self._token = said.token or self._token
        for result in said.results:
            self.rows[result.table] += result.inserted - result.deleted

    def _note_reply(self, data: bytes, reply: pb.Reply) -> None:
        """Keep what a reply on an open stream says."""
        if reply.error:
            refused = errors.error_of_fields(reply.error)
            self.kinds[refused.kind] = self.kinds.get(refused.kind, 0) + 1
            if refused.kind == "Internal":
                raise Refused(f"Talk replied {refused.message}; request {base64.b64encode(data[:4_000]).decode()}")
        elif pb.Ask.FromString(data).method == "Commit":
            self._note("Commit", data, reply.answer)

    # Values that are odd.

    def _mutated(self, value: Any) -> Any:
        """JSON with one of its values changed, taken away or doubled."""
        places = list(_places(value))
        if not places:
            return self.chance.choice(ODD)
        copied = json.loads(json.dumps(value))
        path = self.chance.choice(places)
        holder = copied
        for step in path[:-1]:
            holder = holder[step]
        act = self.chance.random()
        if act < 0.7:
            holder[path[-1]] = self.chance.choice(ODD)
        elif act < 0.85:
            del holder[path[-1]]
        elif isinstance(holder, list):
            holder.append(holder[path[-1]])
        else:
            holder[str(self.chance.choice(ODD))[:50]] = holder[path[-1]]
        return copied

    def _flipped(self, data: bytes) -> bytes:
        """Bytes with some of them changed, cut off, doubled, or overwritten by an extreme number."""
        made = bytearray(data) or bytearray(b"\0")
        for _ in range(self.chance.randint(1, 4)):
            act, at = self.chance.random(), self.chance.randrange(len(made))
            if act < 0.5:
                made[at] ^= 1 << self.chance.randrange(8)
            elif act < 0.7:
                number = self.chance.choice([0, -1, 2**31 - 1, -(2**31), 2**62, -(2**63), 2**63 - 1, 8, 64])
                made[at : at + 8] = number.to_bytes(8, "little", signed=True)
            elif act < 0.8:
                del made[at : at + self.chance.randint(1, 64)]
            elif act < 0.9:
                made[at:at] = made[at : at + self.chance.randint(1, 64)]
            else:
                made = made[: at + 1]
            made = made or bytearray(b"\0")
        return bytes(made)

    def _rows(self) -> bytes:
        """A good Arrow stream."""
        count = self.chance.choice([0, 1, 1, 3, 50])
        odd = [b"", b"\0", b"\1" + bytes(7), b"\xff" * 8, self.chance.randbytes(24)]
        bits = self.chance.choice([*[None] * 8, *[bitmap([1, self._ids])] * 8, *odd])
        self._ids = (self._ids + 7) % 500
        batch = pa.RecordBatch.from_pylist(
            [
                {
                    "id": self._ids + i,
                    "v": "x" * i,
                    "t": 1_790_000_000_000_000 + i,
                    "f": i / 3,
                    "tags": ["a"] * (i % 3),
                    "bits": bits,
                }
                for i in range(count)
            ],
            schema=SCHEMA,
        )
        names = self.chance.choice([SCHEMA.names, SCHEMA.names, ["id"], ["id", "v"], ["v"]])
        batch = batch.select(names)
        if self.chance.random() < 0.2:
            batch = pa.record_batch({"id": batch.column(0), "v": pa.array(["y"] * count).dictionary_encode()})
        return ipc.encode(batch.schema, [batch] * self.chance.choice([1, 1, 2]))

    # Requests.

    def _create(self) -> None:
        plain = json.loads(define(f"made.t{self.chance.randrange(10**9)}", SCHEMA, primary_key=["id"]).to_json())
        for _ in range(self.chance.choice([1, 1, 2])):
            plain = self._mutated(plain)
        text = json.dumps(plain) if self.chance.random() < 0.95 else json.dumps(plain)[: self.chance.randrange(500)]
        self.call("CreateTable", pb.CreateTableRequest(definition=text).SerializeToString())

    def _alter(self) -> None:
        if not self.made:
            return
        table = self.chance.choice(self.made)
        at = self.call("GetTable", pb.TableRequest(table=table).SerializeToString())
        number = json.loads(pb.TableInfo.FromString(at[0]).definition)["schema_id"]
        fresh = f"c{self.chance.randrange(10**6)}"
        steps: list[Any] = [
            {"step": "add", "name": fresh, "type": "int64", "default": 5, "new_rows_only": True},
            {"step": "add", "name": fresh, "type": "struct<a: int64>"},
            {"step": "drop", "name": "v"},
            {"step": "rename", "name": "v", "to": fresh},
            {"step": "widen", "name": "f", "type": "float64"},
            {"step": "move", "name": "v", "first": True},
            {"step": "default", "name": "v", "default": "x"},
            {"step": "options", "lake": {"freshness": "5m"}, "retention": "7d", "deletes": "ignore"},
            {"step": "options", "ttl": {"column": "t", "after": "30d"}, "tombstone_ttl": "1d"},
        ]
        said = [self.chance.choice(steps) for _ in range(self.chance.randint(1, 2))]
        text = json.dumps(self._mutated(said) if self.chance.random() < 0.8 else said)
        request = pb.AlterTableRequest(table=table, alteration=text, schema_id=number)
        self.call("AlterTable", request.SerializeToString())

    def _good_commit(self) -> None:
        for table, kind in ((KEYED, pb.UPSERT), (LOG, pb.APPEND)):
            data = self._rows()
            while ipc.decode(data).schema.names != SCHEMA.names:
                data = self._rows()
            change = pb.Change(table=table, kind=kind, rows=data, crc32c=ipc.crc32c(data))
            self.call("Commit", pb.CommitRequest(changes=[change]).SerializeToString())

    def _commit(self) -> None:
        changes = []
        for _ in range(self.chance.choice([1, 1, 1, 2])):
            table = self.chance.choice([*OURS, *OURS, *self.made])
            kinds = [pb.APPEND] if table == LOG else [pb.UPSERT, pb.UPSERT, pb.DELETE, pb.INSERT]
            kind = self.chance.choice(kinds if self.chance.random() < 0.9 else [pb.APPEND, pb.DELETE])
            data = self._rows()
            if self.chance.random() < 0.7:
                data = self._flipped(data)
            crc = ipc.crc32c(data) if self.chance.random() < 0.97 else 7
            changes.append(pb.Change(table=table, kind=kind, rows=data, crc32c=crc))
        request = pb.CommitRequest(changes=changes)
        self.call(self.chance.choice(["Commit", "Commit", "Write"]), request.SerializeToString())

    def _position(self) -> None:
        raw = base64.urlsafe_b64decode(self._token + "=" * (-len(self._token) % 4))
        said = json.loads(raw[4:])
        uuid = said[2][0] if len(said) > 2 and said[2] else "x"
        shapes = [said, [*said[:2], [uuid], [uuid, 0, 1]], [*said[:2], [uuid], None, [[0, 0, 0, 1, -1, 0]]]]
        made = self._mutated(self.chance.choice(shapes))
        if isinstance(made, list) and len(made) > 1 and type(made[1]) is int and said[1] < made[1] < 2**63:
            made[1] = said[1]  # a read would wait for a commit that lies ahead
        text = json.dumps(made, separators=(",", ":")).encode()
        token = base64.urlsafe_b64encode(zlib.crc32(text).to_bytes(4, "big") + text).rstrip(b"=").decode()
        if self.chance.random() < 0.2:
            odd = str(self.chance.choice(ODD[2:]))
            token = self.chance.choice(["?", "!", token[:-3], token + "A", "2026-01-01T00:00Z", odd or "?"])
        name = self.chance.choice(["s", "member"])
        requests: list[tuple[str, Any]] = [
            ("Changes", pb.ChangesRequest(tables=[KEYED], start=token, until="now")),
            ("Changes", pb.ChangesRequest(tables=[KEYED], start="snapshot", until="now", subscription=name)),
            ("Changes", pb.ChangesRequest(tables=[KEYED], start="snapshot", until=token)),
            ("Ack", pb.AckRequest(subscription="s", epoch=self.chance.randrange(5), token=token)),
            ("Ack", pb.AckRequest(subscription="s", member="m", session=3, token=token)),
            ("Plan", pb.PlanRequest(tables=[KEYED, LOG], at=token)),
            ("Lookup", pb.LookupRequest(table=KEYED, keys=self._rows(), at=token)),
        ]  # fmt: skip
        method, request = self.chance.choice(requests)
        self.call(method, request.SerializeToString())

    def _condition(self) -> None:
        text = self.chance.choice(_CONDITIONS)
        act = self.chance.random()
        if act < 0.4:
            text = " ".join(self.chance.choice(_WORDS) for _ in range(self.chance.randint(1, 12)))
        elif act < 0.7:
            words = text.split(" ")
            words[self.chance.randrange(len(words))] = self.chance.choice(_WORDS)
            text = " ".join(words)
        elif act < 0.75:
            joint = self.chance.choice([" OR ", " AND ", " AND NOT "])
            text = joint.join([text] * self.chance.choice([10, 400, 3_000]))
        elif act < 0.8:
            depth = self.chance.choice([10, 100, 10_000])
            text = "(" * depth + text + ")" * depth
        request = pb.ChangesRequest(tables=[self.chance.choice([KEYED, LOG])], where=text, until="now")
        self.call("Changes", request.SerializeToString())

    def _look_up(self) -> None:
        keys = self._rows()
        keys = self._flipped(keys) if self.chance.random() < 0.6 else keys
        columns = [str(odd)[:300] for odd in self.chance.sample(ODD[1:], self.chance.randint(0, 2))]
        request = pb.LookupRequest(table=self.chance.choice([KEYED, LOG]), keys=keys, columns=columns)
        if self.chance.random() < 0.3:
            request.key = self._flipped(b"\x80\0\0\0\0\0\0\1")
        self.call("Lookup", request.SerializeToString())

    def _talk(self) -> None:
        """A call on an open stream."""
        rows = self._rows()
        rows = self._flipped(rows) if self.chance.random() < 0.5 else rows
        change = pb.Change(table=self.chance.choice(OURS), kind=pb.UPSERT, rows=rows, crc32c=ipc.crc32c(rows))
        asks: list[tuple[str, Any]] = [
            ("Commit", pb.CommitRequest(changes=[change])),
            ("Lookup", pb.LookupRequest(table=KEYED, key=self._flipped(b"\x80\0\0\0\0\0\0\1"))),
            ("Lookup", pb.LookupRequest(table=MERGED, keys=rows)),
            (str(self.chance.choice(ODD[1:])), pb.HeadRequest()),
        ]
        method, request = self.chance.choice(asks)
        request = request.SerializeToString()
        ask = pb.Ask(id=self.chance.choice([0, 1, 2**64 - 1]), method=method, request=request, within_ms=20_000)
        data = ask.SerializeToString()
        self.call("Talk", self._flipped(data) if self.chance.random() < 0.3 else data)

    def _raw(self) -> None:
        rows = self._rows()
        change = pb.Change(table=KEYED, kind=pb.UPSERT, rows=rows, crc32c=ipc.crc32c(rows))
        good: dict[str, Any] = {
            "Commit": pb.CommitRequest(changes=[change], producer="p", epoch=1, sequence=1),
            "Write": pb.CommitRequest(changes=[change]),
            "Lookup": pb.LookupRequest(table=KEYED, keys=rows),
            "Changes": pb.ChangesRequest(tables=[KEYED], start="earliest", until="now", columns=["id"], where="id > 1"),
            "Fetch": pb.FetchRequest(table_uuid=self._token[:30], bucket=1, end=2, live_only=True, live_end=2),
            "Plan": pb.PlanRequest(tables=[KEYED], lease_seconds=1),
            "OpenProducer": pb.OpenProducerRequest(producer="p"),
            "AlterTable": pb.AlterTableRequest(table=KEYED, alteration="[]", check_only=True),
            "AcquireTierer": pb.TiererRequest(holder="h", seconds=1),
            "RenewLease": pb.LeaseRequest(lease="x", seconds=5),
            "DropSubscription": pb.DropSubscriptionRequest(subscription="s"),
        }
        method = self.chance.choice([method for method in rpc.METHODS.values() if method.name not in _NEVER])
        if method.name in ("DropTable", "AlterTable", "Talk"):
            return
        request = good.get(method.name)
        data = request.SerializeToString() if request is not None else bytes(self.chance.randrange(20))
        changed = self._flipped(data) if self.chance.random() < 0.9 else self.chance.randbytes(40)
        if method.name != "Changes" or _ends(changed):
            self.call(method.name, changed)

    def _catalog(self) -> None:
        """A request of the REST catalog with odd JSON."""
        schema = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
        name = f"f{self.chance.randrange(3)}"
        updates = [{"action": "set-properties", "updates": {"a": "b"}}, {"action": "add-schema", "schema": schema}]
        asked = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}]
        paths: list[tuple[str, Any]] = [
            ("/v1/namespaces", {"namespace": ["fuzz"], "properties": {"a": "b"}}),
            ("/v1/namespaces/fuzz/properties", {"removals": ["a"], "updates": {"c": "d"}}),
            ("/v1/namespaces/fuzz/tables", {"name": name, "schema": schema, "properties": {"a": "b"}}),
            (f"/v1/namespaces/fuzz/tables/{name}", {"requirements": asked, "updates": updates}),
            (f"/v1/namespaces/shop/tables/{KEYED.split('.')[1]}", {"requirements": asked, "updates": updates}),
            ("/v1/tables/rename", {"source": {"namespace": ["fuzz"], "name": name}, "destination": {}}),
        ]
        path, body = self.chance.choice(paths)
        text = json.dumps(self._mutated(body)).encode()
        text = self._flipped(text) if self.chance.random() < 0.1 else text
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=CALL_SECONDS)
        try:
            connection.request("POST", "/iceberg" + path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        kind = f"http {answer.status}"
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if answer.status >= 500 and answer.status != 503:
            raise Refused(f"POST {path} ended as {answer.status}: {said[:500]!r}; body {text[:2_000]!r}")


def _ends(data: bytes) -> bool:
    """Whether a stream that is asked for so comes to an end, or is refused."""
    try:
        return bool(pb.ChangesRequest.FromString(data).until)
    except DecodeError:
        return True


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside a JSON value."""
    entries = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, held in entries:
        yield (*path, key)
        yield from _places(held, (*path, key))
