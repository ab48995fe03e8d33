// A conversation as a file: Markdown to read, or the session to be imported again.
import { call } from "../api.js";
import { element } from "../messages.js";

function save(content, name) {
  const url = URL.createObjectURL(content);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const fileName = (title) => title.replace(/[^\p{L}\p{N}_-]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "conversation";
const SPEAKERS = { system: "System prompt", user: "You", assistant: "Assistant" };

export function saveText(title, messages) {
  const parts = messages.filter((one) => one.role in SPEAKERS).map((one) => `**${SPEAKERS[one.role]}**\n\n${one.content.trim()}\n`);
  save(new Blob([`# ${title}\n\n${parts.join("\n")}`], { type: "text/markdown" }), `${fileName(title)}.md`);
}

export async function saveSession(id, title) {
  const answer = await call(`/v1/sessions/${encodeURIComponent(id)}/export`);
  save(await answer.blob(), `${fileName(title)}.session.json`);
}
