"""Validation of where a pod may run: tolerations, affinity, spread."""

from __future__ import annotations

from typing import Any

from onward.local.api import names
from onward.local.api.status import Cause, not_allowed, required, unsupported, wrong

Json = dict[str, Any]
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")
MUST = "must be specified when `operator` is 'In' or 'NotIn'"
MUST_NOT = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"


def check_placement(spec: Json, at: str) -> list[Cause]:
    """Affinity, gates and spread; tolerations are reported later."""
    causes = _affinity(spec.get("affinity") or {}, f"{at}.affinity")
    for index, gate in enumerate(spec.get("readinessGates") or ()):
        causes += _key(gate.get("conditionType", ""), f"{at}.readinessGates[{index}].conditionType")
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        causes += _key(gate.get("name", ""), f"{at}.schedulingGates[{index}]")
    for index, each in enumerate(spec.get("topologySpreadConstraints") or ()):
        causes += _spread(each, f"{at}.topologySpreadConstraints[{index}]")
    return causes


def _key(key: str, field: str) -> list[Cause]:
    return [wrong(field, key, bad) for bad in names.key_problems(key)]


def _spread(each: Json, at: str) -> list[Cause]:
    causes: list[Cause] = []
    if each.get("maxSkew", 0) <= 0:
        causes.append(wrong(f"{at}.maxSkew", each.get("maxSkew", 0), "must be greater than zero"))
    if not each.get("topologyKey"):
        causes.append(required(f"{at}.topologyKey", "can not be empty"))
    else:
        causes += _key(each["topologyKey"], f"{at}.topologyKey")
    if each.get("whenUnsatisfiable") not in UNSATISFIABLE:
        causes.append(unsupported(f"{at}.whenUnsatisfiable", each.get("whenUnsatisfiable", ""), UNSATISFIABLE))
    return causes + check_selector(each.get("labelSelector"), f"{at}.labelSelector")


def check_selector(selector: Json | None, at: str) -> list[Cause]:
    """A label selector of an object."""
    causes = names.check_labels((selector or {}).get("matchLabels") or {}, f"{at}.matchLabels")
    for index, each in enumerate((selector or {}).get("matchExpressions") or ()):
        field, values = f"{at}.matchExpressions[{index}]", each.get("values") or ()
        operator = each.get("operator", "")
        if operator in ("In", "NotIn"):
            causes += [] if values else [required(f"{field}.values", MUST)]
        elif operator in ("Exists", "DoesNotExist"):
            causes += [not_allowed(f"{field}.values", MUST_NOT)] if values else []
        else:
            causes.append(wrong(f"{field}.operator", operator, "not a valid selector operator"))
        causes += _key(each.get("key", ""), f"{field}.key") + _values(values, f"{field}.values")
    return causes


def _values(values: Any, at: str) -> list[Cause]:
    bad = [(index, value, names.value_problem(value)) for index, value in enumerate(values)]
    return [wrong(f"{at}[{index}]", value, why) for index, value, why in bad if why]


