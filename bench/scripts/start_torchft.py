"""What a user of torchft starts: its lighthouse, and a torchrun for each replica group, which starts that again.

    python start_torchft.py RANKS SCRIPT ARGS...
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ranks, command = int(sys.argv[1]), sys.argv[2:]
programs = Path(sys.executable).parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


port = free_port()
quick = ["--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "1000"]
started = [
    subprocess.Popen(
        [programs / "torchft_lighthouse", "--min_replicas", "2", "--bind", f"127.0.0.1:{port}", *quick],
    )
]
try:
    for rank in range(ranks):
        env = {"REPLICA_GROUP_ID": str(rank), "NUM_REPLICA_GROUPS": str(ranks)}
        env |= {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        place = [f"--master_port={free_port()}", "--nnodes=1", "--nproc_per_node=1", "--max_restarts=1000"]
        started.append(subprocess.Popen([programs / "torchrun", *place, *command], env=os.environ | env))
    while all(p.poll() is None for p in started[1:]):
        time.sleep(0.5)
finally:
    for p in started:
        p.terminate()
    for p in started:
        try:
            p.wait(5)
        except subprocess.TimeoutExpired:
            p.kill()
