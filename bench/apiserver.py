"""The API server of `onward up` with 5,000 pods and 1,000 nodes: writes, lists, 50 watchers, memory, restart.

    .venv/bin/python bench/apiserver.py                   # a minute; prints a table, writes results/apiserver.json
    .venv/bin/python bench/apiserver.py --pods 500 --nodes 100 --watchers 10

The clients share the machine with the server, so these are lower bounds of what the server does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil

HERE = Path(__file__).resolve().parent
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
WRITERS = 16


def pod(number: int, nodes: int) -> dict[str, Any]:
    """The size of a training pod: a few dozen variables, mounts, requests."""
    env = [{"name": f"VARIABLE_{i}", "value": f"value-{i}"} for i in range(24)]
    mounts = [{"name": "data", "mountPath": f"/data/{i}", "subPath": str(i)} for i in range(4)]
    resources = {"limits": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "train:1", "command": ["python", "train.py"], "env": env}
    container.update(volumeMounts=mounts, resources=resources)
    return {
        "metadata": {"name": f"pod-{number}", "labels": {"app": f"job-{number % 50}", "rank": str(number)}},
        "spec": {"nodeName": f"node-{number % nodes}", "containers": [container], "volumes": [{"name": "data"}]},
    }


def node(number: int) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}]
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    labels = {"kubernetes.io/hostname": f"node-{number}", "zone": str(number % 8)}
    return {"metadata": {"name": f"node-{number}", "labels": labels},
            "status": {"capacity": capacity, "conditions": conditions}}  # fmt: skip


class Server:
    """The server's process, and what it takes."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def start(self) -> float:
        begun = time.monotonic()
        command = [sys.executable, "-m", "onward.local.api", "--state", str(self.state)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line.split(" at ")[1].split(";")[0]
        self.headers = {"Authorization": f"Bearer {(self.state / 'admin.token').read_text().strip()}"}
        self.tls = ssl.create_default_context(cafile=str(self.state / "ca.crt"))
        return time.monotonic() - begun

    def megabytes(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6

    def cpu_s(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


async def fill(server: Server, session: aiohttp.ClientSession, path: str, bodies: list[dict[str, Any]]) -> float:
    """Objects per second, from several clients at once."""
    queue = list(reversed(bodies))

    async def work() -> None:
        while queue:
            async with session.post(f"{server.url}{path}", json=queue.pop()) as answer:
                assert answer.status == 201, await answer.text()

    begun = time.monotonic()
    await asyncio.gather(*(work() for _ in range(WRITERS)))
    return len(bodies) / (time.monotonic() - begun)


async def timed(
    server: Server, session: aiohttp.ClientSession, path: str, headers: dict[str, str]
) -> tuple[float, int]:
    """Median milliseconds and bytes of one read."""
    times = []
    for _ in range(5):
        begun = time.monotonic()
        async with session.get(f"{server.url}{path}", headers=headers) as answer:
            size = len(await answer.read())
        times.append(time.monotonic() - begun)
    return sorted(times)[2] * 1000, size


async def watch(server: Server, session: aiohttp.ClientSession, start: str, expected: int, seen: list[float]) -> None:
    """One watcher: notes how long after its being sent each change arrived."""
    path = f"/api/v1/pods?watch=true&resourceVersion={start}&timeoutSeconds=120"
    left = expected
    async with session.get(f"{server.url}{path}") as answer:
        async for line in answer.content:
            sent = json.loads(line)["object"]["metadata"]["annotations"]["sent"]
            seen.append(time.monotonic() - float(sent))
            left -= 1
            if not left:
                return


async def fan_out(server: Server, session: aiohttp.ClientSession, watchers: int, changes: int) -> dict[str, float]:
    """Changes at a fair pace, each to be seen by every watcher."""
    async with session.get(f"{server.url}/api/v1/pods?limit=1") as answer:
        start = (await answer.json())["metadata"]["resourceVersion"]
    seen: list[float] = []
    tasks = [asyncio.create_task(watch(server, session, start, changes, seen)) for _ in range(watchers)]
    begun, cpu = time.monotonic(), server.cpu_s()
    headers = {"Content-Type": "application/merge-patch+json"}
    for number in range(changes):
        body = json.dumps({"metadata": {"annotations": {"sent": str(time.monotonic())}}})
        url = f"{server.url}/api/v1/namespaces/default/pods/pod-{number}"
        async with session.patch(url, data=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
    await asyncio.wait_for(asyncio.gather(*tasks), 120)
    took = time.monotonic() - begun
    seen.sort()
    return {
        "events_per_s": len(seen) / took,
        "p50_ms": seen[len(seen) // 2] * 1000,
        "p99_ms": seen[int(len(seen) * 0.99)] * 1000,
        "server_cpu_us_per_event": (server.cpu_s() - cpu) / len(seen) * 1e6,
    }


async def measure(server: Server, pods: int, nodes: int, watchers: int) -> dict[str, Any]:
    found: dict[str, Any] = {"empty_mb": server.megabytes()}
    connector = aiohttp.TCPConnector(limit=0, ssl=server.tls)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, headers=server.headers, timeout=timeout,
                                     read_bufsize=2**20) as session:  # fmt: skip
        found["nodes_per_s"] = await fill(server, session, "/api/v1/nodes", [node(i) for i in range(nodes)])
        path = "/api/v1/namespaces/default/pods"
        found["pods_per_s"] = await fill(server, session, path, [pod(i, nodes) for i in range(pods)])
        found["full_mb"] = server.megabytes()
        found["list_pods_ms"], found["list_pods_bytes"] = await timed(server, session, "/api/v1/pods", {})
        found["table_pods_ms"], _ = await timed(server, session, "/api/v1/pods", TABLE)
        found["list_nodes_ms"], _ = await timed(server, session, "/api/v1/nodes", {})
        chosen = "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1"
        found["pods_of_a_node_ms"], _ = await timed(server, session, chosen, {})
        found["get_pod_ms"], _ = await timed(server, session, f"{path}/pod-1", {})
        found["fan_out"] = await fan_out(server, session, watchers, min(200, pods))
        found["watched_mb"] = server.megabytes()
    server.kill()
    found["restart_s"] = server.start()
    found["database_mb"] = sum(file.stat().st_size for file in server.state.glob("api.db*")) / 1e6
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--watchers", type=int, default=50)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onward-bench-") as folder:
        server = Server(Path(folder))
        server.start()
        try:
            found = asyncio.run(measure(server, args.pods, args.nodes, args.watchers))
        finally:
            server.kill()
    fan = found["fan_out"]
    rows = [
        (f"create {args.nodes} nodes / {args.pods} pods, each durable before it is answered",
         f"{found['nodes_per_s']:.0f} / {found['pods_per_s']:.0f} per s"),
        ("memory of the server: empty, full, with watchers",
         f"{found['empty_mb']:.0f}, {found['full_mb']:.0f}, {found['watched_mb']:.0f} MB"),
        (f"list all pods ({found['list_pods_bytes'] / 1e6:.1f} MB) / as a table",
         f"{found['list_pods_ms']:.0f} / {found['table_pods_ms']:.0f} ms"),
        ("list all nodes / pods of one node / get one pod",
         f"{found['list_nodes_ms']:.0f} / {found['pods_of_a_node_ms']:.0f} / {found['get_pod_ms']:.1f} ms"),
        (f"a change seen by {args.watchers} watchers, p50 / p99 from sending it",
         f"{fan['p50_ms']:.0f} / {fan['p99_ms']:.0f} ms; {fan['events_per_s']:.0f} events per s"),
        ("start on that database after kill -9", f"{found['restart_s']:.1f} s ({found['database_mb']:.0f} MB)"),
    ]  # fmt: skip
    print("| what | |\n|---|---|")
    for what, value in rows:
        print(f"| {what} | {value} |")
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "apiserver.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
