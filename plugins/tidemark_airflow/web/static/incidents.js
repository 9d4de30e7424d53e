// What a person should know of, as the watch DAG found it: what, since when, why, and what mends it.

import {el, plural, time} from "./dom.js";

export function incidents(open) {
  if (!open?.length) return null;
  return el(
    "details",
    {class: "incidents", open: open.length <= 3},
    el("summary", {}, plural(open.length, "open incident")),
    el("ul", {}, open.map(incident)),
  );
}

function incident(one) {
  return el(
    "li",
    {},
    el("p", {}, el("strong", {}, one.title), " ", el("small", {}, "since ", time(one.since))),
    el("p", {}, one.text),
    el("p", {}, el("span", {class: "soft"}, "Likely: "), one.likely),
    el("p", {}, el("span", {class: "soft"}, "What to do: "), el("code", {}, one.mend)),
  );
}
