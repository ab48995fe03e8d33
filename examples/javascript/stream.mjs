// A stream: node stream.mjs nats://USER:PASSWORD@HOST:PORT TENANT MODEL "Hello!"
// It publishes again while no group takes the request, waits for what is away, orders frames, asks for lost ones, and goes on at another
// group when the first one is lost; see docs/protocol.md.
import { decode, encode } from "@msgpack/msgpack";
import { connect } from "nats";
import { randomUUID } from "node:crypto";

const ACCEPT_MS = 200, SILENCE_MS = 1000, LIMIT_MS = 60_000, TRIES = 5, WAIT_MS = 5000, PAUSE_MS = 100;
const [address, tenant, model, prompt] = process.argv.slice(2);
const url = new URL(address);
const token = (name) => name.replace(/[^A-Za-z0-9_-]/gu, (c) =>
  [...new TextEncoder().encode(c)].map((b) => "=" + b.toString(16).toUpperCase().padStart(2, "0")).join(""));
const own = url.username ? `ryz.v1.tenant.${tenant}.${url.username}` : "ryz.v1"; // no user: no accounts
const inbox = url.username ? `_INBOX.${url.username}` : "_INBOX";
const nc = await connect({
  servers: url.host, inboxPrefix: inbox, ...(url.username && { user: url.username, pass: url.password }),
});

const request = {
  request_id: randomUUID(), model, messages: [{ role: "user", content: prompt }],
  sampling: { max_tokens: 64, temperature: 0 }, reply_to: `${inbox}.${randomUUID()}`,
};
let group = "", instance = "", fingerprint = "", attempt = 0, next = 0, tokens = [], held = new Map();
let ended = false, failure = "", heard = Date.now(), published = 0, silent = 0, paused = false;
const waitUntil = Date.now() + WAIT_MS; // a request that no group has begun waits for what is away

function publish() {
  const again = attempt ? { ...request, attempt } : request;
  if (attempt && next) {
    again.resume = { token_ids: [new Uint8Array(tokens)], next_seq: next, fingerprint };
  }
  published += 1;
  heard = Date.now();
  paused = false;
  if (published > 2) { // the router that gets the others may stand still
    nc.publish(`${own}.again.${token(model)}`, encode(again));
  } else {
    nc.publish(`${own}.generate.${token(model)}`, encode(again), { reply: `${request.reply_to}.none` });
  }
}

function refused(why) {
  if (ended || group) return;
  if (Date.now() < waitUntil || attempt) {
    paused = true;
    heard = Date.now();
    published = 0;
  } else {
    ended = true;
    failure = why;
  }
}

function nextAttempt() {
  attempt += 1;
  group = instance = "";
  held.clear();
  published = silent = 0;
  publish();
}

function take(frames) {
  for (const frame of frames) {
    if (frame.request_id === request.request_id && (frame.attempt ?? 0) === attempt && (frame.seq ?? 0) >= next) {
      held.set(frame.seq ?? 0, frame);
    }
  }
  for (let frame; !ended && (frame = held.get(next)); ) {
    held.delete(next);
    next += 1;
    if (frame.type === "accepted") {
      ({ group, instance_id: instance = "", fingerprint = "" } = frame);
      request.sampling = { ...frame.sampling, ...request.sampling }; // for a group with other defaults
    } else if (frame.type === "tokens") {
      for (const delta of frame.deltas ?? []) {
        process.stdout.write(delta.text ?? "");
        tokens.push(...(delta.token_ids ?? []));
      }
    } else if (frame.type === "failed" && frame.resumable) {
      next -= 1; // the next attempt brings another frame of this number
      return nextAttempt();
    } else if (frame.type === "failed" && frame.code === "unavailable" && !group) {
      next -= 1;
      return refused(`${frame.code}: ${frame.message}`);
    } else {
      ended = true;
      failure = frame.type === "failed" ? `${frame.code}: ${frame.message}` : "";
    }
  }
}

async function askForMissing() {
  try {
    const resend = { request_id: request.request_id, from_seq: next, attempt, instance_id: instance };
    const reply = decode((await nc.request(`${own}.resend.${token(group)}`, encode(resend), { timeout: 500 })).data);
    if (reply.known) {
      heard = Date.now();
      silent = 0;
      return take(reply.frames ?? []);
    }
    silent = TRIES;
  } catch {
    silent += 1;
  }
  if (silent >= 3) nextAttempt();
}

nc.subscribe(`${request.reply_to}.none`, {
  callback: () => refused("unavailable: no router is running"),
});
async function cancel(why) {
  if (ended) return;
  ended = true;
  failure = why;
  nc.publish(`${own}.cancel`, encode({ request_id: request.request_id }));
  await nc.flush();
}
process.on("SIGINT", () => cancel("cancelled: interrupted"));
nc.subscribe(request.reply_to, {
  callback: (error, message) => {
    const batch = decode(message.data);
    if (error || (group && batch.group && batch.group !== group)) return;
    if (batch.group) group = batch.group;
    heard = Date.now();
    take(batch.frames);
  },
});
publish();
const until = Date.now() + LIMIT_MS;
while (!ended && Date.now() < until) {
  await new Promise((done) => setTimeout(done, 20));
  const quiet = Date.now() - heard;
  if (ended) break;
  if (paused) {
    if (quiet > PAUSE_MS) publish();
  } else if (group && (held.size || quiet > SILENCE_MS)) {
    await askForMissing();
  } else if (!group && quiet > ACCEPT_MS * 2 ** (published - 1)) {
    if (published >= TRIES) refused("unavailable: no group took the request"); else publish();
  }
}
await cancel("deadline_exceeded: no end in time");
process.stdout.write("\n");
if (failure) { console.error(failure); process.exitCode = 1; }
await nc.drain();
