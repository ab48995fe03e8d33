// One answer from its request to its end: it goes on after a cut or a reload where it stopped.
import { Refused, call, events, json } from "./api.js";
import * as store from "./store.js";

const GRACE_S = 60; // how long the gateway lets the answer run without this page
const SAVE_MS = 300;
const GIVE_UP_MS = 60_000;
const SHORTEST_S = 0.1; // of an answer that has a rate
const wait = (ms, signal) => new Promise((done) => {
  const timer = setTimeout(done, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); done(); });
});

export class Answer {
  // `run` is {sessionId, body, streamId, lastId, message}; `on` has change(), waiting(words), first().
  constructor(run, on) {
    this.run = run;
    this.on = on;
    this.cut = new AbortController();
    this.stopped = false;
    this.saved = 0;
    this.keep = () => this.save(true);
    addEventListener("pagehide", this.keep);
  }

  // Reads to the end. Returns {ended: "done" | "stopped" | "broke", why}.
  async finish() {
    this.save(true);
    let downSince = 0;
    try {
      for (let tries = 0; ; tries += 1) {
        const before = this.run.lastId;
        try {
          const answer = await this.connect();
          this.on.waiting("");
          downSince = 0;
          if (await this.read(answer)) return { ended: "done" };
        } catch (error) {
          if (this.stopped) return { ended: "stopped" };
          if (error instanceof Broken) return { ended: "broke", why: error.message };
          if (error instanceof Refused) {
            if (error.status === 404 || error.status === 410) return await this.fromSession(error);
            if (![429, 502, 503, 504].includes(error.status) || (!this.run.streamId && error.status !== 503)) throw error;
          }
        }
        if (this.stopped) return { ended: "stopped" };
        if (this.run.lastId !== before) tries = 0;
        downSince ||= performance.now();
        if (performance.now() - downSince > GIVE_UP_MS) return { ended: "broke", why: "the connection did not come back" };
        this.on.waiting("The connection was cut. Going on as soon as it is back …");
        await wait(Math.min(100 * 2 ** tries, 2000), this.cut.signal);
      }
    } finally {
      removeEventListener("pagehide", this.keep);
      store.runs.write(this.run.sessionId, null);
    }
  }

  async stop() {
    this.stopped = true;
    const id = this.run.streamId;
    const ended = id ? call(`/v1/streams/${encodeURIComponent(id)}`, { method: "DELETE" }).catch(() => {}) : null;
    this.cut.abort();
    await ended;
  }

  async connect() {
    const { run, cut: { signal } } = this;
    const headers = { "X-Stream-Grace": String(GRACE_S) };
    if (run.streamId) {
      run.resumed = true;
      if (run.lastId) headers["Last-Event-ID"] = run.lastId;
      return call(`/v1/streams/${encodeURIComponent(run.streamId)}`, { headers, signal });
    }
    // the whole conversation replaces the history, so sending it again after a cut does no harm
    Object.assign(headers, { "X-Session-Id": run.sessionId, "X-Session-Mode": "replace" });
    run.sentAt = Date.now();
    const answer = await call("/v1/chat/completions", { method: "POST", body: run.body, headers, signal });
    run.streamId = answer.headers.get("x-stream-id") ?? "";
    run.group = answer.headers.get("x-ryz-group") ?? "";
    this.save(true);
    return answer;
  }

  // Returns whether the answer is whole; false: the connection broke.
  async read(answer) {
    for await (const { id, data } of events(answer)) {
      if (data === "[DONE]") return true;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Broken(chunk.error.message);
      this.take(chunk);
      if (id) this.run.lastId = id;
      this.save(false);
    }
    return false;
  }

  take(chunk) {
    const { message } = this.run;
    const choice = chunk.choices?.[0];
    if (choice?.finish_reason === "length") message.cut = true;
    if (chunk.usage) message.meta = this.facts(chunk.usage.completion_tokens);
    if (chunk.session) this.run.stored = chunk.session.stored;
    if (!choice) return;
    const { content, reasoning, tool_calls: calls } = choice.delta ?? {};
    if (content || reasoning) {
      this.run.firstAt ??= Date.now();
      this.on.first();
    }
    if (content) message.content += content;
    if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
    for (const one of calls ?? []) {
      const made = ((message.calls ??= [])[one.index] ??= { name: "", arguments: "" });
      made.name ||= one.function?.name ?? "";
      made.arguments += one.function?.arguments ?? "";
    }
    this.on.change();
  }

  // Tokens, tokens a second after the first, and the wait for that one; an answer that came in parts has only tokens.
  facts(tokens) {
    const { sentAt, firstAt, resumed, message } = this.run;
    const facts = [`${tokens} tokens`];
    const took = (Date.now() - firstAt) / 1000;
    if (!resumed && tokens > 1 && took > SHORTEST_S) {
      const rate = (tokens - 1) / took;
      facts.push(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`, `first after ${((firstAt - sentAt) / 1000).toFixed(1)} s`);
    }
    if (message.cut) facts.push("cut off: that was the longest answer allowed");
    return facts.join(" · ");
  }

  // The stream is kept no longer: the session has the answer if it was finished.
  async fromSession(error) {
    try {
      const found = await json(`/v1/sessions/${encodeURIComponent(this.run.sessionId)}?messages=true`);
      const last = found.messages?.at(-1);
      if (last?.role === "assistant" && found.messages.length === this.run.body.messages.length + 1) {
        this.run.message.content = last.content;
        this.on.change();
        return { ended: "done" };
      }
    } catch { /* told below */ }
    if (!this.run.streamId) throw error;
    return { ended: "broke", why: "the cluster keeps this answer no longer" };
  }

  save(now) {
    const time = performance.now();
    if (!now && time - this.saved < SAVE_MS) return;
    this.saved = time;
    store.runs.write(this.run.sessionId, this.run);
  }
}

class Broken extends Error {}
