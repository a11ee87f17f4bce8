"""Verbs of registers: open, list, drop. A register is journaled until it is dropped.

A register counts against the limit of the principal that opened it first. Its epochs are the LSNs of its openings, so
they grow even if the name was dropped in between.
"""

from __future__ import annotations

from lakestore.errors import Invalid, LimitReached
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.sequences import check_names
from lakestore_server.state.commit_record import CommitRecord, RegistersDrop, RegistersOpen
from lakestore_server.state.registers import Register
from lakestore_server.state.state import State

VALUE_CHARS_SHOWN = 256
LIST_BYTES = 4 << 20
"""About the bytes of one answer of a list; the next call continues it."""
NEW = pb.OpenRegister()


class RegisterVerbs:
    """Names, epochs and values. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open_registers(self, request: pb.OpenRegistersRequest) -> pb.OpenRegistersAnswer:
        """Take registers over in one commit: a new epoch fences earlier holders."""
        if not request.registers:
            raise Invalid("no register is named: name the registers to open")
        engine, names = self._engine, tuple(request.registers)
        check_names(names, engine.limits)
        engine.check_timeline(request.timeline, "a register that is open")

        def plan(state: State, record: CommitRecord) -> pb.OpenRegistersAnswer:
            known = state.registers.known
            held = [known.get(name) for name in names]
            more, most = held.count(None), engine.limits.registers
            if more and state.registers.count(request.owner) + more > most:
                raise LimitReached(
                    f"{request.owner or 'this process'} would have more than {most} registers, the limit: drop those"
                    " that are no longer used (`lakestore producers --drop-registers PREFIX`)"
                )
            epoch = state.epoch(record.lsn)
            record.registers.append(RegistersOpen(names, epoch, request.owner))
            opened = [pb.OpenRegister(value=each.value, moved=each.moved) if each else NEW for each in held]
            answer = pb.OpenRegistersAnswer(epoch=epoch, timeline=state.timeline, registers=opened)
            # the present holder continues, because nobody else could
            if answer.ByteSize() > engine.limits.message_bytes:
                raise Invalid(
                    f"the values of these {len(names)} registers take {answer.ByteSize():,} bytes, and no message could"
                    " hold them: open fewer in one call"
                )
            return answer

        return engine.operate(plan).result

    def list_registers(self, request: pb.ListRegistersRequest) -> pb.ListRegistersAnswer:
        """Registers by name, as many as one answer holds."""
        known = self._engine.registers()
        names = sorted(name for name in known if name > request.after and name.startswith(request.prefix))
        if hidden := set(request.hidden):
            names = [name for name in names if "/" not in name or name.partition("/")[0] not in hidden]
        answer, room = pb.ListRegistersAnswer(), LIST_BYTES
        for name in names:
            if room <= 0:
                answer.goes_on = True
                break
            entry = _entry(name, known[name])
            answer.registers.append(entry)
            room -= entry.ByteSize()
        return answer

    def drop_registers(self, request: pb.DropRegistersRequest) -> pb.DropRegistersAnswer:
        """Drop registers with their values; their holders are refused from now on. Missing registers are ignored."""
        check_names(request.registers, self._engine.limits)
        if self._engine.registers().keys().isdisjoint(request.registers):
            return pb.DropRegistersAnswer()

        def plan(state: State, record: CommitRecord) -> int:
            names = tuple(name for name in request.registers if name in state.registers.known)
            if names:
                record.registers.append(RegistersDrop(names))
            return len(names)

        return pb.DropRegistersAnswer(dropped=self._engine.operate(plan).result)


def _entry(name: str, held: Register) -> pb.RegisterEntry:
    value = held.value[:VALUE_CHARS_SHOWN]
    return pb.RegisterEntry(name=name, owner=held.owner, epoch=held.epoch, value=value, moved=held.moved)
