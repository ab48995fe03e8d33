// The messages of a conversation as elements.
import { rendered } from "./markdown.js";

export function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

const act = (name, label) => {
  const button = element("button", { type: "button", className: "quiet", textContent: label });
  button.dataset.act = name;
  return button;
};

// Which of a message's versions is shown, with the ways to the others.
function versions(message) {
  const node = element("span", { className: "versions", hidden: true }, act("older", "‹"), element("span"), act("newer", "›"));
  const [older, words, newer] = node.children;
  [older.ariaLabel, newer.ariaLabel] = ["Earlier version", "Later version"];
  const show = ({ fork }) => {
    node.hidden = !fork;
    if (!fork) return;
    words.textContent = `${fork.at + 1} of ${fork.tails.length}`;
    [older.disabled, newer.disabled] = [fork.at === 0, fork.at === fork.tails.length - 1];
  };
  show(message);
  return { node, show };
}

export function userTurn(message, index) {
  const turn = element("li", { className: "turn user" });
  turn.dataset.index = index;
  turn.append(
    element("span", { className: "sr", textContent: "You:" }),
    element("div", { className: "body", textContent: message.content }),
    element("div", { className: "acts" }, versions(message).node, act("edit", "Edit"), act("copy", "Copy")),
  );
  return turn;
}

// One answer. `show` draws its state; the parts that did not change stay as they are.
export class AnswerTurn {
  constructor(index) {
    this.body = element("div", { className: "body" });
    this.thinking = fold("Thinking", "div");
    this.calls = element("div");
    this.broke = element("p", { className: "broke", hidden: true });
    this.meta = element("span", { className: "meta" });
    this.versions = versions({});
    this.node = element("li", { className: "turn assistant" },
      element("span", { className: "sr", textContent: "Assistant:" }), this.thinking.node, this.body, this.calls, this.broke,
      element("div", { className: "acts" }, this.versions.node, act("copy", "Copy"), act("again", "Regenerate"), this.meta));
    this.node.dataset.index = index;
    this.drawn = null;
  }

  show(message, { busy = false, broke = "" } = {}) {
    this.node.classList.toggle("busy", busy);
    if (message.content !== this.drawn) {
      this.body.replaceChildren(rendered(message.content));
      this.drawn = message.content;
    }
    this.thinking.show(message.reasoning ?? "", busy && !message.content ? "Thinking …" : "Thinking");
    const calls = message.calls ?? [];
    while (this.calls.childElementCount < calls.length) {
      const made = fold("", "pre");
      this.calls.append(made.node);
      made.node.shown = made;
    }
    calls.forEach((one, place) => this.calls.children[place].shown.show(pretty(one.arguments), `Calls ${one.name || "a function"}`));
    this.broke.hidden = !broke;
    this.broke.textContent = broke;
    this.meta.textContent = message.meta ?? "";
    this.versions.show(busy ? {} : message);
  }
}

function fold(title, kind) {
  const summary = element("summary", { textContent: title });
  const inside = element(kind);
  const node = element("details", { className: "fold", hidden: true }, summary, inside);
  return {
    node,
    show(text, name) {
      node.hidden = !text && kind !== "pre";
      summary.textContent = name;
      if (inside.textContent !== text) inside.textContent = text;
    },
  };
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
