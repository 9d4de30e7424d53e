// What a person should know of, as the watch DAG found it: what, since when, why, and what mends it.

import {el, lasting, plural} from "./dom.js";

// Incidents of these kinds mean that something is lost, or may be; the others need attention.
const LOSS = ["gap", "audit"];

// A command in a sentence: between backquotes, or from a program's name up to a word that goes on with the sentence.
const COMMAND =
  /`([^`]+)`|(?<![\w-])((?:tidemark(?:-agent)?|systemctl|journalctl|timedatectl|chronyc|docker|kubectl|spark-submit)(?![\w-])(?: (?!(?:names|makes|shows|leaves|on|and|or) )[^\s;,()]+)*)/g;

// act(incident) is a button that does what mends it, or null.
export function incidents(open, act = () => null) {
  if (!open?.length) return null;
  return el(
    "details",
    {class: open.some(({kind}) => LOSS.includes(kind)) ? "incidents loss" : "incidents", open: open.length <= 3},
    el("summary", {}, plural(open.length, "open incident")),
    el("ul", {}, open.map((one) => incident(one, act(one)))),
  );
}

function incident(one, button) {
  return el(
    "li",
    {},
    el("p", {}, el("strong", {}, one.title), " ", el("small", {}, lasting(one.since))),
    el("p", {}, one.text),
    el("p", {}, el("span", {class: "soft"}, "Likely: "), one.likely),
    el("p", {}, el("span", {class: "soft"}, "What to do: "), remedy(one.mend)),
    button,
  );
}

// The remedy: prose as prose, and commands as code.
export function remedy(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(COMMAND)) {
    parts.push(text.slice(at, found.index), el("code", {}, found[1] ?? found[2]));
    at = found.index + found[0].length;
  }
  return [...parts, text.slice(at)];
}
