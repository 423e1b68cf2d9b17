"""The Python `kubernetes` client: typed objects, dynamic ones, watches."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from apiserver import ApiProcess
from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException


@pytest.fixture(scope="module")
def connection(api: ApiProcess) -> Iterator[client.ApiClient]:
    made = config.new_client_from_config(str(api.state / "kubeconfig"))
    yield made
    made.close()


def _pod(name: str) -> client.V1Pod:
    container = client.V1Container(name="a", image="b", env=[client.V1EnvVar(name="X", value="1")])
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels={"app": name}), spec=client.V1PodSpec(containers=[container])
    )


def test_typed_objects(connection: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(connection)
    made = core.create_namespaced_pod(namespace, _pod("p"))
    assert made.spec.restart_policy == "Always"
    assert made.metadata.creation_timestamp.tzinfo is not None
    patched = core.patch_namespaced_pod("p", namespace, {"metadata": {"labels": {"more": "1"}}})
    assert patched.metadata.labels == {"app": "p", "more": "1"}
    core.patch_namespaced_pod_status("p", namespace, {"status": {"phase": "Running"}})
    assert core.read_namespaced_pod_status("p", namespace).status.phase == "Running"
    assert [each.metadata.name for each in core.list_namespaced_pod(namespace, label_selector="more=1").items] == ["p"]
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_pod(namespace, _pod("p"))
    assert caught.value.status == 409
    target = client.V1ObjectReference(kind="Node", name="n")
    binding = client.V1Binding(metadata=client.V1ObjectMeta(name="p"), target=target)
    core.create_namespaced_pod_binding("p", namespace, binding, _preload_content=False)
    assert core.read_namespaced_pod("p", namespace).spec.node_name == "n"
    core.delete_namespaced_pod("p", namespace, grace_period_seconds=0)
    with pytest.raises(ApiException):
        core.read_namespaced_pod("p", namespace)


def test_watch_and_conflict(connection: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(connection)
    start = core.list_namespaced_config_map(namespace).metadata.resource_version

    def work() -> None:
        core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="c")))
        read = core.read_namespaced_config_map("c", namespace)
        read.data = {"a": "1"}
        core.replace_namespaced_config_map("c", namespace, read)
        with pytest.raises(ApiException) as caught:
            core.replace_namespaced_config_map("c", namespace, read)
        assert caught.value.status == 409
        core.delete_namespaced_config_map("c", namespace)

    worker = threading.Thread(target=work)
    worker.start()
    seen = []
    stream = watch.Watch()
    for event in stream.stream(
        core.list_namespaced_config_map, namespace, resource_version=start, timeout_seconds=20,
        field_selector="metadata.name=c",
    ):  # fmt: skip
        seen.append(event["type"])
        if event["type"] == "DELETED":
            stream.stop()
    worker.join(20)
    assert seen == ["ADDED", "MODIFIED", "DELETED"]


def test_dynamic_client_leases_and_custom_objects(connection: client.ApiClient, namespace: str) -> None:
    found = dynamic.DynamicClient(connection)
    leases = found.resources.get(api_version="coordination.k8s.io/v1", kind="Lease")
    body = {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"},
    }  # fmt: skip
    made = leases.create(body=body, namespace=namespace)
    assert made.spec.holderIdentity == "me"
    applied = leases.server_side_apply(body=body, namespace=namespace, field_manager="tests")
    assert applied.metadata.uid == made.metadata.uid
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gears.python.example.com"},
        "spec": {
            "group": "python.example.com", "scope": "Namespaced", "names": {"plural": "gears", "kind": "Gear"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }  # fmt: skip
    extensions = client.ApiextensionsV1Api(connection)
    extensions.create_custom_resource_definition(definition)
    try:
        custom = client.CustomObjectsApi(connection)
        gear = {"apiVersion": "python.example.com/v1", "kind": "Gear", "metadata": {"name": "g"}, "spec": {"n": 1}}
        custom.create_namespaced_custom_object("python.example.com", "v1", namespace, "gears", gear)
        patch = {"spec": {"n": 2}}
        changed = custom.patch_namespaced_custom_object("python.example.com", "v1", namespace, "gears", "g", patch)
        assert changed["spec"]["n"] == 2
        bad = {"spec": {"n": "two"}}
        with pytest.raises(ApiException) as caught:
            custom.patch_namespaced_custom_object("python.example.com", "v1", namespace, "gears", "g", bad)
        assert caught.value.status == 422
    finally:
        extensions.delete_custom_resource_definition("gears.python.example.com")


def test_what_the_server_is(connection: client.ApiClient) -> None:
    assert client.VersionApi(connection).get_code().major == "1"
    assert "apps" in [group.name for group in client.ApisApi(connection).get_api_versions().groups]
    assert client.CoreApi(connection).get_api_versions().versions == ["v1"]
