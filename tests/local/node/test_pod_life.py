"""The life of pods as the API shows it: phases, exit codes, reasons, restarts, probes, hooks, ends."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from kernel import alive
from onecluster import RUN, OneCluster

from onward.kube.client import ApiError

HOOKS = Path(tempfile.gettempdir()) / f"onward-test-hooks-{RUN}"  # seen from outside when its pod is gone
TEMPLATE = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: {restart}
  terminationGracePeriodSeconds: {grace}
  {pod}
  containers:
  - name: c
    image: none
    command: [sh, -c, {command!r}]
    {container}
"""


def pod(name: str, command: str, restart: str = "Never", pod: str = "", container: str = "", grace: int = 1) -> str:
    return "---" + TEMPLATE.format(
        name=name, command=command, restart=restart, pod=pod, container=container, grace=grace
    )


PODS = [
    pod("life-ok", "echo out; echo err >&2; echo last words > /dev/termination-log"),
    pod("life-fails", "echo broken; exit 3", container="terminationMessagePolicy: FallbackToLogsOnError"),
    pod("life-signal", "kill -9 $$$$"),
    pod("life-oom", "python3 -c 'bytearray(300 << 20)'; exit 1", container="resources: {limits: {memory: 40Mi}}"),
    pod("life-oom-all", "python3 -c 'bytearray(300 << 20)'; exit 1", pod="resources: {limits: {memory: 40Mi, cpu: 1}}"),
    pod("life-rules", "test -e /data/x && exit 0; touch /data/x; exit 42",
        pod="volumes: [{name: d, emptyDir: {}}]",
        container="volumeMounts: [{name: d, mountPath: /data}]\n    restartPolicy: Never\n"
        "    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [7, 42]}}]"),
    pod("life-own", "exit 3", restart="Always", grace=0, container="restartPolicy: Never").rstrip()
    + "\n  - {name: other, image: none, command: [sh, -c, 'exit 3']}\n",
    pod("life-missing", "true").replace("[sh, -c, 'true']", "[no-such-program]"),
    pod("life-empty", "true").replace("command: [sh, -c, 'true']", "args: [x]"),
    pod("life-crash", "echo try; exit 1", restart="Always"),
    pod("life-again", "test -e /data/x && exit 0; touch /data/x; exit 1", restart="OnFailure",
        pod="volumes: [{name: d, emptyDir: {}}]", container="volumeMounts: [{name: d, mountPath: /data}]"),
    pod("life-late", "sleep 600", pod="activeDeadlineSeconds: 1"),
    pod("life-init", "cat /data/x; sleep 600", restart="Always",
        container="volumeMounts: [{name: d, mountPath: /data}]",
        pod="volumes: [{name: d, emptyDir: {}}]\n  initContainers:\n"
        "  - {name: one, image: none, command: [sh, -c, echo 1 > /d/x], volumeMounts: [{name: d, mountPath: /d}]}\n"
        "  - {name: side, image: none, restartPolicy: Always, command: [sleep, '600']}\n"
        "  - {name: two, image: none, command: [sh, -c, echo 2 >> /d/x], volumeMounts: [{name: d, mountPath: /d}]}"),
    pod("life-init-bad", "true", pod="initContainers: [{name: one, image: none, command: [sh, -c, exit 4]}]"),
    pod("life-live", "touch /tmp/$HOSTNAME; sleep 600", restart="Always",
        container="livenessProbe: {exec: {command: [sh, -c, 'echo not well; exit 1']}, periodSeconds: 1, "
        "failureThreshold: 1, initialDelaySeconds: 1}"),
    pod("life-probes", "python3 -m http.server 8080", restart="Always",
        container="ports: [{name: web, containerPort: 8080}]\n"
        "    startupProbe: {tcpSocket: {port: web}, periodSeconds: 1, failureThreshold: 30}\n"
        "    readinessProbe: {httpGet: {path: /, port: web}, periodSeconds: 1, timeoutSeconds: 5}"),
    pod("life-hooks", "until test -s /data/post; do sleep 0.05; done; cat /data/post; "
        "trap 'cat /data/pre > /data/told; exit 0' TERM; while :; do sleep 0.05; done",
        restart="Always", grace=600,
        pod=f"volumes: [{{name: d, hostPath: {{path: {HOOKS}}}}}]",
        container="volumeMounts: [{name: d, mountPath: /data}]\n"
        "    lifecycle: {postStart: {exec: {command: [sh, -c, echo post > /data/post]}}, "
        "preStop: {exec: {command: [sh, -c, echo pre > /data/pre]}}}"),
    pod("life-stop", "trap 'echo stopped > /data/stop; exit 0' USR1; while :; do sleep 0.05; done",
        restart="Always", grace=600,
        pod=f"os: {{name: linux}}\n  volumes: [{{name: d, hostPath: {{path: {HOOKS}}}}}]",
        container="volumeMounts: [{name: d, mountPath: /data}]\n    lifecycle: {stopSignal: SIGUSR1}"),
    pod("life-two", "sleep 600", restart="Always", grace=0).rstrip()
    + "\n  - {name: other, image: none, command: [sh, -c, 'exit 0']}\n",
]  # fmt: skip


