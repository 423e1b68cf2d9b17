"""What may come in over the wire, or be wrong with the machine: refused with a sentence, and the server goes on."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import socket
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from apiserver import ApiProcess, pod
from kernel import free_port
from waiting import until

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join('*' + chr(97 + i) for _ in range(9))}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (b"", "application/json"),
        (b"\x00\xff\xfe", "application/json"),
        (b'{"metadata": {"name": "x"}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'"text"', "application/json"),
        (b"null", "application/json"),
        (b'{"metadata": 7}', "application/json"),
        (b'{"metadata": {"name": {"a": 1}}}', "application/json"),
        (b'{"metadata": {"name": "x", "labels": ["a"]}}', "application/json"),
        (b'{"metadata": {"name": "x"}, "data": {"a": 1e999}}', "application/json"),
        (BOMB.encode(), "application/yaml"),
        (b"a: [b", "application/yaml"),
        (b"- " * 50_000, "application/yaml"),
        (b"!!python/object/apply:os.system ['true']", "application/yaml"),
        (b"k8s\x00\x0a\xff\xff\xff\xff", "application/vnd.kubernetes.protobuf"),
        (b"k8s\x00\x12\x05\x0a\x03\x0a\x01", "application/vnd.kubernetes.protobuf"),
        (b"not protobuf", "application/vnd.kubernetes.protobuf"),
        (os.urandom(2000), "application/vnd.kubernetes.protobuf"),
    ],
)
def test_malformed_bodies_are_400(api: ApiProcess, body: bytes, content: str) -> None:
    code, answer, _ = api.raw("POST", MAPS, body, {"Content-Type": content})
    assert code in (400, 422), answer
    status = json.loads(answer)
    assert status["kind"] == "Status"
    assert 0 < len(status["message"]) < 3000


def test_a_body_that_is_not_what_its_encoding_says(api: ApiProcess) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    code, answer, _ = api.raw("POST", MAPS, b"\x1f\x8b" + bytes(100), headers)
    assert code == 400, answer
    assert b"the body cannot be read" in answer
    code, answer, _ = api.raw("POST", MAPS, gzip.compress(b" " * (100 << 20)), headers)
    assert code == 413, answer


@pytest.mark.parametrize("content", ["application/json", "application/yaml"])
def test_half_a_character_is_replaced(api: ApiProcess, namespace: str, content: str) -> None:
    data = rb'{"a": "\ud800", "b": "\\ud800", "c": "\ud83d\ude00", "d": "\udc00\ud83d"}'
    body = b'{"metadata": {"name": "half"}, "data": ' + data + b"}"
    code, answer, _ = api.raw("POST", f"/api/v1/namespaces/{namespace}/configmaps", body, {"Content-Type": content})
    assert code == 201, answer
    assert json.loads(answer)["data"] == {"a": "\ufffd", "b": "\\ud800", "c": "\U0001f600", "d": "\ufffd\ufffd"}


def test_half_a_character_in_yaml_is_refused(api: ApiProcess) -> None:
    body = rb'metadata: {name: half, annotations: {a: "\ud800"}}'
    code, answer, _ = api.raw("POST", MAPS, body, {"Content-Type": "application/yaml"})
    assert code == 400, answer


def test_as_many_connections_as_the_machine_allows(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    process = ApiProcess(tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        process.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        assert process.process is not None
        assert resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        process.stop()


def test_who_connects_and_says_nothing_costs_little(tmp_path: Path) -> None:
    process = ApiProcess(tmp_path)
    process.start()
    try:
        assert process.process is not None
        server = psutil.Process(process.process.pid)
        before, files = server.memory_info().rss, server.num_fds()
        with contextlib.ExitStack() as silent:
            for _ in range(300):
                silent.enter_context(socket.create_connection(("127.0.0.1", process.port), timeout=30))
            until(lambda: server.num_fds() >= files + 300, "all of them are in")
            assert process.ok("GET", PODS)["kind"] == "PodList"
            assert server.memory_info().rss - before < 300 * 150_000
    finally:
        process.stop()


def test_sizes_are_bounded(api: ApiProcess) -> None:
    code, answer = api.call("POST", MAPS, {"metadata": {"name": "x" * 1_000_000}})
    assert code == 422
    assert len(json.dumps(answer)) < 5000
    assert "must be no more than 253 characters" in answer["message"]
    code, answer, _ = api.raw(
        "POST", MAPS, b'{"data": "' + b"x" * 4_000_000 + b'"}', {"Content-Type": "application/json"}
    )
    assert code == 413
    code, answer = api.call("POST", MAPS, {"metadata": {"name": "big"}, "data": {"a": "x" * 1_100_000}})
    assert code == 422
    notes = {"metadata": {"name": "notes", "annotations": {"a": "x" * 300_000}}}
    assert api.call("POST", MAPS, notes)[0] == 422
    code, _, _ = api.raw("GET", MAPS + "/" + "y" * 20_000)
    assert code in (400, 404, 414)
    deep: dict[str, object] = {}
    for _ in range(500):
        deep = {"a": deep}
    assert api.call("PATCH", f"{MAPS}/kube-root-ca.crt", deep, "application/merge-patch+json")[0] < 500


def test_what_copies_itself_in_a_patch_is_refused(api: ApiProcess) -> None:
    doubles = [{"op": "copy", "from": "/data", "path": f"/data/{n}"} for n in range(60)]
    code, answer = api.call("PATCH", f"{MAPS}/kube-root-ca.crt", doubles, "application/json-patch+json")
    assert code == 422
    assert "accumulated size increase of copy operations" in answer["message"]


@pytest.mark.parametrize("token", ["", "wrong", "x" * 10_000, "a.b.c", "..", "\u00e9"])
def test_a_wrong_token_is_401(api: ApiProcess, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}".encode("latin-1").decode("latin-1")}
    code, answer, _ = api.raw("GET", PODS, None, headers)
    assert code in (400, 401)
    if code == 401:
        assert json.loads(answer)["message"] == "Unauthorized"
    assert api.raw("GET", PODS, None, {"Authorization": "Basic YTpi"})[0] == 401


@pytest.mark.parametrize(
    "path",
    ["/api", "/apis", "/api/v1/", "//api/v1/pods", "/api/v1/namespaces//pods", "/api/v1/pods/x",
     "/..%2f..%2fetc/passwd",
     "/api/v1/namespaces/default/pods/x/y/z", "/apis/apps", "/apis/apps/v2", "/openapi/v3/apis/x/v1", "/nothing",
     "/api/v1/watch/pods?timeoutSeconds=1", "/api/v1/watch", "/api/v1/watch/watch", "/api/v1/nodes/n/proxy/x"],
)  # fmt: skip
def test_odd_paths_get_an_answer(api: ApiProcess, path: str) -> None:
    code, answer, _ = api.raw("GET", path)
    assert code in (200, 404, 405, 501), answer
    if code != 200 and answer != b"404 page not found\n":
        assert json.loads(answer)["message"]


@pytest.mark.parametrize(
    "query",
    [
        "labelSelector=%21%21",
        "labelSelector=a%20in%20b",
        "labelSelector=%3D",
        "labelSelector=a%2C%2Cb",
        "fieldSelector=x",
        "fieldSelector=a.b.c%3D1",
        "limit=-1x",
        "watch=1&timeoutSeconds=soon",
        "resourceVersion=1.5",
        "continue=%00",
        "resourceVersionMatch=Exact",
    ],
)
def test_bad_queries_are_400(api: ApiProcess, query: str) -> None:
    code, answer, _ = api.raw("GET", f"{PODS}?{query}")
    assert code in (400, 422), answer
    assert json.loads(answer)["kind"] == "Status"


def test_clients_that_hang_up_in_the_middle(api: ApiProcess) -> None:
    for data in (
        b"POST " + PODS.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"\x16\x03\x01",
        b"GET",
    ):
        with socket.create_connection(("127.0.0.1", api.port), timeout=5) as plain:
            plain.sendall(data)
    with socket.create_connection(("127.0.0.1", api.port), timeout=5) as plain:
        secure = api.context.wrap_socket(plain, server_hostname="127.0.0.1")
        secure.sendall(
            f"GET {PODS}?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n\r\n".encode()
        )
        assert b"200 OK" in secure.recv(1000)
        secure.close()
    assert api.ok("GET", PODS)["kind"] == "PodList"


def test_deletion_at_every_moment(api: ApiProcess, namespace: str) -> None:
    """A delete between any two writes of a life leaves no half-dead object."""
    base = f"/api/v1/namespaces/{namespace}/pods"
    merge = "application/merge-patch+json"
    life = [
        ("POST", f"{base}/p/binding", {"target": {"kind": "Node", "name": "n"}}, "application/json"),
        ("PATCH", f"{base}/p/status", {"status": {"phase": "Running"}}, merge),
        ("PATCH", f"{base}/p", {"metadata": {"finalizers": ["example.com/x"]}}, merge),
        ("PATCH", f"{base}/p/status", {"status": {"phase": "Succeeded"}}, merge),
        ("PATCH", f"{base}/p", {"metadata": {"finalizers": None}}, merge),
    ]
    for moment in range(len(life) + 1):
        api.ok("POST", base, pod("p"))
        for index, step in enumerate(life):
            if index == moment:
                api.call("DELETE", f"{base}/p")
            assert api.call(*step)[0] in (200, 201, 404, 409, 422)
        api.call("PATCH", f"{base}/p", {"metadata": {"finalizers": None}}, merge)
        api.call("DELETE", f"{base}/p", {"gracePeriodSeconds": 0})
        assert api.call("GET", f"{base}/p")[0] == 404


def test_secrets_are_for_the_owner_only(api: ApiProcess) -> None:
    for name in ("api.db", "ca.key", "server.key", "admin.token", "node.token", "kubeconfig"):
        assert stat.S_IMODE((api.state / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE(api.state.stat().st_mode) == 0o700


def _refused(state: Path, *flags: str) -> str:
    command = [sys.executable, "-m", "onward.local.api", "--state", str(state), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_second_server_and_a_taken_port_are_refused_with_a_sentence(api: ApiProcess, tmp_path: Path) -> None:
    assert "another API server already runs on" in _refused(api.state)
    assert f"cannot listen on 127.0.0.1:{api.port}: Address already in use" in _refused(
        tmp_path, "--port", str(api.port)
    )
    (tmp_path / "file").write_text("")
    assert "cannot use" in _refused(tmp_path / "file")


def test_a_database_that_is_none_is_refused_and_left_alone(tmp_path: Path) -> None:
    junk = b"this is not a database" * 1000
    (tmp_path / "api.db").write_bytes(junk)
    assert "cannot use the database" in _refused(tmp_path)
    assert (tmp_path / "api.db").read_bytes() == junk
    (tmp_path / "api.db").unlink()
    with contextlib.closing(sqlite3.connect(tmp_path / "api.db")) as made:
        made.execute("CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
        made.execute("INSERT INTO facts VALUES ('format', '99')")
        made.commit()
    assert "it has format 99, this version of onward reads format 1" in _refused(tmp_path)


def test_a_full_disk_refuses_writes_and_loses_nothing(tmp_path: Path) -> None:
    api = ApiProcess(tmp_path, "--max-pages", "250", "--port", str(free_port()))
    api.start()
    try:
        stored = []
        for n in range(200):
            body = {"metadata": {"name": f"c{n}"}, "data": {"a": "x" * 20_000}}
            code, answer = api.call("POST", MAPS, body)
            if code != 201:
                break
            stored.append(f"c{n}")
        assert code == 500
        assert "full" in answer["message"]
        assert "free some space and try again" in answer["message"]
        assert len(stored) > 5
        api.kill()
        api.start()
        names = [each["metadata"]["name"] for each in api.ok("GET", MAPS)["items"]]
        assert set(stored) <= set(names)
        assert f"c{len(stored)}" not in names
        for name in stored[:5]:
            assert api.call("DELETE", f"{MAPS}/{name}")[0] == 200, "room can be made by deleting"
        api.ok("POST", MAPS, {"metadata": {"name": "again"}})
    finally:
        api.stop()
