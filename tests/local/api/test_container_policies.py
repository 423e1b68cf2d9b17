"""Restart policies of containers and names of pods, as a real server checks them since 1.35."""

from __future__ import annotations

from typing import Any

import pytest

from onward.local.api.pods import check_spec

RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}


def complaints(container: dict[str, Any], **spec: Any) -> list[str]:
    whole = {"containers": [{"name": "c", "image": "i", **container}], **spec}
    found = [cause.text() for cause in check_spec(whole, "spec")]
    return [text for text in found if "estart" in text.partition(":")[0] or "hostnameOverride" in text]


@pytest.mark.parametrize(
    ("container", "said"),
    [
        ({"restartPolicy": "Never", "restartPolicyRules": [RULE]}, []),
        ({"restartPolicy": "OnFailure"}, []),
        (
            {"restartPolicyRules": [RULE]},
            ["restartPolicy: Required value: must specify restartPolicy when restart rules are used"],
        ),
        (
            {"restartPolicy": "Sometimes"},
            ['restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure"'],
        ),
        (
            {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Stop"}]},
            [
                'restartPolicyRules[0].action: Unsupported value: "Stop": supported values: "Restart"',
                "restartPolicyRules[0].exitCodes: Required value",
            ],
        ),
        (
            {"restartPolicy": "Never", "restartPolicyRules": [{**RULE, "exitCodes": {"operator": "Is"}}]},
            ['restartPolicyRules[0].exitCodes.operator: Unsupported value: "Is": supported values: "In", "NotIn"'],
        ),
    ],
)
def test_policies_and_rules(container: dict[str, Any], said: list[str]) -> None:
    assert complaints(container, restartPolicy="Never") == [f"spec.containers[0].{each}" for each in said]


def test_a_name_in_the_place_of_the_pods_own() -> None:
    def said(**spec: Any) -> str:
        return "\n".join(complaints({}, restartPolicy="Never", **spec))

    assert said(hostnameOverride="any.name.of.mine") == ""
    assert "a lowercase RFC 1123 subdomain" in said(hostnameOverride="A_b")
    assert "must be no more than 64 characters" in said(hostnameOverride="a" * 65)
    assert "when hostNetwork is true" in said(hostnameOverride="a", hostNetwork=True)
