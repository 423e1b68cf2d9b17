"""Which resources there are, under which names, and what may be done with each.

Discovery, OpenAPI, docs/local-api.md and the tests are all made from this table, so that none can claim more than the
others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from onward.local.api.schema import Schema, builtin_types

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
NO_CONTROLLER = "no controller for {plural} runs here: the object is stored and nothing acts on it"


@dataclass(frozen=True)
class Resource:
    """One resource in one version."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    schema: Schema
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = VERBS
    storage: str = ""
    """Where objects are kept; two resources with one storage are two views of the same objects."""
    warning: str = ""
    """Said on every creation, where nothing acts on the kind here."""
    custom: bool = False
    singular: str = ""
    list_kind: str = ""
    columns: tuple[dict[str, Any], ...] = ()
    raw_schema: dict[str, Any] = field(default_factory=dict)
    scale_paths: dict[str, str] = field(default_factory=dict)
    selectable: tuple[str, ...] = ()
    struct: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        return self.storage or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def one(self) -> str:
        return self.singular or self.kind.lower()

    @property
    def many(self) -> str:
        return self.list_kind or self.kind + "List"


def _row(
    struct: str,
    group: str,
    plural: str,
    short: str = "",
    *,
    cluster: bool = False,
    subs: str = "",
    categories: str = "",
    verbs: tuple[str, ...] = VERBS,
    storage: str = "",
    idle: bool = False,
    warning: str = "",
) -> Resource:
    return Resource(
        group=group,
        version="v1",
        kind=struct.split(".")[1],
        plural=plural,
        namespaced=not cluster,
        schema=builtin_types().kind(struct),
        short_names=tuple(short.split()),
        categories=tuple(categories.split()),
        subresources=tuple(subs.split()),
        verbs=verbs,
        storage=storage,
        warning=NO_CONTROLLER.format(plural=plural) if idle else warning,
        struct=struct,
    )


CREATE = ("create",)
RBAC = "there is one user here, admin, who may do everything: the object is stored and not enforced"


def builtin() -> list[Resource]:
    """Every built-in resource, in the order in which `kubectl api-resources` should list them."""
    pod_subs = "attach binding ephemeralcontainers eviction exec log portforward proxy resize status"
    return [
        _row("core.Binding", "", "bindings", verbs=CREATE),
        _row("core.ConfigMap", "", "configmaps", "cm"),
        _row("core.Endpoints", "", "endpoints", "ep"),
        _row("core.Event", "", "events", "ev", storage="events"),
        _row("core.LimitRange", "", "limitranges", "limits", idle=True),
        _row(
            "core.Namespace",
            "",
            "namespaces",
            "ns",
            cluster=True,
            subs="finalize status",
            verbs=tuple(verb for verb in VERBS if verb != "deletecollection"),
        ),
        _row("core.Node", "", "nodes", "no", cluster=True, subs="proxy status"),
        _row("core.PersistentVolumeClaim", "", "persistentvolumeclaims", "pvc", subs="status", idle=True),
        _row("core.PersistentVolume", "", "persistentvolumes", "pv", cluster=True, subs="status", idle=True),
        _row("core.Pod", "", "pods", "po", subs=pod_subs, categories="all"),
        _row("core.PodTemplate", "", "podtemplates"),
        _row(
            "core.ReplicationController",
            "",
            "replicationcontrollers",
            "rc",
            subs="scale status",
            categories="all",
            idle=True,
        ),
        _row("core.ResourceQuota", "", "resourcequotas", "quota", subs="status", idle=True),
        _row("core.Secret", "", "secrets"),
        _row("core.ServiceAccount", "", "serviceaccounts", "sa", subs="token"),
        _row("core.Service", "", "services", "svc", subs="proxy status", categories="all"),
        _row("apps.ControllerRevision", "apps", "controllerrevisions"),
        _row("apps.DaemonSet", "apps", "daemonsets", "ds", subs="status", categories="all", idle=True),
        _row("apps.Deployment", "apps", "deployments", "deploy", subs="scale status", categories="all", idle=True),
        _row("apps.ReplicaSet", "apps", "replicasets", "rs", subs="scale status", categories="all", idle=True),
        _row("apps.StatefulSet", "apps", "statefulsets", "sts", subs="scale status", categories="all", idle=True),
        _row(
            "authentication.SelfSubjectReview",
            "authentication.k8s.io",
            "selfsubjectreviews",
            cluster=True,
            verbs=CREATE,
        ),
        _row("authentication.TokenReview", "authentication.k8s.io", "tokenreviews", cluster=True, verbs=CREATE),
        _row(
            "authorization.LocalSubjectAccessReview", "authorization.k8s.io", "localsubjectaccessreviews", verbs=CREATE
        ),
        _row(
            "authorization.SelfSubjectAccessReview",
            "authorization.k8s.io",
            "selfsubjectaccessreviews",
            cluster=True,
            verbs=CREATE,
        ),
        _row(
            "authorization.SelfSubjectRulesReview",
            "authorization.k8s.io",
            "selfsubjectrulesreviews",
            cluster=True,
            verbs=CREATE,
        ),
        _row(
            "authorization.SubjectAccessReview",
            "authorization.k8s.io",
            "subjectaccessreviews",
            cluster=True,
            verbs=CREATE,
        ),
        _row("batch.CronJob", "batch", "cronjobs", "cj", subs="status", categories="all", idle=True),
        _row("batch.Job", "batch", "jobs", subs="status", categories="all", idle=True),
        _row("coordination.Lease", "coordination.k8s.io", "leases"),
        _row("discovery.EndpointSlice", "discovery.k8s.io", "endpointslices"),
        _row("events.Event", "events.k8s.io", "events", "ev", storage="events"),
        _row(
            "apiextensions.CustomResourceDefinition",
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "crd crds",
            cluster=True,
            subs="status",
            categories="api-extensions",
        ),
        _row("networking.Ingress", "networking.k8s.io", "ingresses", "ing", subs="status", idle=True),
        _row("networking.NetworkPolicy", "networking.k8s.io", "networkpolicies", "netpol", idle=True),
        _row("policy.PodDisruptionBudget", "policy", "poddisruptionbudgets", "pdb", subs="status"),
        _row("rbac.ClusterRoleBinding", "rbac.authorization.k8s.io", "clusterrolebindings", cluster=True, warning=RBAC),
        _row("rbac.ClusterRole", "rbac.authorization.k8s.io", "clusterroles", cluster=True, warning=RBAC),
        _row("rbac.RoleBinding", "rbac.authorization.k8s.io", "rolebindings", warning=RBAC),
        _row("rbac.Role", "rbac.authorization.k8s.io", "roles", warning=RBAC),
        _row("scheduling.PriorityClass", "scheduling.k8s.io", "priorityclasses", "pc", cluster=True),
        _row("storage.StorageClass", "storage.k8s.io", "storageclasses", "sc", cluster=True, idle=True),
    ]


