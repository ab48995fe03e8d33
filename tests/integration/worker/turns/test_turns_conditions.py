"""Turns that require an existing session or a known version of it; and a session that was lost."""

from tests.kits.stacks.turn_stack import TurnsFleet, both


async def test_who_asks_with_if_match_gets_a_409_and_not_another_order(fleet: TurnsFleet) -> None:
    first = await fleet.turn("one", "matched", headers={"If-None-Match": "*"})
    assert first.headers["x-ryz-session"] == "new; turns=1; version=1; stored"
    late = await fleet.turn("again", "matched", headers={"If-None-Match": "*"})
    assert (late.status_code, late.headers["x-ryz-reason"]) == (409, "session_changed")
    answers = await both(
        *(fleet.turn(f"two-{n}", "matched", index=n, headers={"If-Match": '"1"'}) for n in range(2))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    assert len(await fleet.said("matched")) == 2
    body = next(answer for answer in answers if answer.status_code == 409).json()
    assert body["error"]["code"] == "conflict"


async def test_a_session_that_no_caller_named_lives_shortly_until_its_second_turn(fleet: TurnsFleet) -> None:
    made = (await fleet.turn("hello", "")).headers["x-session-id"]
    await fleet.turn("hello", "mine")
    await fleet.until_ttl(made, 3000, 3600)
    await fleet.until_ttl("mine", 600_000, 604_800)
    await fleet.turn("again", made)
    await fleet.until_ttl(made, 600_000, 604_800)


async def test_a_session_that_must_exist_and_does_not_is_a_404(fleet: TurnsFleet) -> None:
    for more in ({"headers": {"X-Session-Must-Exist": "true"}}, {"session_must_exist": True}):
        answer = await fleet.turn("one", "missing", **more)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")
        streamed = await fleet.turn("one", "missing", stream=True, **more)
        assert streamed.status_code == 404
    assert (await fleet.turn("one", "missing")).status_code == 200
    assert (await fleet.turn("two", "missing", session_must_exist=True)).status_code == 200


async def test_a_session_that_was_lost_with_store_and_group_is_reported(fleet: TurnsFleet) -> None:
    made = (await fleet.turn("hello", "")).headers["x-session-id"]
    named = await fleet.turn("hello", "named")
    assert (await fleet.turn("two", made)).json()["session"]["turns"] == 2
    fleet.flush()
    # the leader of the last turn still has it
    assert (await fleet.turn("three", made)).json()["session"]["turns"] == 3
    fleet.flush()
    for index in range(fleet.groups):
        fleet.kill(f"group{index}")
        fleet.start_group(index)
    for index in range(fleet.groups):
        fleet.await_group(index)
    lost = await fleet.turn("four", made)
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "session_not_found")
    whole = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    again = await fleet.turn("", made, messages=[*whole, {"role": "user", "content": "c"}])
    assert again.headers["x-ryz-session"] == "new; turns=1; version=1; stored"
    assert named.json()["session"]["state"] == "new"
    assert (await fleet.turn("two", "named", session_must_exist=True)).status_code == 404
    answer = await fleet.turn("two", "named")
    assert answer.headers["x-ryz-session"] == "new; turns=1; version=1; stored"
