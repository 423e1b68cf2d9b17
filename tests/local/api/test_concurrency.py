"""Many clients at once: no update is lost, no name or address is given twice, every watcher sees one order."""

from __future__ import annotations

import threading
from collections.abc import Callable

from apiserver import ApiProcess

CLIENTS, ROUNDS = 8, 15


def _all_at_once(work: Callable[[int], None]) -> None:
    problems: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # reported below, in the test's own thread
            problems.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems, problems


def test_no_increment_is_lost(api: ApiProcess, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.ok("POST", path, {"metadata": {"name": "n"}, "data": {"n": "0"}})
    conflicts = []

    def count(number: int) -> None:
        for _ in range(ROUNDS):
            while True:
                found = api.ok("GET", f"{path}/n")
                found["data"]["n"] = str(int(found["data"]["n"]) + 1)
                code, _ = api.call("PUT", f"{path}/n", found)
                if code == 200:
                    break
                assert code == 409
                conflicts.append(number)

    _all_at_once(count)
    assert api.ok("GET", f"{path}/n")["data"]["n"] == str(CLIENTS * ROUNDS)
    assert conflicts, "the clients never met, so this shows nothing"


def test_a_name_is_given_once_and_addresses_differ(api: ApiProcess, namespace: str) -> None:
    winners: list[int] = []
    addresses: list[str] = []

    def create(number: int) -> None:
        code, _ = api.call("POST", f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "one"}})
        assert code in (201, 409)
        if code == 201:
            winners.append(number)
        for turn in range(5):
            body = {"metadata": {"name": f"s{number}-{turn}"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}
            made = api.ok("POST", f"/api/v1/namespaces/{namespace}/services", body)
            addresses.append(made["spec"]["clusterIP"])
            api.ok("POST", f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"generateName": "gen-"}})

    _all_at_once(create)
    assert len(winners) == 1
    assert len(set(addresses)) == len(addresses) == CLIENTS * 5
    found = api.ok("GET", f"/api/v1/namespaces/{namespace}/services")["items"]
    ports = [each["spec"]["ports"][0]["nodePort"] for each in found]
    assert len(set(ports)) == len(ports)


def test_patches_of_different_fields_all_stay(api: ApiProcess, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    start = api.ok("POST", path, {"metadata": {"name": "m"}})["metadata"]["resourceVersion"]

    def patch(number: int) -> None:
        for turn in range(ROUNDS):
            kind = ("application/merge-patch+json", "application/strategic-merge-patch+json")[turn % 2]
            api.ok("PATCH", f"{path}/m", {"data": {f"k{number}-{turn}": "x"}}, kind)

    _all_at_once(patch)
    assert len(api.ok("GET", f"{path}/m")["data"]) == CLIENTS * ROUNDS
    watch = f"{path}?watch=true&resourceVersion={start}&timeoutSeconds=1&fieldSelector=metadata.name%3Dm"
    orders = [[event["object"]["metadata"]["resourceVersion"] for event in api.watch(watch)] for _ in range(2)]
    assert orders[0] == orders[1] == sorted(orders[0], key=int)
    assert len(orders[0]) == CLIENTS * ROUNDS