class Registry:
    """Lookups by path, by kind and by storage. Custom resources come and go; built-in ones stay."""

    def __init__(self) -> None:
        self.by_path: dict[tuple[str, str, str], Resource] = {}
        self.by_kind: dict[tuple[str, str, str], Resource] = {}
        self.custom: dict[str, list[Resource]] = {}
        self._stored: dict[str, Resource] = {}
        for each in builtin():
            self._add(each)
        self.revision = 0

    def _add(self, resource: Resource) -> None:
        self.by_path[resource.group, resource.version, resource.plural] = resource
        self.by_kind[resource.group, resource.version, resource.kind] = resource

    def set_custom(self, crd: str, resources: list[Resource]) -> None:
        """Replaces what one CRD serves; an empty list takes it away."""
        self._stored.clear()
        for old in self.custom.pop(crd, []):
            self.by_path.pop((old.group, old.version, old.plural), None)
            self.by_kind.pop((old.group, old.version, old.kind), None)
        for each in resources:
            self._add(each)
        if resources:
            self.custom[crd] = resources
        self.revision += 1

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self.by_path.get((group, version, plural))

    def all(self) -> list[Resource]:
        return list(self.by_path.values())

    def groups(self) -> dict[str, list[str]]:
        """Group to versions, in order of preference (v1 before v1beta1 before v1alpha1)."""
        found: dict[str, list[str]] = {}
        for each in self.by_path.values():
            versions = found.setdefault(each.group, [])
            if each.version not in versions:
                versions.append(each.version)
        for versions in found.values():
            versions.sort(key=version_rank)
        return found

    def stored(self, key: str) -> Resource | None:
        """Any version of the resource kept under this storage key; built-in views first."""
        found = self._stored.get(key)
        if found is None:
            found = next((each for each in self.by_path.values() if each.key == key), None)
            if found is not None:
                self._stored[key] = found
        return found


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Kubernetes' order of versions: general availability first, newest first, then beta, then alpha."""
    match = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if match is None:
        return (3, 0, 0, version)
    stage = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (stage, -int(match[1]), -int(match[3] or 0), "")
