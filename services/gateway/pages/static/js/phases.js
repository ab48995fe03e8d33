// What is said of a model that hosts load and put to sleep.
const seconds = (status) => (status?.load_s ? `about ${Math.max(1, Math.round(status.load_s))} s` : "");

export const phaseOf = ({ status }) => status?.phase ?? "ready";

// `asker` is what wakes it: a message or a request.
export function phaseWords(phase, status, asker) {
  const took = seconds(status);
  if (phase === "asleep") return `asleep: a ${asker} wakes it${took && ` in ${took}`}`;
  if (phase === "loading") return took ? `loading: takes ${took}` : "loading";
  if (phase === "away") return "no group serves it now";
  return status?.why ? `${phase}: ${status.why}` : phase;
}
