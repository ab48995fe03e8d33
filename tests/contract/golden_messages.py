"""An example of every message with all its fields filled; `golden.json` holds the encoded bytes.

A change to the bytes of an existing message breaks running peers. After you add a message or a field, write
the file again with `python -m tests.contract.golden_messages` and read the diff. It may only add lines,
except for messages whose new field was filled in here.
"""

import json
from pathlib import Path

from shared import messages as m
from shared.codec import encode, pack_tokens

GOLDEN_FILE = Path(__file__).with_name("golden.json")

TOP = m.TopLogprob(token_id=7, token=" \ufffd", logprob=-0.5, raw=b" \xe2")
LOGPROB = m.TokenLogprob(
    token_id=7, token=" \ufffd", logprob=-0.5, top=[TOP], raw=b" \xe2", offset=3
)  # fmt: skip
TEXT, REASONING = m.TextPart(text="naïve ☕"), m.ReasoningPart(text="a thought")
CALL_PART = m.ToolCallPart(index=1, call_id="call_1", name="weather", arguments='{"city":')
DELTA = m.Delta(
    choice=1, text="naïve ☕", token_ids=pack_tokens([7, 70_000]), logprobs=[LOGPROB], finish_reason="stop",
    parts=[REASONING, TEXT, CALL_PART], prompt_logprobs=[LOGPROB], embedding=bytes(8), prompt_text="x",
    stop="\n", prompt_token_ids=pack_tokens([1, 70_000]),
)  # fmt: skip
DEFAULTS = m.SamplingDefaults(temperature=0.2, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1)
USAGE = m.Usage(
    prompt_tokens=12,
    completion_tokens=2,
    cached_tokens=8,
    fetched_tokens=4,
    reasoning_tokens=1,
    stored_tokens=3,
)
ACCEPTED = m.Accepted(
    request_id="r-1",
    attempt=1,
    seq=0,
    group="g0",
    reason="sticky",
    session_id="s1",
    session_turns=2,
    kv="fetch",
    instance_id="leader-1",
    fingerprint="abcd",
    session_version=3,
    sampling=DEFAULTS,
    resumed="text",
)
TOKENS = m.Tokens(request_id="r-1", attempt=1, seq=1, deltas=[DELTA], prompt=m.Usage(prompt_tokens=12))
OUTCOME = m.SessionOutcome(
    state="continued", turns=3, version=4, stored="not_stored", reason="too_large", replaced=True
)
DONE = m.Done(request_id="r-1", attempt=1, seq=2, usage=USAGE, session=OUTCOME, resumed="text")
FAILED = m.Failed(
    request_id="r-1", attempt=1, seq=2, code="overloaded", message="full", data={"retry_after_s": 1.5},
    resumable=True, usage=m.Usage(prompt_tokens=3),
)  # fmt: skip
COUNTED = m.CountedRequest(tenant="acme", key_id="4f7a0m2k9d1c", request_id="r-1", attempt=2)
FILE = m.FileFacts(
    file_id="file-a", filename="in.jsonl", purpose="batch", num_bytes=9, created_s=17, expires_s=18
)
PROBLEM = m.BatchProblem(code="invalid_json_line", message="not parseable", line=3)
BATCH = m.BatchFacts(
    batch_id="batch_a", endpoint="/v1/embeddings", input_file_id="file-a", state="completed", created_s=17,
    expires_s=18, paused=True, total=3, completed=2, failed=1, output_file_id="file-b",
    error_file_id="file-c", times={"completed": 19}, metadata={"a": "b"}, problems=[PROBLEM],
)  # fmt: skip
CALL = m.ToolCall(call_id="call_1", name="weather", arguments='{"city": "Oslo"}')
MOMENT = m.Moment(name="decided", at_us=1_700_000_000_000_000, data={"group": "g0"})
TIMELINE = m.Timeline(request_id="report-7-1", attempt=1, left_out=2, moments=[MOMENT])
MESSAGE = m.ChatMessage(
    role="user",
    content="My name is Ada.",
    name="ada",
    tool_calls=[CALL],
    tool_call_id="call_1",
    reasoning="hm",
)
TOOL = m.ToolDefinition(
    name="weather", description="Tells it.", parameters='{"type": "object"}', strict=True, custom=True
)
TOOLS = m.ToolUse(tools=[TOOL], choice="named", name="weather", parallel=False, format="hermes")
STRUCTURED = m.StructuredOutput(kind="choice", definition="x", choices=["yes", "no"])
TEMPLATE = m.TemplateOptions(reasoning_effort="low", variables='{"enable_thinking": false}')
EMBEDDING = m.EmbeddingOptions(pooling="mean", normalize=False, dimensions=64)
GUEST = m.GuestCard(name="vLLM 0.32", lacks=["seed"])
SAMPLING = m.Sampling(
    temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1, presence_penalty=0.25,
    frequency_penalty=-0.25, logit_bias={7: -100.0}, seed=2**63 - 1, n=2, max_tokens=16, stop=["\n"],
    ignore_eos=True, logprobs=5, stop_token_ids=[7], min_tokens=2, prompt_logprobs=3,
    seed_given=True,
)  # fmt: skip
SESSION = m.SessionRef(session_id="s1", given=False, mode="append", if_version=3, must_exist=True)
RESUME = m.ResumePoint(
    token_ids=[pack_tokens([1, 2]), b""], next_seq=5, fingerprint="abcd", session_version=3,
    prompt_logprobs=4, prompt_text=5, prompt_ids=6, resumed="text",
)  # fmt: skip
LIMITS = m.Limits(
    requests_per_minute=60, tokens_per_minute=9000, running=4, tokens_per_day=10**6, tokens_per_month=10**7,
    money_per_day=5_000_000, money_per_month=50_000_000, sessions=100, kv_bytes=2**30, batch_lines=1000,
    adapters=3,
)  # fmt: skip
SCOPES = m.Scopes(models=["demo"], apis=["chat"], admin=True, read_only=True)
TENANT = m.TenantRecord(
    tenant="acme", limits=LIMITS, weight=2.0, models=["demo"], time_zone="Europe/Oslo", suspended=True,
    session_days=30, response_days=20, file_days=10, batch_days=5, usage_days=40, record_days=7,
    note="pilot", created_s=17,
)  # fmt: skip
BUS_USER = m.BusUserTerms(
    user="billing", password_hash="$2a$05$" + "a" * 53, max_rps=2.5, max_priority=-1, suspended=True,
)  # fmt: skip
KEY = m.KeyRecord(
    key_id="0123456789ab", tenant="acme", digest=bytes(range(32)), label="ci", scopes=SCOPES, limits=LIMITS,
    created_s=17, expires_s=18,
    bus_user=BUS_USER,
)  # fmt: skip
PRICE = m.PriceRecord(model="demo", prompt=500_000, cached=50_000, completion=1_500_000)
RULES = m.AccountRules(keys_required=True, bus_users_listed=True, currency="EUR")
STORED_KEY = m.StoredAccount(record=KEY, revision=7)
AUDIT = m.AuditEntry(
    number=7,
    at_ms=17,
    actor="key 0123456789ab",
    action="put",
    subject="tenant.acme",
    detail="{}",
    tenant="acme",
)
USAGE_RECORD = m.UsageRecord(
    request_id="r-1", tenant="acme", key_id="0123456789ab", model="demo", prompt_tokens=12, cached_tokens=8,
    completion_tokens=2, reasoning_tokens=1, embedded_tokens=5, queue_ms=3, compute_ms=40, ended_ms=17,
    outcome="cut", batch=True,
)  # fmt: skip
USAGE_SUM = m.UsageSum(
    day="2026-11-28", tenant="acme", key_id="0123456789ab", model="demo", requests=1, prompt_tokens=12,
    cached_tokens=8, completion_tokens=2, reasoning_tokens=1, embedded_tokens=5, queue_ms=3, compute_ms=40,
    money=9,
)  # fmt: skip
REQUEST = m.GenerateRequest(
    request_id="r-1", model="demo", messages=[MESSAGE], sampling=SAMPLING, session=SESSION, tenant="acme",
    priority=-3, attempt=1, reply_to="_INBOX.a.f", delivery="whole", resume=RESUME, kv="fetch",
    note=b"a note", call_key="k", call_digest="d", confirms=True, crashes=1,
    tools=TOOLS, structured=STRUCTURED, template=TEMPLATE, truncate_prompt_tokens=100, embedding=EMBEDDING,
    prompt_only=True, echo=True, generation_prompt=False, continues=True, prompt_ids=True, truncation="auto",
    party="address 192.0.2.1", lost_group="g1", usage_id="u-1", key_id="0123456789ab", weight=2.5,
    route_key="0123456789abcdef",
)  # fmt: skip
ROUTE = m.Route(group="g0", reason="sticky", preferred_group="g0", last_group="g1", router_id="router-1")
LOAD = m.Load(
    running=3, waiting=1, max_running=32, max_waiting=64, free_blocks=100, total_blocks=128,
    queued_tokens=500, tokens_per_s=1234.5,
)  # fmt: skip
CARD = m.ModelCard(
    name="demo", context_length=2048, fingerprint="abcd", created_s=1_700_000_000, chat=False,
    sampling=DEFAULTS, tenants=["acme"],
)  # fmt: skip
HOSTED = m.HostedGroup(
    group="g0",
    model="demo",
    phase="running",
    charged_bytes=2**30,
    age_ms=9000,
    load_ms=700,
    kv_bytes=2**28,
    kv_most_bytes=2**29,
    kv_least_bytes=2**26,
    kv_needed_bytes=2**24,
    kv_age_ms=8000,
)
OFFERED = m.OfferedModel(
    card=CARD, aliases=["small"], first_bytes=2**29, next_bytes=2**28, load_ms=700, least_groups=1,
    most_groups=2, priority=3, pinned=True, sleep_ms=60_000, local=True, wish="load",
    failure="the disk is full", retry_ms=4000,
)  # fmt: skip
MODEL_STATE = m.ModelState(
    card=CARD, phase="failed", aliases=["small"], groups_ready=1, groups=2, most_groups=2, pinned=True,
    priority=3, waiting=5, why="the disk is full", retry_s=4.0, load_s=0.7, charged_bytes=2**30,
    first_bytes=2**29,
)  # fmt: skip
MARK = m.TurnMark(
    request_id="r-1", version=3, size=2, whole=True, call_key="k", call_digest="d", replaces="r-0"
)
RECORD = m.SessionRecord(
    session_id="s1", tenant="acme", model="demo", version=3, messages=[MESSAGE],
    token_ids=pack_tokens([1, 2]), turns=3, last_group="g0",
    created_ms=1_700_000_000_000, updated_ms=1_700_000_000_001, last_request="r-1",
    recent=[MARK], adapter="0123456789abcdef" * 2,
)  # fmt: skip
SUMMARY = m.SessionSummary(
    session_id="s1", tenant="acme", model="demo", version=3, turns=3, num_messages=6, num_tokens=50,
    last_group="g0", created_ms=1, updated_ms=2, ttl_s=3600, pinned_group="g1", kv_bytes=4096, kv_blocks=3,
    kv_byte_seconds=8192.5, title="Hello",
)  # fmt: skip
PINNED = m.Pinned(tenant="acme", session_id="s1", group="g1")
TURN = m.SessionTurn(tenant="acme", session_id="s1", group="g0", num_tokens=500)
NAMES = bytes(range(32))
KV_EVENTS = m.KVEvents(group="g0", epoch="i-1.2", seq=7, removed=NAMES[:16], stored=NAMES)
HELD = m.HeldBlocks(tenant="acme", names=NAMES, parts=4, session_id="s1", priority=-1)
KV_RATES = m.KVRates(recompute_tokens_per_s=3600.0, fetch_tokens_per_s=40_000.0, fetch_s=0.002, store=True)

