"""A job under siege: whatever is said to its sockets, by strangers or by its own past, it trains on and ends well."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest
from kernel import alive
from launched import Launched, Onward, kill
from test_trees import TRAINS, goes_on
from waiting import until

from onward.wire.frames import FrameReader, greet_server_blocking, pack, proof
from onward.wire.messages import Hello, Report, StoreRequest, encoder

LIMIT_S = 60.0
NONSENSE = {
    "garbage": b"\xff\xfe\xfd" * 50,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "four gigabytes": struct.pack(">I", 0xFFFFFFFF),
    "wrong proof": struct.pack(">I", 32) + proof(b"another token", b"n" * 16),
    "empty frame": struct.pack(">I", 0),
}


def listening_port(pid: int) -> int:
    """Of the TCP socket that a process listens on, by what the kernel says."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            return int(fields[1].split(":")[1], 16)
    return 0


def connect(address: str | int) -> socket.socket:
    if isinstance(address, str):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(LIMIT_S)
        s.connect(address)
        return s
    return socket.create_connection(("127.0.0.1", address), LIMIT_S)


def hung_up(s: socket.socket) -> bool:
    """The other side closes, in time."""
    try:
        while s.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def cut_off(s: socket.socket, *messages: object) -> bool:
    """The other side closes while or after these are said."""
    try:
        s.sendall(b"".join(pack(encoder, message) for message in messages))
    except ConnectionError:
        return True
    return hung_up(s)


@pytest.mark.torch
def test_a_job_under_siege(onward: Onward) -> None:
    job = onward.start("-o", "json", "--spares", "none", onward.script(TRAINS), warm=True)
    job.said("step", 2)
    first = {rank: job.pids(f"up{rank}")[0] for rank in (0, 1)}
    unix, token = job.control["socket"], bytes.fromhex(job.control["token"])
    tcp = until(lambda: listening_port(job.pid), "the manager's port")
    refused = 0

    # Strangers, at both doors: refused at once or after the greeting's deadline, and never waited for.
    slow = [connect(address) for address in (unix, tcp) for _ in range(20)]
    for s in slow:
        s.sendall(b"\0")  # the first byte of a frame that never ends
    for address in (unix, tcp):
        for said in NONSENSE.values():
            with connect(address) as s:
                s.sendall(said)
                assert hung_up(s)
        with connect(address) as s:
            s.sendall(struct.pack(">I", 32) + b"half")  # and gone
    refused += len(NONSENSE) + 1 + 20
    goes_on(job)
    for s in slow:
        assert hung_up(s)
        s.close()

    # Those who know the token, and are not who they say.
    for number in (1, 2, 999, -1):
        with connect(unix) as s:
            greet_server_blocking(s, token)
            assert cut_off(s, Hello(process=number, pid=1), Report(stage="paused", generation=99)), number
    with connect(unix) as s:
        greet_server_blocking(s, token)
        assert cut_off(s, {"type": "Nonsense"})
    refused += 5
    goes_on(job)
    assert all(alive(p) for p in first.values()), "no rank has noticed any of it"

    # A rank of the past: its process was replaced, and it speaks all the same.
    kill(first[1])
    until(lambda: len(job.pids("up1")) > 1, "rank 1 has a new process")
    goes_on(job)
    with connect(unix) as s:
        greet_server_blocking(s, token)
        late = StoreRequest(id=1, generation=1, op="set", key="k", value=b"v")
        assert cut_off(s, Hello(process=2, pid=first[1]), Report(stage="done", generation=1, step=3), late)
    refused += 1
    goes_on(job)

    onward.go("finish")
    assert job.wait() == 0, job.err
    assert job.outcome["outcome"] == "Succeeded"
    assert job.outcome["refused"] == refused
    assert job.outcome["steps_lost"] == 0
    assert [len(p) for p in job.outcome["pids"].values()] == [1, 2]
    assert len(job.outcome["incidents"]) == 1, "nothing but the kill was a fault"
    assert "internal error" not in job.err
    assert job.err.count("a connection to the agent was refused") == 20, "a siege does not fill the screen"
    assert job.err.count("further ones are only counted") == 1
    (manager_log,) = job.logs.glob("*/manager.log")
    assert manager_log.read_text().count("refused") == len(NONSENSE) + 1 + 20
    assert "Traceback" not in manager_log.read_text()


class Impostor:
    """A client that speaks as the rank of a plain script would, had it called `onward.init()`."""

    def __init__(self, job: Launched, process: int) -> None:
        self.socket = connect(job.control["socket"])
        greet_server_blocking(self.socket, bytes.fromhex(job.control["token"]))
        self.say(Hello(process=process, pid=1))
        frames = FrameReader()
        while not frames.feed(self.socket.recv(1 << 16)):
            pass

    def say(self, message: object) -> None:
        self.socket.sendall(pack(encoder, message))


def test_a_rank_that_talks_nonsense_loses_its_connection_and_the_launcher_lives(onward: Onward) -> None:
    """With the token and a number of its own: a stage that does not exist, a store that is not a number, big lies."""
    job = onward.start("-o", "json", onward.script("tell('up', os.getpid())\nwait_for('finish')"))
    job.pids("up", 2)
    one, two = Impostor(job, 1), Impostor(job, 2)
    one.say(StoreRequest(id=1, generation=1 << 40, op="set", key="k", value=b"v"))
    one.say(Report(stage="training", generation=1 << 60, step=1 << 62, local_steps=[-5, 1 << 62]))
    one.say(Report(stage="dancing", generation=1))
    assert hung_up(one.socket)
    two.say({"type": "Recorded", "scope": "x", "index": 1 << 40, "data": b""})
    assert hung_up(two.socket)
    onward.go("finish")
    assert job.wait() == 0, job.err
    assert job.outcome["dropped"] == 1
    assert "internal error" not in job.err
