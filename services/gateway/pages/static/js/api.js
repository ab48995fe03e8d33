// Calls of the gateway: the key, errors in words, and server-sent events.
import * as store from "./store.js";

export class Refused extends Error {
  constructor(status, code, message, retryAfter) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

export async function call(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { ...headers };
  const key = store.key.read();
  if (key) sent["Authorization"] = `Bearer ${key}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method, headers: sent, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.ok) return answer;
  let error = {};
  try { error = (await answer.json()).error ?? {}; } catch { /* not from the gateway */ }
  const words = error.message ?? `the gateway answered with status ${answer.status}`;
  throw new Refused(answer.status, error.code ?? "", words, Number(answer.headers.get("retry-after")) || 0);
}

export const json = async (path, options) => (await call(path, options)).json();

// Whole events of a stream: {id, data}. What was cut in its middle is dropped: it comes again after a resumption.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const event = { id: "", data: "" };
        for (const line of part.split("\n")) {
          if (line.startsWith("data:")) event.data += line.slice(5).trimStart();
          else if (line.startsWith("id:")) event.id = line.slice(3).trim();
        }
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