VITALS = m.Vitals(
    leader="hung", described_ms=1500, starved_ms=200, cpu_ms=1300, late_ms=12, pressure=0.5
)  # fmt: skip

RESPONSE = m.ResponseRecord(
    response_id="resp_1", tenant="acme", model="demo", parent="resp_0", created_ms=1_700_000_000_000,
    ended=False, input_items='[{"type":"message"}]', body='{"id":"resp_1"}', request=b"\x80",
)  # fmt: skip
RECORDED_MESSAGE = m.RecordedMessage(
    subject="ryz.v1.work.g0", outgoing=True, begin_ns=2, length_ns=1, num_bytes=9
)
RECORDED_RANK = m.RecordedRank(
    rank=1, pid=8, host="10.0.0.2", offset_ns=-3, error_ns=2, trace=b"t", problem="it ended"
)
ADAPTER = m.Adapter(
    name="fr", base="demo", source="/adapters/fr", fingerprint="0123456789abcdef" * 2, rank=16,
    num_bytes=3_200_000, tenant="acme", created_s=1_790_000_000,
)  # fmt: skip
LISTED_ADAPTER = m.ListedAdapter(
    name="fr", source="fr", fingerprint="0123456789abcdef" * 2, rank=16, num_bytes=3_200_000,
    created_s=1_790_000_000,
)  # fmt: skip