@pytest.fixture(scope="module")
def pods(cluster: OneCluster) -> OneCluster:
    """All of them at once: the tests only look."""
    HOOKS.mkdir()
    cluster.apply("".join(PODS))
    return cluster


def terminated(cluster: OneCluster, name: str, container: str = "c") -> dict[str, object]:
    found: dict[str, object] = cluster.container(name, container)["state"]["terminated"]
    return found


def test_a_pod_succeeds(pods: OneCluster) -> None:
    status = pods.phase("life-ok", "Succeeded")
    end = terminated(pods, "life-ok")
    assert (end["exitCode"], end["reason"], end["message"]) == (0, "Completed", "last words\n")
    assert status["qosClass"] == "BestEffort"
    conditions = {c["type"]: (c["status"], c.get("reason")) for c in status["conditions"]}
    assert conditions["Ready"] == ("False", "PodCompleted")
    assert conditions["PodScheduled"] == ("True", None)
    assert conditions["Initialized"][0] == "True"
    assert sorted(pods.logs("life-ok").split()) == ["err", "out"]
    assert status["podIP"].startswith("10.")
    assert status["hostIP"] != status["podIP"]
    assert pods.event("life-ok", "Successfully assigned default/life-ok to")


def test_a_pod_fails(pods: OneCluster) -> None:
    pods.phase("life-fails", "Failed")
    end = terminated(pods, "life-fails")
    assert (end["exitCode"], end["reason"], end["message"]) == (3, "Error", "broken")
    pods.phase("life-signal", "Failed")
    assert terminated(pods, "life-signal")["exitCode"] == 137


def test_more_memory_than_allowed(pods: OneCluster) -> None:
    pods.phase("life-oom", "Failed")
    assert terminated(pods, "life-oom")["reason"] == "OOMKilled"


def test_more_memory_than_the_pod_as_a_whole_may_have(pods: OneCluster) -> None:
    pods.phase("life-oom-all", "Failed")
    assert terminated(pods, "life-oom-all")["reason"] == "OOMKilled"


def test_a_container_has_a_policy_and_rules_of_its_own(pods: OneCluster) -> None:
    pods.phase("life-rules", "Succeeded")
    found = pods.container("life-rules")
    assert found["restartCount"] == 1
    assert found["lastState"]["terminated"]["exitCode"] == 42
    pods.until(lambda: pods.container("life-own", "other").get("restartCount", 0) >= 1, "the pod's policy is Always")
    own = pods.container("life-own")
    assert (own["restartCount"], own["state"]["terminated"]["exitCode"]) == (0, 3)
    assert pods.status("life-own")["phase"] == "Running"


def test_a_command_that_does_not_exist(pods: OneCluster) -> None:
    pods.phase("life-missing", "Failed")
    end = terminated(pods, "life-missing")
    assert (end["exitCode"], end["reason"]) == (128, "StartError")
    assert "no-such-program" in str(end["message"])


