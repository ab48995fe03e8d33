// Versions of a conversation: what was edited or asked again stays beside what came in its place. Pure.
//
// The message where versions part has `fork`: {at, from, tails}. Each tail is a version from that message on; the one
// at `at` is null, since the conversation itself has it. `from` is the version that was open before this one.

const MOST_VERSIONS = 12;

// Begins a new version at a message. Returns the messages before it, and the fork of the one that comes instead.
export function branch(messages, index) {
  const { fork = { at: 0, tails: [null] }, ...first } = messages[index];
  const all = fork.tails.map((tail, at) => (at === fork.at ? [first, ...messages.slice(index + 1)] : tail));
  const dropped = Math.max(0, all.length + 1 - MOST_VERSIONS); // the oldest
  const tails = all.slice(dropped);
  return { before: messages.slice(0, index), fork: { at: tails.length, from: Math.max(0, fork.at - dropped), tails: [...tails, null] } };
}

// Opens another version of the messages from `index` on.
export function open(messages, index, at) {
  const { fork, ...first } = messages[index];
  const tails = fork.tails.map((tail, one) => (one === fork.at ? [first, ...messages.slice(index + 1)] : tail));
  const [head, ...rest] = tails[at];
  tails[at] = null;
  return [...messages.slice(0, index), { ...head, fork: { at, from: fork.at, tails } }, ...rest];
}

// The messages without the version that was begun last and came to nothing.
export function back(before, fork) {
  const tails = fork.tails.slice(0, -1), at = fork.from;
  const [head, ...rest] = tails[at];
  tails[at] = null;
  return [...before, tails.length > 1 ? { ...head, fork: { at, from: at, tails } } : head, ...rest];
}

export const hasVersions = (messages) => messages.some((one) => one.fork);

// Whether one of the versions is what the cluster has stored.
export function holds(messages, stored) {
  for (const [index, one] of messages.entries()) {
    if (one.fork?.tails.some((tail) => tail && holds(tail, stored.slice(index)))) return true;
    if (one.role !== stored[index]?.role || one.content !== stored[index].content) return false;
  }
  return messages.length === stored.length;
}
