// Values over time as an area, with the line that they should stay under; the same numbers in a table below.

import {clock, el, svg} from "./dom.js";

const WIDTH = 640;
const HEIGHT = 120;
const LEFT = 56;
const BOTTOM = 20;
const ROWS = 24;

// points are [time in ms, value]; format makes a value readable; limit is drawn dashed where it is given.
export function chart({title, points, format, limit = null, limitName = ""}) {
  if (points.length < 2) return el("p", {class: "note"}, `${title}: no samples yet. The DAG tidemark_watch takes one every five minutes.`);
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const most = Math.max(1, limit ?? 0, ...points.map(([, value]) => value)) * 1.1;
  const x = (at) => LEFT + ((at - first) / Math.max(1, last - first)) * (WIDTH - LEFT - 8);
  const y = (value) => 8 + (1 - value / most) * (HEIGHT - BOTTOM - 8);
  const line = points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const highest = points.reduce((best, point) => (point[1] > best[1] ? point : best));
  const told = `${title}: now ${format(points.at(-1)[1])}, at most ${format(highest[1])} at ${clock(iso(highest[0]))}`;
  return el(
    "figure",
    {class: "chart"},
    el("figcaption", {}, title, el("small", {}, ` now ${format(points.at(-1)[1])}`)),
    svg(
      "svg",
      {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": told},
      [0, most / 2, most].map((value) => [
        svg("line", {class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value)}),
        svg("text", {x: LEFT - 8, y: y(value) + 4, "text-anchor": "end"}, format(value)),
      ]),
      svg("polygon", {class: "area", points: `${x(first)},${y(0)} ${line} ${x(last)},${y(0)}`}),
      svg("polyline", {class: "line", points: line}),
      limit === null || limit > most ? null : svg("line", {class: "limit", x1: LEFT, x2: WIDTH - 8, y1: y(limit), y2: y(limit)}),
      limit === null ? null : svg("text", {class: "limit", x: WIDTH - 10, y: y(limit) - 5, "text-anchor": "end"}, limitName),
      svg("text", {x: LEFT, y: HEIGHT - 4}, iso(first).slice(11, 16)),
      svg("text", {x: WIDTH - 8, y: HEIGHT - 4, "text-anchor": "end"}, `${iso(last).slice(11, 16)} UTC`),
    ),
    el("details", {}, el("summary", {}, "As a table"), table(points, format)),
  );
}

const iso = (at) => new Date(at).toISOString();

function table(points, format) {
  const step = Math.max(1, Math.ceil(points.length / ROWS));
  const kept = points.filter((_, place) => (points.length - 1 - place) % step === 0);
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, el("th", {scope: "col"}, "Time"), el("th", {scope: "col", class: "num"}, "Value"))),
    el("tbody", {}, kept.map(([at, value]) => el("tr", {}, el("td", {}, clock(iso(at))), el("td", {class: "num"}, format(value))))),
  );
}
