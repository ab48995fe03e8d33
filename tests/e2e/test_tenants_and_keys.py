"""Tenants and keys through the commands and routes of a stack of the null engine."""

import json
import stat
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from shared.accounts.keys import key_id_of
from tests.kits.e2e.stack import Stack, ryz


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("accounts")
    with Stack(folder, "--engine", "null", "--groups", "1") as started:
        yield started.await_ready()
        assert started.end() == 0


def told(stack: Stack, *words: str) -> Any:
    done = ryz(*words, "--json", cwd=stack.folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(stack: Stack, *words: str) -> tuple[int, str]:
    done = ryz(*words, cwd=stack.folder)
    return done.returncode, done.stderr


def test_the_first_start_makes_an_admin_key_for_its_user_alone(stack: Stack) -> None:
    file = stack.state_dir.path / "admin.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text().strip()
    listed = told(stack, "keys", "list")
    (made,) = [key for key in listed["keys"] if key["scopes"]["admin"]]
    assert made["id"] == key_id_of(text)
    assert not listed["keys_required"], "it does not close the API"
    printed = stack.output.read_text()
    assert str(file) in printed
    assert text not in printed, "what is printed into a file may be kept"


def test_commands_manage_tenants_and_keys(stack: Stack) -> None:
    code, said = refused(stack, "keys", "create", "--tenant", "acme")
    assert (code, "ryz tenants create acme" in said) == (3, True)
    made = told(stack, "tenants", "create", "acme", "--running", "3", "--money-per-day", "12.5")
    assert (made["id"], made["limits"]["running"], made["limits"]["money_per_day"]) == ("acme", 3, 12.5)
    assert refused(stack, "tenants", "create", "acme")[0] == 4
    assert refused(stack, "tenants", "set", "acme", "--time-zone", "Mars/Olympus")[0] == 2
    assert refused(stack, "tenants", "show", "none")[0] == 3
    changed = told(stack, "tenants", "set", "acme", "--kv-bytes", "2GiB", "--running", "0")
    assert (changed["limits"]["kv_bytes"], changed["limits"]["running"]) == (2**31, 0)
    first = ryz("keys", "create", "--tenant", "acme", "--api", "chat", "--expires", "30d", cwd=stack.folder)
    assert first.returncode == 0
    assert "ryz keys require off" in first.stderr, "it says that the API is closed, and how to open it"
    assert "tenant `default`" not in first.stderr
    first_id = key_id_of(first.stdout.strip())
    assert first_id is not None
    told(stack, "keys", "require", "off")
    of_default = ryz("keys", "create", cwd=stack.folder)
    assert "It is of the tenant `default`" in of_default.stderr, "no option said so"
    told(stack, "keys", "revoke", str(key_id_of(of_default.stdout.strip())))
    told(stack, "keys", "require", "off")
    rotated = told(stack, "keys", "rotate", f"sk-ryz-{first_id}", "--overlap", "0s")
    assert key_id_of(rotated["key"]) == rotated["id"]
    assert (rotated["tenant"], rotated["scopes"]["apis"]) == ("acme", ["chat"])
    assert {"prefix", "scopes", "expires_s"} <= rotated.keys()
    keys = told(stack, "keys", "list", "--tenant", "acme")["keys"]
    assert [key["id"] for key in keys] == [rotated["id"]]
    assert refused(stack, "keys", "show", first_id)[0] == 3
    assert refused(stack, "tenants", "delete", "acme")[0] == 1
    assert told(stack, "keys", "revoke", rotated["id"])["revoked"]
    told(stack, "tenants", "suspend", "acme")
    assert told(stack, "tenants", "show", "acme")["suspended"]
    told(stack, "tenants", "resume", "acme")
    told(stack, "tenants", "price", "demo", "--prompt", "0.15", "--completion", "0.6", "--currency", "EUR")
    prices = told(stack, "tenants", "price")
    assert (prices["currency"], prices["prices"][0]["completion"]) == ("EUR", 0.6)
    for words in ("tenants list", "tenants audit", "tenants show acme"):
        shown = ryz(*words.split(), cwd=stack.folder)
        assert (shown.returncode, "acme" in shown.stdout) == (0, True)
    told(stack, "keys", "require", "on")
    assert told(stack, "tenants", "erase", "acme", "--yes")["complete"], "with the key of the state directory"
    told(stack, "keys", "require", "off")
    told(stack, "tenants", "delete", "acme", "--with-keys")
    entries = told(stack, "tenants", "audit")["entries"]
    assert (entries[0]["action"], entries[0]["subject"]) == ("remove", "tenant.acme")
    assert entries[0]["actor"].startswith("cli:")
    assert "digest" not in json.dumps(entries)


def test_routes_manage_tenants_and_keys(stack: Stack) -> None:
    admin = (stack.state_dir.path / "admin.key").read_text().strip()
    key_of_admin = {"Authorization": f"Bearer {admin}"}
    url = f"{stack.state.url}/v1/manage"
    with httpx.Client(base_url=url, timeout=30, headers=key_of_admin) as client:
        missing = client.post("/keys", json={"tenant": "web"})
        assert (missing.status_code, "ryz tenants create web" in missing.text) == (404, True)
        made = client.post("/tenants", json={"id": "web", "limits": {"running": 2}})
        assert (made.status_code, made.json()["limits"]["running"]) == (201, 2)
        assert client.post("/tenants", json={"id": "web"}).status_code == 409
        assert client.post("/tenants", json={"id": "a b"}).status_code == 400
        assert client.patch("/tenants/web", json={"time_zone": "Nowhere"}).status_code == 400
        changed = client.patch("/tenants/web", json={"suspended": True, "limits": {"running": 0}})
        assert (changed.json()["suspended"], changed.json()["limits"]["running"]) == (True, 0)
        key = client.post("/keys", json={"tenant": "web", "scopes": {"apis": ["chat"]}, "label": "w"})
        assert key.status_code == 201
        assert key.json()["closed_api"]
        assert key_id_of(key.json()["key"]) == key.json()["id"]
        told(stack, "keys", "require", "off")
        assert client.patch("/keys", json={"keys_required": False}).json() == {"keys_required": False}
        path = f"/keys/{key.json()['prefix']}"
        assert client.patch(path, json={"scopes": {"read_only": True}}).json()["scopes"]["read_only"]
        assert client.patch(path, json={"scopes": {"apis": ["none"]}}).status_code == 400
        rotated = client.post(f"{path}/rotate", json={"overlap_s": 600})
        assert (rotated.status_code, rotated.json()["scopes"]["read_only"]) == (201, True)
        assert client.get(path).json()["expires_s"] > 0
        assert client.delete(path).json() == {"id": key.json()["id"], "revoked": True}
        assert client.get(path).status_code == 404
        assert [one["id"] for one in client.get("/keys?tenant=web").json()["keys"]] == [rotated.json()["id"]]
        price = client.put("/prices/org/base:fr", json={"prompt": 1.5, "currency": "USD"})
        assert price.json()["prompt"] == 1.5
        assert client.get("/prices").json()["currency"] == "USD"
        assert client.delete("/prices/org/base:fr").status_code == 200
        assert client.delete("/tenants/web").status_code == 409
        assert client.delete("/tenants/web?with_keys=true").json()["revoked_keys"] == [rotated.json()["id"]]
        assert client.get("/tenants/web").status_code == 404
        entries = client.get("/audit?count=2").json()["entries"]
        assert entries[0]["subject"] == "tenant.web"
        assert entries[0]["actor"] in {"local", key_id_of(admin)}
        older = client.get(f"/audit?before={entries[1]['number']}&count=1").json()["entries"]
        assert older[0]["number"] < entries[1]["number"]
        assert client.get("/audit?count=0").status_code == 400
    far = httpx.get(f"{url}/tenants", headers={"x-forwarded-for": "203.0.113.7"})
    assert far.status_code in {401, 403}


def test_days_that_a_tenant_keeps_things(stack: Stack) -> None:
    days = {
        "session_days": 30, "response_days": 20, "file_days": 10, "batch_days": 5, "usage_days": 60,
        "record_days": 7,
    }  # fmt: skip
    options = [word for name, count in days.items() for word in (f"--{name.replace('_', '-')}", str(count))]
    made = told(stack, "tenants", "create", "kept", *options)
    assert {name: made[name] for name in days} == days
    changed = told(stack, "tenants", "set", "kept", "--file-days", "0", "--usage-days", "36")
    assert {name: changed[name] for name in days} == days | {"file_days": 0, "usage_days": 36}
    code, said = refused(stack, "tenants", "set", "kept", "--usage-days", "35")
    assert (code, "36 days or more" in " ".join(said.split())) == (2, True)
    admin = (stack.state_dir.path / "admin.key").read_text().strip()
    url = f"{stack.state.url}/v1/manage/tenants/kept"
    with httpx.Client(timeout=30, headers={"Authorization": f"Bearer {admin}"}) as client:
        answer = client.patch(url, json=days)
        assert (answer.status_code, {name: answer.json()[name] for name in days}) == (200, days)
        for name in days:
            assert client.patch(url, json={name: 3651}).status_code == 400
            lower = client.patch(url, json={name: 0}).json()
            assert {one: lower[one] for one in days} == days | {name: 0}
            client.patch(url, json=days)
        refusal = client.patch(url, json={"usage_days": 1})
        assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "usage_days")
    told(stack, "tenants", "delete", "kept")


