"""How the values of flags are read: each function takes the text and returns what it means, or raises UsageError."""

from __future__ import annotations

import os
import pkgutil
import re
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from onward.agent.settings import Streams
from onward.cli.modules import first_missing
from onward.core.policy import did_you_mean
from onward.devices import check_patterns, count_devices, cuda, npu
from onward.errors import UsageError

MAX_RANKS_PER_NODE = 4096  # beyond this a number is a slip, such as a port in the wrong place


def nodes(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", text)
    if not match:
        raise UsageError("not a number of nodes; give N or MIN:MAX, such as 2 or 2:4")
    least, most = int(match[1]), int(match[2] or match[1])
    if least < 1:
        raise UsageError("a job needs at least one node; give 1 or more")
    if least > most:
        raise UsageError(f"the minimum {least} is more than the maximum {most}; did you mean {most}:{least}?")
    return least, most


def nproc(text: str, env: Mapping[str, str]) -> int:
    if re.fullmatch(r"[0-9]{1,9}", text):
        count = int(text)
        if not 1 <= count <= MAX_RANKS_PER_NODE:
            raise UsageError(f"a node runs 1 to {MAX_RANKS_PER_NODE} ranks; give such a number, auto, gpu, npu or cpu")
        return count
    # As torchrun counts: the processors this process may use, which a container can limit.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus, npus = count_devices(cuda.VENDOR, env), count_devices(npu.VENDOR, env)
    counts = {"auto": gpus or npus or cpus, "gpu": gpus, "npu": npus, "cpu": cpus}
    if text not in counts:
        raise UsageError(f"not a number of ranks; give 1 or more, auto, gpu, npu or cpu{did_you_mean(text, counts)}")
    if counts[text] == 0:
        vendor = cuda.VENDOR if text == "gpu" else npu.VENDOR
        where = f"{vendor.visible_devices_env} or /dev/{vendor.device_files}"
        raise UsageError(f"no {text} found by {where}; give a number, or cpu")
    return counts[text]


def regex(text: str) -> str:
    check_patterns((text,))
    return text


def modules(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    wrong = [name for name in names if not all(part.isidentifier() for part in name.split("."))]
    if wrong or not names:
        raise UsageError("not names of modules; give them as in an import statement, such as numpy,torchvision.models")
    tops = dict.fromkeys(name.split(".")[0] for name in names)  # what is below only an import can tell for sure
    missing = [top for top in tops if first_missing(top, sys.path)]
    if missing:
        known = [*sys.stdlib_module_names, *(found.name for found in pkgutil.iter_modules())]
        where = "the directory of the script is not searched, but PYTHONPATH is"
        raise UsageError([f"no module {top} to import{did_you_mean(top, known)} ({where})" for top in missing])
    return names


def signals(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip().upper() for name in text.split(",") if name.strip()))
    known = [name for name in signal.Signals.__members__ if name not in ("SIGKILL", "SIGSTOP")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError([f"{name} is not a signal that can be handled{did_you_mean(name, known)}" for name in unknown])
    return names


def streams(text: str, nproc: int) -> dict[int, Streams]:
    if re.fullmatch(r"[0-3]", text):
        return dict.fromkeys(range(nproc), Streams(int(text)))
    if not re.fullmatch(r"[0-9]{1,6}:[0-3](?:,[0-9]{1,6}:[0-3])*", text):
        raise UsageError(
            "not a choice of streams; give 0 (none), 1 (out), 2 (err) or 3 (both), or by local rank 0:1,1:3"
        )
    chosen = dict(pair.split(":") for pair in text.split(","))
    by_rank = {int(rank): Streams(int(streams)) for rank, streams in chosen.items()}
    return {rank: by_rank.get(rank, Streams.NONE) for rank in range(nproc)}


def ranks(text: str) -> frozenset[int] | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,6}(?:, *[0-9]{1,6})*", text):
        raise UsageError("not a list of local ranks; give numbers such as 0,1,2")
    return frozenset(int(rank) for rank in text.split(","))


def writable_dir(text: str) -> Path:
    try:
        os.makedirs(text, exist_ok=True)
        with tempfile.TemporaryFile(dir=text):
            return Path(text)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"cannot write there ({reason}); give a directory that can be made and written")


def readable_file(text: str) -> Path:
    if not os.path.isfile(text) or not os.access(text, os.R_OK):
        raise UsageError("not a file that can be read; give the path of one")
    return Path(text)
