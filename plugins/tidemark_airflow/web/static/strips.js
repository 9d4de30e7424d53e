// Partitions as strips of offsets. A strip is one stop of the Tab key; arrows move in it, Enter opens the lineage.

import {clock, el, number, place, plural, range, tipped} from "./dom.js";
import {inWords, SPAN} from "./states.js";

export const nameOf = ({incarnation, partition}) => (incarnation ? `${incarnation}-${partition}` : String(partition));

export function describe(span) {
  const [name, meaning] = SPAN[span.kind];
  const what = span.kind === "gap" ? `gap: ${inWords(span.reason)}, known since ${clock(span.since)}` : `${name}: ${meaning}`;
  return `${range(span.start, span.end)} (${plural(span.end - span.start, "offset")}): ${what}`;
}

export function legend() {
  return el(
    "ul",
    {class: "legend", "aria-label": "Legend"},
    Object.entries(SPAN).map(([kind, [name]]) => el("li", {}, el("span", {class: `swatch ${kind}`, "aria-hidden": "true"}), name)),
    el("li", {}, el("span", {class: "swatch mark", "aria-hidden": "true"}), "watermark"),
    el("li", {class: "soft"}, "Short spans are widened, so that each can be seen."),
  );
}

// One strip; open(span) is called for a span that is chosen.
export function strip(row, open) {
  const total = Math.max(1, (row.spans.at(-1)?.end ?? 0) - (row.spans[0]?.start ?? 0));
  const parts = [];
  let marked = row.watermark === null;
  for (const [place, span] of row.spans.entries()) {
    if (!marked && span.start >= row.watermark) {
      parts.push(mark(row.watermark));
      marked = true;
    }
    parts.push(button(span, total, place === 0, open));
  }
  if (!marked) parts.push(mark(row.watermark));
  const label = `Offsets of partition ${nameOf(row)}; arrow keys move, Enter shows where they come from`;
  const bar = el("div", {class: "strip", role: "toolbar", "aria-label": label, onkeydown: move}, parts);
  return row.spans.length ? bar : el("p", {class: "soft"}, "No offset yet.");
}

function button(span, total, first, open) {
  const text = describe(span);
  const node = el(
    "button",
    {type: "button", class: `span ${span.kind}`, "aria-label": text, tabindex: first ? "0" : "-1", onclick: () => open(span)},
    span.kind === "gap" ? el("span", {"aria-hidden": "true"}, "✕") : null,
  );
  node.style.flexGrow = (span.end - span.start) / total;
  return tipped(node, text);
}

const mark = (offset) => el("span", {class: "mark", title: `watermark: ${number(offset)}`, "aria-hidden": "true"});

function move(event) {
  const spans = [...event.currentTarget.querySelectorAll("button")];
  const at = spans.indexOf(document.activeElement);
  const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: spans.length - 1}[event.key];
  if (to === undefined || !spans[to]) return;
  event.preventDefault();
  spans[at].tabIndex = -1;
  spans[to].tabIndex = 0;
  spans[to].focus();
}

// The same as a table, for who prefers one.
export function table(rows, open) {
  const head = ["Partition", "State", "Landed to", "Watermark", "High watermark", "Log end", "Behind", "Broker"];
  return el(
    "div",
    {class: "scroll", tabindex: "0", role: "region", "aria-label": "Partitions"},
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, head.map((name, place) => el("th", {scope: "col", class: place > 1 ? "num" : null}, name)))),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            el("th", {scope: "row"}, el("button", {type: "button", class: "link", onclick: () => open(row)}, nameOf(row))),
            el("td", {}, row.state),
            [row.landed, row.watermark, row.high_watermark, row.log_end, row.lag].map((value) =>
              el("td", {class: "num"}, number(value)),
            ),
            el("td", {class: "num"}, place(row.broker)),
          ),
        ),
      ),
    ),
  );
}
