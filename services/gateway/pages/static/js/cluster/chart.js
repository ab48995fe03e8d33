// A line over the last minute with axes, and marks where a group was lost.
import { element } from "../messages.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, SPAN_MS] = [600, 120, 60_000];
const TOPS = [2, 4, 10]; // and ten, a hundred, ... times those: half of each is a whole number, too

function part(tag, name, attributes) {
  const node = document.createElementNS(SVG, tag);
  node.setAttribute("class", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// The top of a scale that has room for a value.
export function topOf(value) {
  for (let unit = 1; ; unit *= 10) {
    const found = TOPS.find((one) => one * unit >= value);
    if (found) return found * unit;
  }
}

const short = (number) => (number >= 10_000 ? `${number / 1000}k` : String(number));

// `name` is a heading, `kind` the class of the line. `show` takes [{at, value}] with times in ms, and times of losses.
export function chart(name, kind) {
  const now = element("b"), ticks = [element("span"), element("span"), element("span", { textContent: "0" })];
  const svg = part("svg", "flow", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const node = element("figure", { className: `chart ${kind}` },
    element("figcaption", {}, element("span", { textContent: name }), now),
    element("div", { className: "ticks y", ariaHidden: "true" }, ...ticks), svg,
    element("div", { className: "ticks x", ariaHidden: "true" }, ...["60 s ago", "30 s ago", "now"].map((textContent) => element("span", { textContent }))));
  return { node, show(points, losses) {
    if (!points.length) return;
    const end = points.at(-1).at, highest = Math.max(...points.map((one) => one.value)), top = topOf(highest);
    const x = (at) => (WIDTH * (1 - (end - at) / SPAN_MS)).toFixed(1);
    const line = points.map((one) => `${x(one.at)} ${(HEIGHT * (1 - one.value / top)).toFixed(1)}`).join("L");
    svg.replaceChildren(
      ...[0, 0.5, 1].map((at) => part("line", "grid", { x1: 0, x2: WIDTH, y1: at * HEIGHT, y2: at * HEIGHT })),
      ...[0, 0.5, 1].map((at) => part("line", "grid", { x1: at * WIDTH, x2: at * WIDTH, y1: 0, y2: HEIGHT })),
      part("path", "area", { d: `M${x(points[0].at)} ${HEIGHT}L${line}L${WIDTH} ${HEIGHT}Z` }),
      part("path", "line", { d: `M${line}` }),
      ...losses.filter((at) => end - at < SPAN_MS).map((at) => part("line", "cut", { x1: x(at), x2: x(at), y1: 0, y2: HEIGHT })),
    );
    [ticks[0].textContent, ticks[1].textContent] = [short(top), short(top / 2)];
    now.textContent = short(Math.round(points.at(-1).value));
    svg.setAttribute("aria-label", `${name} over the last minute: now ${now.textContent}, at most ${Math.round(highest)}`);
  } };
}
