// Markdown of a model as nodes that can do nothing: HTML in it is shown as text, and what is left is sanitized.
import { Marked } from "../vendor/marked.esm.js";
import DOMPurify from "../vendor/purify.es.mjs";
import { colour } from "./chat/highlight.js";

const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escaped(text),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    // a picture would tell its host who reads; it becomes a link
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});
const RULES = {
  ALLOWED_TAGS: ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code",
    "em", "strong", "del", "a", "table", "thead", "tbody", "tr", "th", "td"],
  ALLOWED_ATTR: ["href", "title", "start", "class"], // the class of code names its language, and goes again below
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

export function rendered(text) {
  const found = DOMPurify.sanitize(marked.parse(text), RULES);
  for (const link of found.querySelectorAll("a[href]")) {
    link.rel = "noopener noreferrer nofollow";
    link.target = "_blank";
  }
  for (const table of found.querySelectorAll("table")) wrap(table, "table").tabIndex = 0;
  for (const pre of found.querySelectorAll("pre")) {
    const inside = pre.querySelector("code"), language = /^language-(\S{1,24})/.exec(inside?.className ?? "")?.[1] ?? "";
    const code = wrap(pre, "code");
    pre.tabIndex = 0;
    const copy = document.createElement("button");
    Object.assign(copy, { type: "button", className: "quiet", textContent: "Copy" });
    copy.dataset.act = "copy-code";
    const name = document.createElement("span");
    name.textContent = language || "text";
    const head = document.createElement("div");
    head.className = "code-head";
    head.append(name, copy);
    code.prepend(head);
    inside?.removeAttribute("class");
    if (inside) colour(inside, language);
  }
  return found;
}

function wrap(node, name) {
  const around = document.createElement("div");
  around.className = name;
  node.replaceWith(around);
  around.append(node);
  return around;
}
