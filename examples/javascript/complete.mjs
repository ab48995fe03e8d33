// One request, one reply: node complete.mjs nats://USER:PASSWORD@HOST:PORT TENANT MODEL "Hello!"
import { connect, headers } from "nats";

const [address, tenant, model, prompt] = process.argv.slice(2);
const url = new URL(address);
const name = model.replace(/[^A-Za-z0-9_-]/gu, (c) =>
  [...new TextEncoder().encode(c)].map((b) => "=" + b.toString(16).toUpperCase().padStart(2, "0")).join(""),
);
const nc = await connect({
  servers: url.host, user: url.username, pass: url.password, inboxPrefix: `_INBOX.${url.username}`,
});
const given = headers();
given.set("Ryz-Timeout-Ms", "30000");
try {
  const reply = await nc.request(
    `ryz.v1.tenant.${tenant}.${url.username}.complete.${name}`,
    JSON.stringify({ messages: [{ role: "user", content: prompt }], max_tokens: 64 }),
    { timeout: 31000, headers: given },
  );
  const answer = reply.json();
  if (answer.error) throw answer.error;
  console.log(answer.choices[0].message.content);
} catch (error) { // of the answer, or of the client: no router is running (503), or no answer came in time
  console.error(`${error.code ?? "failed"}: ${error.message}`);
  process.exitCode = 1;
}
await nc.close();
