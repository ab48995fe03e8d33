// Two lines over the last minute, each on a scale of its own, and a mark where a group was lost. Returns their highest values.
const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, SPAN_MS] = [600, 120, 60_000];

function part(tag, name, attributes) {
  const node = document.createElementNS(SVG, tag);
  node.setAttribute("class", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

export function drawFlow(svg, history, losses) {
  if (!history.length) return {};
  const end = history.at(-1).at;
  const x = (at) => WIDTH * (1 - (end - at) / SPAN_MS);
  const highest = (field) => Math.max(...history.map((one) => one[field]));
  const line = (field) => {
    const most = Math.max(1, highest(field)) * 1.1;
    return history.map((one) => `${x(one.at).toFixed(1)} ${(HEIGHT - 2 - (HEIGHT - 6) * (one[field] / most)).toFixed(1)}`);
  };
  const tokens = line("tokens");
  const start = x(history[0].at).toFixed(1);
  svg.replaceChildren(
    part("line", "", { x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
    part("path", "area", { d: `M${start} ${HEIGHT}L${tokens.join("L")}L${WIDTH} ${HEIGHT}Z` }),
    part("path", "a", { d: `M${tokens.join("L")}` }),
    part("path", "b", { d: `M${line("running").join("L")}` }),
    ...losses.filter((at) => end - at < SPAN_MS).map((at) => part("line", "cut", { x1: x(at), x2: x(at), y1: 0, y2: HEIGHT })),
  );
  return { tokens: highest("tokens"), running: highest("running") };
}