def test_no_command_is_said_in_words(pods: OneCluster) -> None:
    pods.event("life-empty", "images are not pulled here, so the entrypoint of 'none' is not known")
    waiting = pods.container("life-empty")["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerError"
    assert pods.status("life-empty")["phase"] == "Pending"


def test_crash_loop(pods: OneCluster) -> None:
    pods.until(
        lambda: (
            (pods.container("life-crash").get("state") or {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"
        ),
        "CrashLoopBackOff",
    )
    pods.until(lambda: pods.container("life-crash")["restartCount"] >= 2, "restarts")
    assert pods.status("life-crash")["phase"] == "Running"
    assert pods.container("life-crash")["lastState"]["terminated"]["exitCode"] == 1
    assert pods.logs("life-crash", previous="true") == "try\n"
    assert pods.event("life-crash", "Back-off restarting failed container c in pod life-crash_default(")


def test_on_failure_runs_again_until_it_succeeds(pods: OneCluster) -> None:
    pods.phase("life-again", "Succeeded")
    found = pods.container("life-again")
    assert found["restartCount"] == 1
    assert found["lastState"]["terminated"]["exitCode"] == 1


def test_active_deadline(pods: OneCluster) -> None:
    status = pods.phase("life-late", "Failed")
    assert status["reason"] == "DeadlineExceeded"


def test_init_containers_and_sidecars(pods: OneCluster) -> None:
    pods.ready("life-init")
    assert pods.logs("life-init", container="c") == "1\n2\n"
    assert pods.container("life-init", "one")["state"]["terminated"]["reason"] == "Completed"
    assert "running" in pods.container("life-init", "side")["state"]
    pods.phase("life-init-bad", "Failed")
    assert terminated(pods, "life-init-bad", "one")["exitCode"] == 4
    assert "waiting" in pods.container("life-init-bad")["state"]
    with pytest.raises(ApiError, match="is waiting to start: PodInitializing"):
        pods.logs("life-init-bad", container="c")


def test_liveness_restarts(pods: OneCluster) -> None:
    pods.until(lambda: pods.container("life-live").get("restartCount", 0) >= 1, "a restart")
    pods.event("life-live", "Liveness probe failed: not well")
    pods.event("life-live", "Container c failed liveness probe, will be restarted")


def test_startup_then_readiness(pods: OneCluster) -> None:
    pods.ready("life-probes")
    assert pods.container("life-probes")["started"] is True


def test_hooks(pods: OneCluster) -> None:
    pods.until(lambda: pods.logs("life-hooks") == "post\n" if pods.container("life-hooks") else "", "postStart")
    pods.delete("life-hooks")
    pods.gone("life-hooks")  # by itself: its grace period is much longer than this waits
    assert (HOOKS / "told").read_text() == "pre\n", "preStop before SIGTERM"
    pods.ready("life-stop")
    pods.delete("life-stop")
    pods.gone("life-stop")
    assert (HOOKS / "stop").read_text() == "stopped\n", "the signal that it asks for"
    shutil.rmtree(HOOKS)


def test_several_containers(pods: OneCluster) -> None:
    pods.until(lambda: pods.container("life-two", "other").get("restartCount", 0) >= 1, "Always restarts exit 0 too")
    assert "running" in pods.container("life-two")["state"]


def test_deletion_ends_the_whole_tree(pods: OneCluster) -> None:
    stubborn = "trap '' TERM; (trap '' TERM; setsid sleep 600) & python3 -c 'import time; time.sleep(600)'; wait"
    pods.apply(pod("life-tree", stubborn, restart="Always", grace=1) + pod("life-force", stubborn, restart="Always"))
    for name in ("life-tree", "life-force"):
        pods.phase(name, "Running")
        pods.until(lambda name=name: len(pods.pids(name)) >= 3, f"the tree of {name}")
    tree, forced = pods.pids("life-tree"), pods.pids("life-force")
    pods.delete("life-tree")
    pods.delete("life-force", grace=0)
    pods.gone("life-force", timeout_s=5)
    pods.gone("life-tree")
    assert not [pid for pid in tree if alive(pid)], "all have ended before the object went"
    pods.until(lambda: not [pid for pid in forced if alive(pid)], "a forced deletion ends the processes too")


def test_deletion_while_starting(pods: OneCluster) -> None:
    pods.apply("".join(pod(f"life-early-{i}", "sleep 600", restart="Always") for i in range(4)))
    for i in range(4):
        pods.delete(f"life-early-{i}")
    for i in range(4):
        pods.gone(f"life-early-{i}")
