// What each tenant gets of busy groups now.
import { at, bar, cell } from "./cells.js";
import { element } from "./messages.js";

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const percent = (part) => part === null ? "–" : `${Math.round(100 * part)}\u00a0%`;
const count = (value) => value === null ? "–" : number.format(value);

function row(group, one) {
  const made = element("tr", {},
    cell(one.party, { more: [one.background && "batches", one.weight !== 1 && `weight ${one.weight}`].filter(Boolean).join(" · ") }),
    bar(one.share ?? 0, { due: one.due, words: percent(one.share) }),
    ...[percent(one.due), count(one.tokens_per_s), count(one.running), count(one.waiting), count(one.credit)].map((text) => cell(text, { className: "number" })),
    cell(group.group, { more: group.model }));
  if (one.credit < 0 && one.waiting) made.dataset.state = "owes";
  return made;
}

export function drawShares({ groups }) {
  const rows = groups.flatMap((group) => [
    ...group.parties.map((one) => row(group, one)),
    ...(group.others ? [element("tr", {}, Object.assign(cell(`and ${group.others} more`), { colSpan: 7 }), cell(group.group))] : []),
  ]);
  at("shares").replaceChildren(...rows);
  at("no-shares").hidden = rows.length > 0;
  const busy = groups.filter((group) => group.parties.length).length;
  at("busy").textContent = groups.length ? `${busy} of ${groups.length} ${groups.length === 1 ? "group is" : "groups are"} busy` : "no group answers";
}