def check_tolerations(tolerations: list[Json], at: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, each in enumerate(tolerations):
        causes += _toleration(each, f"{at}[{index}]")
    return causes


def _toleration(toleration: Json, at: str) -> list[Cause]:
    key, value, operator = toleration.get("key", ""), toleration.get("value", ""), toleration.get("operator", "")
    causes = _key(key, f"{at}.key") if key else []
    if not key and operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        causes.append(wrong(f"{at}.operator", operator, why))
    if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        causes.append(wrong(f"{at}.effect", toleration.get("effect", ""), why))
    if operator in ("", "Equal"):
        bad = names.value_problem(value)
        causes += [wrong(f"{at}.operator", value, bad)] if bad else []
    elif operator == "Exists":
        why = "value must be empty when `operator` is 'Exists'"
        causes += [wrong(f"{at}.operator", value, why)] if value else []
    else:
        known = ("Equal", "Exists", "Lt", "Gt") if operator in ("Lt", "Gt") else ("Equal", "Exists")
        causes.append(unsupported(f"{at}.operator", operator, known))
    if toleration.get("effect") and toleration["effect"] not in EFFECTS:
        causes.append(unsupported(f"{at}.effect", toleration["effect"], EFFECTS))
    return causes


def _affinity(affinity: Json, at: str) -> list[Cause]:
    node, causes = affinity.get("nodeAffinity") or {}, list[Cause]()
    if REQUIRED in node:
        field, terms = f"{at}.nodeAffinity.{REQUIRED}.nodeSelectorTerms", node[REQUIRED].get("nodeSelectorTerms") or ()
        if not terms:
            causes.append(required(field, "must have at least one node selector term"))
        for index, term in enumerate(terms):
            causes += _node_term(term, f"{field}[{index}]", strict=True)
    for index, each in enumerate(node.get(PREFERRED) or ()):
        field = f"{at}.nodeAffinity.{PREFERRED}[{index}]"
        causes += _weight(each, field) + _node_term(each.get("preference") or {}, f"{field}.preference", strict=False)
    for kind in ("podAffinity", "podAntiAffinity"):
        pods = affinity.get(kind) or {}
        for index, term in enumerate(pods.get(REQUIRED) or ()):
            causes += _pod_term(term, f"{at}.{kind}.{REQUIRED}[{index}]")
        for index, each in enumerate(pods.get(PREFERRED) or ()):
            field = f"{at}.{kind}.{PREFERRED}[{index}]"
            causes += _weight(each, field) + _pod_term(each.get("podAffinityTerm") or {}, f"{field}.podAffinityTerm")
    return causes


def _weight(each: Json, at: str) -> list[Cause]:
    weight = each.get("weight", 0)
    return [] if 1 <= weight <= 100 else [wrong(f"{at}.weight", weight, "must be in the range 1-100")]


def _pod_term(term: Json, at: str) -> list[Cause]:
    causes = check_selector(term.get("labelSelector"), f"{at}.labelSelector")
    causes += check_selector(term.get("namespaceSelector"), f"{at}.namespaceSelector")
    for name in term.get("namespaces") or ():
        bad = names.label_problem(name)
        causes += [wrong(f"{at}.namespace", name, bad)] if bad else []
    key = term.get("topologyKey", "")
    if not key:
        causes.append(required(f"{at}.topologyKey", "can not be empty"))
    return causes + _key(key, f"{at}.topologyKey")


def _node_term(term: Json, at: str, strict: bool) -> list[Cause]:
    causes: list[Cause] = []
    for index, each in enumerate(term.get("matchExpressions") or ()):
        causes += _node_requirement(each, f"{at}.matchExpressions[{index}]", strict)
    for index, each in enumerate(term.get("matchFields") or ()):
        field, values = f"{at}.matchFields[{index}]", each.get("values") or ()
        if each.get("operator") not in ("In", "NotIn"):
            causes.append(wrong(f"{field}.operator", each.get("operator", ""), "not a valid selector operator"))
        elif len(values) != 1:
            why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            causes.append(required(f"{field}.values", why))
        if each.get("key") != "metadata.name":
            causes.append(wrong(f"{field}.key", each.get("key", ""), "not a valid field selector key"))
    return causes


def _node_requirement(each: Json, at: str, strict: bool) -> list[Cause]:
    operator, values, causes = each.get("operator", ""), each.get("values") or (), list[Cause]()
    if operator in ("In", "NotIn"):
        causes += [] if values else [required(f"{at}.values", MUST)]
    elif operator in ("Exists", "DoesNotExist"):
        causes += [not_allowed(f"{at}.values", MUST_NOT)] if values else []
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            causes.append(required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"))
    else:
        causes.append(wrong(f"{at}.operator", operator, "not a valid selector operator"))
    causes += _key(each.get("key", ""), f"{at}.key")
    return causes + (_values(values, f"{at}.values") if strict else [])
