"""Starting the process of a rank: forked from the warm parent, or cold."""

from __future__ import annotations

import os
import socket
import subprocess

import msgspec

from onward.agent.environment import Post, rank_environment
from onward.agent.facts import Process
from onward.agent.places import Places
from onward.agent.processes import MARK, die_with, disown, run_module
from onward.agent.rank import RankSpec
from onward.agent.settings import RunSettings
from onward.agent.warmth import WarmParent
from onward.wire import page as pages
from onward.wire.identity import Identity

OTHER_PYTHON = "PYTHON_EXEC"  # torchrun's variable for the interpreter that runs the script, when it is not this one


class Births:
    """Makes processes for ranks. Owns what they are told in their environment."""

    def __init__(self, settings: RunSettings, places: Places, identity: Identity) -> None:
        self._settings = settings
        self._places = places
        self._identity = identity
        self._cwd = _here()
        self._ports: dict[int, int] = {}  # attempt -> MASTER_PORT
        self.under_way = 0  # processes that may be forked already and are not known yet

    async def start(self, p: Process, warm: WarmParent | None, master: str) -> int:
        """The pid of a new process for `p`. OSError when there can be none."""
        self.under_way += 1
        try:
            page, local_dir = self._places.of(p)
            pages.create(page)
            os.makedirs(local_dir, exist_ok=True)
            for path in self._places.logs(p):
                path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have tidied up
                path.touch()
            spec = self._spec(p, self._post(p, master))
            pid = await warm.fork(spec) if warm is not None else 0
            return pid or _cold_start(spec)
        finally:
            self.under_way -= 1

    def _post(self, p: Process, master: str) -> Post:
        s = self._settings
        if not s.several:
            return Post(0, 1, s.master_addr, self._master_port(p.attempt))
        host, _, port = master.rpartition("|")
        return Post(p.rank // s.nproc, s.nodes, host, int(port or 0))

    def _spec(self, p: Process, post: Post) -> RankSpec:
        s = self._settings
        out, err = self._places.logs(p)
        env = rank_environment(s, post, p.rank, p.attempt, max(p.incarnation - 1, 0))
        env["ONWARD_SOCKET"] = self._places.socket
        env.update(self._identity.environment)
        env["ONWARD_PROCESS"] = str(p.number)
        env[MARK] = self._places.mark(p.number)
        env["TORCHELASTIC_ERROR_FILE"] = str(self._places.error_file(p))
        return RankSpec(
            process=p.number,
            parent=os.getpid(),
            env=env,
            launch=s.launch,
            script=s.script,
            args=list(s.script_args),
            cwd=self._cwd,
            role=f"{'spare' if p.spare else 'rank'}{p.rank}",
            job=s.name,
            out=str(out),
            err=str(err),
            seed=self._places.seed(p),
            claim=self._places.claim(p),
        )

    def _master_port(self, attempt: int) -> int:
        if self._settings.master_port is not None:
            return self._settings.master_port
        if attempt not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as s:
                self._ports[attempt] = s.getsockname()[1]
        return self._ports[attempt]


def _here() -> str:
    """The directory that the job was started in; nothing when it has been deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _cold_start(spec: RankSpec) -> int:
    if spec.launch == "program":
        return _start_program(spec, [spec.script])
    if spec.env.get(OTHER_PYTHON):
        module = ["-m"] if spec.launch == "module" else []
        return _start_program(spec, [spec.env[OTHER_PYTHON], "-u", *module, spec.script])
    # Everybody on the machine can read a command line, so the environment, with its secrets, is not in it.
    command = run_module("onward.agent.rank", msgspec.structs.replace(spec, env={}).packed().decode())
    return disown(subprocess.Popen(command, env=spec.env, stdin=subprocess.DEVNULL))


def _start_program(spec: RankSpec, command: list[str]) -> int:
    with open(spec.out, "ab") as out, open(spec.err, "ab") as err:
        p = subprocess.Popen(
            [*command, *spec.args],
            env=spec.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=lambda: die_with(spec.parent),
        )
    return disown(p)
