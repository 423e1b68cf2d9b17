"""Decoding is strict: one of our messages, or a WireError; nothing else, from any bytes."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onward
from onward.core.facts import FaultReport, Progress, RankFacts, Scope, Stage
from onward.core.incident import Incident
from onward.core.intake import Notice
from onward.core.job import Job, Limits, new_job
from onward.core.membership import Member
from onward.core.policy import parse_policies
from onward.core.published import Level, Published
from onward.errors import WireError
from onward.wire import control, peers
from onward.wire import messages as m
from onward.wire.frames import decode

FAULT = FaultReport("signal", 2, 1, step=20, text="SIGKILL", at=-1.0)
FORM = m.Form(world_size=4, step=20, part="receive")
ORDER = m.RankOrder(rank=1, incarnation=2, generation=3, want="form", form=FORM)
FACTS = RankFacts(rank=0, node=0, incarnation=1, stage=Stage.PAUSED, fault=FAULT, progress=Progress(step=3))
EXAMPLES: list[tuple[msgspec.msgpack.Decoder[Any], Any]] = [
    (m.from_rank, m.Hello(process=1, pid=2)),
    (m.from_rank, m.Report(stage="paused", generation=3, step=20, scope="step", fault=FAULT, local_steps=[19, 20])),
    (m.from_rank, m.Recorded(scope="setup", index=0, data=b"\0\1")),
    (m.from_rank, m.StoreRequest(id=1, generation=2, op="add", key="k", amount=1)),
    (m.from_rank, m.Injected(id=4)),
    (m.to_rank, m.Welcome(rank=0, local_rank=0, world_size=2, incarnation=1, spare=False, page="/p", local_dir="/d")),
    (m.to_rank, ORDER),
    (m.to_rank, m.StoreReply(id=1, value=b"x")),
    (m.to_rank, m.Inject(injection=m.Injection(id=1, kind="kill", rank=1))),
    (
        m.from_agent,
        m.AgentFacts(
            agent=Member(id="a", peer="127.0.0.1|7"),
            node=0,
            version=1,
            term=1,
            orders_version=1,
            ranks=[FACTS],
            record=b"record",
        ),
    ),
    (m.from_manager, m.Orders(term=1, version=2, generation=3, ranks=[ORDER], root_cause=FAULT)),
    (m.from_manager, m.IncidentNote(incident=Incident(1, (FAULT,), 20, 1.0), open=True)),
    (m.from_agent, m.FaultRequest(uid="u", notice=Notice(op="report", level="retry", code="c", rank="1"))),
    (m.from_manager, m.FaultAnswer(uid="u", said=["x"], faults=[Published(1, Level.RETRY, "c", "a")])),
    (m.from_manager, m.Note(text="x")),
    (m.from_manager, m.CaptureStacks(rank=1, incarnation=1)),
    (m.from_manager, m.Beat(term=3)),
    (m.from_manager, m.Elsewhere(managers=["127.0.0.1|7"])),
    (m.from_agent, m.Elsewhere(managers=["127.0.0.1|7"])),
    (peers.from_peer, peers.PeerHello(agent="a")),
    (peers.from_peer, peers.PeerStore(process=1, request=m.StoreRequest(id=1, generation=1, op="get", key="k"))),
    (peers.from_peer, peers.KeepLog(attempt=0, rank=1, index=0, data=b"x")),
    (peers.from_peer, peers.KeepSlot(attempt=0, rank=1, generation=2, index=1, step=5, data=b"x")),
    (peers.from_peer, peers.FetchKept(attempt=0, rank=1)),
    (peers.to_peer, peers.PeerReply(process=1, reply=m.StoreReply(id=1))),
    (peers.to_peer, peers.SlotKept(step=5)),
    (peers.to_peer, peers.Kept(attempt=0, rank=1, slots={0: b"x"}, log=[b"y"])),
    (control.first_word, m.Hello(process=1, pid=2)),
    (control.first_word, control.ControlRequest(op="status")),
    (control.from_control, control.ControlRequest(op="inject", injections=[m.Injection(id=0, kind="kill", rank=0)])),
    (control.from_control, control.ControlRequest(op="fault", notice=Notice(op="clear", everything=True))),
    (control.to_control, control.ControlReply(error="no")),
]
DECODERS = list({id(d): d for d, _ in EXAMPLES}.values())
NAMES = [f"{type(message).__name__}" for _, message in EXAMPLES]


@pytest.mark.parametrize(("decoder", "message"), EXAMPLES, ids=NAMES)
def test_what_is_said_is_what_is_heard(decoder: msgspec.msgpack.Decoder[Any], message: Any) -> None:
    assert decode(decoder, m.encoder.encode(message)) == message


@pytest.mark.parametrize(("decoder", "message"), EXAMPLES, ids=NAMES)
def test_a_message_cut_short_anywhere_is_refused(decoder: msgspec.msgpack.Decoder[Any], message: Any) -> None:
    body = m.encoder.encode(message)
    for cut in range(len(body)):
        with pytest.raises(WireError):
            decode(decoder, body[:cut])
    with pytest.raises(WireError):
        decode(decoder, body + b"\0")


@pytest.mark.parametrize(("decoder", "message"), EXAMPLES, ids=NAMES)
def test_a_message_with_any_byte_changed_is_a_message_or_refused(
    decoder: msgspec.msgpack.Decoder[Any], message: Any
) -> None:
    body = m.encoder.encode(message)
    for at in range(len(body)):
        for change in (0x01, 0x80, 0xFF):
            damaged = body[:at] + bytes([body[at] ^ change]) + body[at + 1 :]
            try:
                heard = decode(decoder, damaged)
            except WireError:
                continue
            assert isinstance(heard, msgspec.Struct)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_with_a_wire_error(body: bytes) -> None:
    for decoder in DECODERS:
        with pytest.raises(WireError):
            decode(decoder, body)


trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
tagged = st.builds(
    lambda tag, tree: {**tree, "type": tag},
    st.sampled_from(sorted({type(message).__name__ for _, message in EXAMPLES})),
    st.dictionaries(st.sampled_from(["rank", "generation", "stage", "want", "form", "ranks", "fault", "id"]), trees),
)


@given(trees | tagged)
def test_anything_that_is_messagepack_is_a_message_or_refused(tree: Any) -> None:
    body = m.encoder.encode(tree)
    for decoder in DECODERS:
        try:
            heard = decode(decoder, body)
        except WireError:
            continue
        assert isinstance(heard, msgspec.Struct)


@pytest.mark.parametrize("depth", [100, 100_000])
def test_nesting_is_bounded(depth: int) -> None:
    for decoder in DECODERS:
        with pytest.raises(WireError):
            decode(decoder, b"\x91" * depth)


@pytest.mark.parametrize("stage", ["", "dancing", "PAUSED", "paused\n", "xpaused"])
def test_a_stage_that_does_not_exist_is_refused_at_the_door(stage: str) -> None:
    with pytest.raises(WireError):
        decode(m.from_rank, m.encoder.encode(m.Report(stage=stage, generation=1)))
    with pytest.raises(WireError):
        decode(m.from_rank, m.encoder.encode(m.Report(stage="paused", generation=1, scope=stage)))


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_and_scope_can_be_said(stage: Stage) -> None:
    for scope in Scope:
        report = m.Report(stage=stage.value, generation=1, scope=scope.value)
        assert decode(m.from_rank, m.encoder.encode(report)) == report


@pytest.mark.parametrize("index", [-1, 1 << 40])
def test_an_index_that_would_fill_the_memory_is_refused(index: int) -> None:
    with pytest.raises(WireError):
        decode(m.from_rank, m.encoder.encode(m.Recorded(scope="setup", index=index, data=b"")))


def test_a_generation_record_is_read_back_as_it_was_written() -> None:
    job = new_job(3, parse_policies("retry,recover-in-place"), Limits(max_restarts=3))
    assert msgspec.msgpack.decode(m.encoder.encode(job), type=Job) == job


ROOMS = Path(onward.__file__).parent
THAT_EXECUTE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}


def _executes(tree: ast.AST) -> list[str]:
    """What in a module could turn bytes into running code."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name in THAT_EXECUTE]
        elif isinstance(node, ast.ImportFrom) and node.module in THAT_EXECUTE:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "yaml.load" and [ast.unparse(k.value) for k in node.keywords] == ["yaml.CSafeLoader"]:
                continue
            if called in ("eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load"):
                found.append(called)
    return found


@given(st.sampled_from(EXAMPLES), st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_nothing_executes_from_the_wire_and_bad_input_is_refused(example: Any, at: int, bytes_: bytes) -> None:
    decoder, message = example
    body = bytearray(m.encoder.encode(message))
    at %= len(body)
    body[at : at + len(bytes_)] = bytes_
    with contextlib.suppress(WireError):
        assert isinstance(decode(decoder, bytes(body)), msgspec.Struct)


def test_nothing_of_ours_could_execute_what_it_reads() -> None:
    told = {
        f.relative_to(ROOMS).as_posix(): found
        for f in ROOMS.rglob("*.py")
        if (found := _executes(ast.parse(f.read_text())))
    }
    assert told == {"agent/rank.py": ["exec"]}, "the user's script out of its file, and nothing else"
    assert _executes(ast.parse("import pickle\nfrom marshal import loads\neval('1')")) == ["pickle", "marshal", "eval"]
