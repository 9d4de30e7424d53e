// Values over time as an area, with the line that they should stay under; the same numbers in a table below.

import {clock, el, svg} from "./dom.js";

const WIDTH = 640;
const NARROW = 340;
const HEIGHT = 120;
const LEFT = 56;
const BOTTOM = 20;
const ROWS = 24;

const powers = (of) => Array.from({length: 15}, (_, power) => of.map((one) => one * 10 ** power)).flat();

// What the line in the middle of a chart may stand for: numbers, and durations that people count in.
export const COUNTS = powers([1, 2, 5]);
const DAY = 86400;
const DAY_MS = 1000 * DAY;
export const SECONDS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, ...powers([DAY, 2 * DAY, 5 * DAY])];

// points are [time in ms, value]; the axis is [from, to] in ms; format makes a value readable; limit is drawn dashed.
export function chart({title, points, axis: [from, to], format, steps, limit = null, limitName = ""}) {
  if (points.length < 2) return el("p", {class: "note"}, `${title}: no samples yet. The DAG tidemark_watch takes one every five minutes.`);
  const last = points.at(-1)[0];
  // As wide as it is shown, or letters would shrink with it.
  const width = matchMedia("(max-width: 60rem)").matches ? NARROW : WIDTH;
  const most = Math.max(limit ?? 0, ...points.map(([, value]) => value));
  const middle = steps.find((step) => 2 * step >= 1.1 * most) ?? steps.at(-1);
  const top = 2 * middle;
  const x = (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT - 8);
  const y = (value) => 8 + (1 - value / top) * (HEIGHT - BOTTOM - 8);
  const line = points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const highest = points.reduce((best, point) => (point[1] > best[1] ? point : best));
  const label = (at) => (to - from >= DAY_MS ? clock(iso(at)).slice(5, 16) : hour(at));
  const told = `${title}: ${format(points.at(-1)[1])} at ${clock(iso(last))}, at most ${format(highest[1])} at ${clock(iso(highest[0]))}`;
  return el(
    "figure",
    {class: "chart"},
    el("figcaption", {}, title, el("small", {}, ` ${format(points.at(-1)[1])} at ${hour(last)} UTC`)),
    svg(
      "svg",
      {viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": told},
      [0, middle, top].map((value) => [
        svg("line", {class: "grid", x1: LEFT, x2: width - 8, y1: y(value), y2: y(value)}),
        svg("text", {x: LEFT - 8, y: y(value) + 4, "text-anchor": "end"}, format(value)),
      ]),
      svg("polygon", {class: "area", points: `${x(points[0][0])},${y(0)} ${line} ${x(last)},${y(0)}`}),
      svg("polyline", {class: "line", points: line}),
      limit === null ? null : svg("line", {class: "limit", x1: LEFT, x2: width - 8, y1: y(limit), y2: y(limit)}),
      limit === null ? null : svg("text", {class: "limit", x: width - 10, y: y(limit) - 5, "text-anchor": "end"}, limitName),
      svg("text", {x: LEFT, y: HEIGHT - 4}, label(from)),
      svg("text", {x: width - 8, y: HEIGHT - 4, "text-anchor": "end"}, `${label(to)} UTC`),
    ),
    el("details", {}, el("summary", {}, "As a table"), table(points, format)),
  );
}

const iso = (at) => new Date(at).toISOString();
const hour = (at) => iso(at).slice(11, 16);

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
