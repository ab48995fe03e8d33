// Cells of the tables of tenants.
import { element } from "./messages.js";

const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

export function cell(text, { className = "", more = "" } = {}) {
  return element("td", { className }, element("span", { textContent: text }), ...(more ? [element("small", { textContent: more })] : []));
}

// A part of 1 as a bar, with an optional mark where it ought to end and the part in words.
export function bar(part, { due = null, words = "" } = {}) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of [["viewBox", "0 0 100 10"], ["preserveAspectRatio", "none"], ["role", "img"], ["aria-label", `${Math.round(100 * part)} percent`]]) svg.setAttribute(key, value);
  const rect = document.createElementNS(SVG, "rect");
  rect.setAttribute("height", "10");
  rect.setAttribute("width", String(100 * part));
  svg.append(rect);
  if (due !== null) {
    const line = document.createElementNS(SVG, "line");
    for (const [key, value] of [["x1", 100 * due], ["x2", 100 * due], ["y1", 0], ["y2", 10]]) line.setAttribute(key, String(value));
    svg.append(line);
  }
  return element("td", {}, svg, ...(words ? [element("span", { textContent: words })] : []));
}