LIMIT_POOL = m.LimitPool(
    tenant="acme", key_id="abcdefghijkl", measure="tokens", window="day", limit=1_000_000,
    time_zone="Europe/Oslo", began_ms=1_790_000_000_000, had=1200, seen=5000, ahead=300,
)  # fmt: skip
LIMIT_TAKE = m.LimitTake(count=2, pools=[0], units=[500])
LIMIT_LEASE = m.LimitLease(granted=1300, left=7, began_ms=1_790_000_000_000, ends_ms=1_790_086_400_000)

EXAMPLES: list[m.Wire] = [
    TOP,
    LOGPROB,
    TEXT,
    REASONING,
    CALL_PART,
    DELTA,
    USAGE,
    ACCEPTED,
    TOKENS,
    OUTCOME,
    DONE,
    FAILED,
    m.FrameBatch(frames=[ACCEPTED, TOKENS, DONE, FAILED], group="g0", instance_id="leader-1"),
    m.Cancel(request_id="r-1", reason="the caller left", attempt=1, instance_id="leader-1", tenant="acme"),
    m.Delivered(request_id="r-1", tenant="acme", session_id="s1"),
    m.Resend(request_id="r-1", attempt=1, from_seq=4, instance_id="leader-1", tenant="acme"),
    m.ResendReply(known=True, next_seq=3, frames=[TOKENS, DONE], attempt=2),
    m.Attach(
        request_id="r-1", tenant="acme", reply_to="_INBOX.b.f", call_key="k", call_digest="d"
    ),
    m.Attached(request=encode(REQUEST), group="g0", instance_id="leader-1", first_seq=4, next_seq=9),
    CALL,
    MESSAGE,
    TOOL,
    TOOLS,
    STRUCTURED,
    TEMPLATE,
    EMBEDDING,
    SAMPLING,
    DEFAULTS,
    SESSION,
    RESUME,
    REQUEST,
    ROUTE,
    m.Work(request=encode(REQUEST), route=ROUTE, reply_to="_INBOX.a.f", instance_id="leader-1", outside=True,
           adapter=ADAPTER, counted_by="_INBOX.router.i.running"),
    m.RunningReport(group="g0", instance_id="leader-1", running=[COUNTED], ended=[COUNTED]),
    m.RunningCounted(counted_by="_INBOX.router.i.running"),
    COUNTED,
    LOAD,
    CARD,
    m.Heartbeat(
        group="g0", instance_id="i1", seq=9, interval_ms=100, state="ready", model=CARD, load=LOAD,
        tensor_parallel=2, weight=0.5, accepted_total=77, kv=KV_RATES, ended_total=70,
        broken_total=2, vitals=VITALS, adapters=[ADAPTER.fingerprint], guest=GUEST,
    ),
    VITALS,
    GUEST,
    m.GroupDown(
        group="g0", instance_id="leader-1", reason="disconnected", router_id="router-1", cause="ended"
    ),
    m.RouterAlive(router_id="router-1", takes=False, wanted={"demo": 3}),
    HOSTED,
    OFFERED,
    m.HostReport(
        host="stack", instance_id="h1", seq=4, budget_bytes=2**31, models=[OFFERED], groups=[HOSTED], epoch=7
    ),
    m.StartGroup(model="demo", running=1, epoch=7, reason="demand"),
    m.StopGroup(group="g0", epoch=7, reason="idle"),
    m.GroupCommanded(group="g1", refused="no memory"),
    m.LimitKV(group="g1", limit_bytes=2**28, epoch=7, reason="wanted"),
    m.KVLimited(
        group="g1", limit_bytes=2**28, most_bytes=2**29, most_tokens=65536, least_bytes=2**24,
        needed_bytes=2**20, refused="no memory",
    ),
    m.PutModel(host="stack", entry='{"source":"demo"}'),
    m.ManageModel(model="demo", action="scale", groups=2),
    m.ModelManaged(model="demo", host="stack", refused="it is pinned"),
    MODEL_STATE,
    m.LeaseClaim(name="models", holder="router-1", ttl_ms=3000, heard_epoch=1_700_000_000_000),
    ADAPTER,
    LISTED_ADAPTER,
    m.InspectAdapter(model="demo", source="/adapters/fr"),
    m.AdapterInspected(fingerprint="0123456789abcdef" * 2, rank=16, num_bytes=3_200_000),
    m.LoadAdapterCall(
        base="demo", name="fr", source="/adapters/fr", tenant="acme", replace=True,
        found=m.AdapterInspected(fingerprint="a" * 32, rank=8, num_bytes=1_474_560),
    ),
    m.UnloadAdapterCall(base="demo", name="fr"),
    m.AdapterManaged(adapter=ADAPTER),
    m.AdapterPut(adapter=ADAPTER, replace=True),
    m.AdapterDelete(base="demo", name="fr"),
    m.AdapterStored(adapter=ADAPTER, version=7),
    m.AdapterList(known=7, cursor="demo fr"),
    m.AdapterPage(adapters=[ADAPTER], version=7, cursor="demo fr"),
    m.AdapterChanged(base="demo", name="fr", before=6, version=7, put=ADAPTER),
    m.LeaseHeld(holder="router-2", epoch=7, ttl_ms=2500),
    m.ClaimGroup(
        group="g0", instance_id="leader-1", claim_id="c0ffee", host="host-1", since_ms=1_700_000_000_000
    ),
    m.GroupClaimed(group="g0", instance_id="leader-2", host="host-2", state="draining"),
    m.DrainGroup(timeout_ms=5000),
    m.Draining(group="g0", instance_id="leader-1", requests=3, timeout_ms=5000),
    m.ListModels(tenant="acme", adapters_of="demo"),
    m.ModelList(
        models=[CARD], away=["large"], offered=[MODEL_STATE], hosts=["stack"], adapters=[LISTED_ADAPTER],
        settled=False,
    ),
    m.StatusQuery(),
    m.ServiceStatus(
        service="router", instance_id="i1", state="draining", version="0.1.0", uptime_s=1.5, pid=42,
        detail={"groups": ["g0"]},
    ),
    m.ExplainQuery(request_id="report-7"),
    m.Explanation(
        service="router", instance_id="i1", now_us=1_700_000_000_000_000,
        timelines=[TIMELINE],
    ),
    MOMENT,
    TIMELINE,
    MARK,
    RECORD,
    SUMMARY,
    m.SessionGet(tenant="acme", session_id="s1", said="5a1d"),
    m.TurnState(runs=True, undelivered="r1"),
    m.SessionCommit(records=[RECORD]),
    m.SessionList(tenant="acme", limit=10, cursor="c", spare=False),
    m.SessionDelete(tenant="acme", session_id="s1"),
    m.SessionFound(record=RECORD),
    m.SessionCommitted(stale=[0], too_large=[2], deleted=[0], over_quota=[3]),
    m.SessionPage(sessions=[SUMMARY], cursor="c"),
    m.SessionDeleted(session_id="s1"),
    m.SessionDescribe(tenant="acme", session_id="s1"),
    m.SessionDescribed(session=SUMMARY),
    m.SessionPin(tenant="acme", session_id="s1", group="g1"),
    PINNED,
    m.PinList(limit=10, cursor="c"),
    m.PinPage(pins=[PINNED], cursor="c"),
    TURN,
    m.SessionTurns(turns=[TURN]),
    m.SessionGone(tenant="acme", session_id="s1", names=NAMES),
    m.SessionRouteQuery(tenant="acme", session_id="s1", model="demo"),
    m.SessionRoute(home="g0", pinned_group="g1", last_group="g2", groups={"g0": "ready"}),
    RESPONSE,
    m.FilePut(data=b"a line", filename="in.jsonl", purpose="user_data", tenant="acme"),
    m.FileJoin(file_ids=["file-a", "file-b"], filename="in.jsonl", purpose="user_data", tenant="acme"),
    m.FileRead(file_id="file-a", start=7, tenant="acme"),
    FILE,
    m.FileBytes(file=FILE, data=b"a line"),
    m.FileQuery(action="list", file_id="file-a", purpose="batch", tenant="acme"),
    m.FilesFound(files=[FILE], more=True),
    PROBLEM,
    BATCH,
    m.BatchCreate(
        input_file_id="file-a", endpoint="/v1/embeddings", completion_window="1h", metadata={"a": "b"},
        tenant="acme",
    ),
    m.BatchQuery(action="cancel", batch_id="batch_a", tenant="acme"),
    m.BatchesFound(batches=[BATCH], more=True),
    m.ResponsePut(record=RESPONSE, is_new=False, owner="gateway-1", lease_ms=15_000),
    m.ResponseStored(stored=True, dropped=2),
    m.ResponseGet(tenant="acme", response_id="resp_1"),
    m.ResponseFound(record=RESPONSE, abandoned=True),
    m.ResponseChainQuery(tenant="acme", response_id="resp_1", room=4096),
    m.ResponseChain(records=[RESPONSE], rest="resp_0"),
    m.ResponseLease(
        tenant="acme", response_id="resp_1", owner="gateway-1", lease_ms=15_000, takes_over=True
    ),
    m.ResponseLeased(held=True),
    m.ResponseClaim(owner="gateway-1", lease_ms=15_000, limit=8),
    m.ResponseName(tenant="acme", response_id="resp_1"),
    m.ResponsesClaimed(responses=[m.ResponseName(tenant="acme", response_id="resp_1")]),
    m.ResponseDelete(tenant="acme", response_id="resp_1"),
    m.ResponseDeleted(response_id="resp_1"),
    m.TokenizeQuery(
        model="demo", messages=[MESSAGE], prompt="x", tools=TOOLS, template=TEMPLATE, special_tokens=False,
        generation_prompt=False, continues=True, ids=False, texts=True, tenant="acme",
    ),
    m.Tokenized(count=1, context_length=2048, token_ids=pack_tokens([7]), texts=[" Ada"], parts={0: b"\xe2"}),
    m.DetokenizeQuery(model="demo", token_ids=pack_tokens([7]), tenant="acme"),
    m.Detokenized(text="naïve ☕"),
    m.BlocksFind(names=NAMES, lease_ms=2000, parts=4),
    m.BlocksFound(count=2, num_bytes=65_536),
    HELD,
    m.BlocksCommit(group="g0", held=[HELD]),
    m.BlocksCommitted(stored=2, evicted=1, over_quota=[0], pause_ms=500),
    m.HoldersQuery(tenant="acme", token_ids=pack_tokens([1, 2]), adapter="0123456789abcdef" * 2),
    m.Holding(
        group="g0", model="demo", num_tokens=100, cached_tokens=96, tensor_parallel=2, kv_format="fp16"
    ),
    KV_EVENTS,
    m.KVFollow(),
    m.KVFollowed(
        group="g0", model="demo", epoch="i-1.2", seq=7, lease_ms=30_000, held=2, block_tokens=32,
        fingerprint="f00d", kv_format="fp16", sharing="all",
    ),
    m.KVReplay(epoch="i-1.2", after=6),
    m.KVReplayed(epoch="i-1.2", seq=7, events=[KV_EVENTS], gone=True),
    m.KVSnapshotQuery(snapshot="i-1.2/7", offset=2),
    m.KVSnapshotPage(
        epoch="i-1.2", seq=7, snapshot="i-1.2/7", offset=2, total=4, names=NAMES, gone=True
    ),
    m.WarmSession(tenant="acme", session_id="s1"),
    LIMITS,
    SCOPES,
    TENANT,
    BUS_USER,
    KEY,
    PRICE,
    RULES,
    STORED_KEY,
    m.AccountChange(actor="cli", put=TENANT, remove="key.0123456789ab", expected=7, end_streams=True),
    m.AccountStored(stored=STORED_KEY, version=8),
    m.AccountQuery(cursor="key.0123456789ab", known=7),
    m.AccountPage(records=[STORED_KEY], version=8, cursor="key.0123456789ab"),
    m.AccountChanged(before=7, version=8, put=STORED_KEY, removed="key.0123456789ab", end_streams=True),
    m.AuditQuery(before=7, count=10),
    AUDIT,
    m.AuditPage(entries=[AUDIT]),
    USAGE_RECORD,
    m.UsageRecords(records=[USAGE_RECORD]),
    m.UsageQuery(tenant="acme", since="2026-11-01", until="2026-11-28", cursor="x"),
    USAGE_SUM,
    m.TenantErase(tenant="acme", for_ms=500, actor="cli"),
    m.TenantErased(
        sessions=1, responses=2, kv_blocks=3, kv_bytes=4096, usage_sums=5, usage_records=6, left=True
    ),
    m.UsagePage(sums=[USAGE_SUM], currency="EUR", read_to=9, cursor="x"),
    m.Warmed(group="g0", num_tokens=100, cached_tokens=96, fetched_tokens=64),
    KV_RATES,
    m.ProfileQuery(seconds=5.0, group="g0", op_spans=1000),
    m.ProfileAnswer(
        group="g0", instance_id="i1", host_id="b1", received_ns=1, answered_ns=2, refused="one runs"
    ),
    m.ProfilePart(group="g0", instance_id="i1", number=1, count=2, data=b"x"),
    m.GroupRecording(
        group="g0", instance_id="i1", model="demo", pid=7, began_ns=1, ended_ns=9, unix_ns=5,
        steps=bytes(8), rank_steps=bytes(8),
        messages=[RECORDED_MESSAGE],
        late_turns=bytes(16),
        ranks=[RECORDED_RANK],
        left_out=1,
        problem="it ended",
    ),
    RECORDED_MESSAGE,
    RECORDED_RANK,
    LIMIT_POOL,
    LIMIT_TAKE,
    LIMIT_LEASE,
    m.LeaseLimits(holder="gateway-1-x", number=3, pools=[LIMIT_POOL], takes=[LIMIT_TAKE]),
    m.LeasedLimits(leases=[LIMIT_LEASE], now_ms=1_790_000_001_000, holders=3),
    m.ErrorReply(error="session_not_found", message="no session s1", data={"param": "session_id"}),
]  # fmt: skip


def main() -> None:
    """Writes `golden.json`."""
    golden = {type(example).__name__: encode(example).hex() for example in EXAMPLES}
    GOLDEN_FILE.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