def test_the_document_has_the_routes(stack: Stack) -> None:
    document = httpx.get(f"{stack.state.url}/openapi.json").json()
    routes = {(path, method) for path, methods in document["paths"].items() for method in methods}
    for path, method in (
        ("/v1/manage/tenants", "post"),
        ("/v1/manage/tenants/{tenant}", "patch"),
        ("/v1/manage/keys/{key}/rotate", "post"),
        ("/v1/manage/prices/{model}", "put"),
        ("/v1/manage/audit", "get"),
    ):
        assert (path, method) in routes
    assert "NewKeyBody" in document["components"]["schemas"]


def test_the_file_of_the_admin_key_follows_it(stack: Stack) -> None:
    file = stack.state_dir.path / "admin.key"
    old = key_id_of(file.read_text().strip())
    assert old is not None
    rotated = told(stack, "keys", "rotate", old, "--overlap", "0s")
    assert file.read_text().strip() == rotated["key"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with httpx.Client(base_url=stack.state.url) as client:
        assert client.get("/v1/manage/keys", headers={"authorization": f"Bearer {rotated['key']}"}).is_success

    done = ryz("keys", "revoke", rotated["id"], cwd=stack.folder)
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stderr.replace("\n", "")
    assert "is revoked" in file.read_text()
    assert rotated["key"] not in file.read_text()
