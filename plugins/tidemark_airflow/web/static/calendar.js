// The dates of a year, a table a month. One stop of the Tab key: arrows move by a day and a week, Enter chooses.

import {el, number, plural, time} from "./dom.js";
import {badge, DATE} from "./states.js";

const MONTHS = Array.from({length: 12}, (_, month) =>
  new Intl.DateTimeFormat("en-GB", {month: "long", timeZone: "UTC"}).format(Date.UTC(2024, month)));
const DAYS = ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"];
const STEPS = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 7, ArrowUp: -7};
const DAY_MS = 86_400_000;

const day = (at) => new Date(at).toISOString().slice(0, 10);

export function legend() {
  return el(
    "ul",
    {class: "legend", "aria-label": "Legend"},
    Object.entries(DATE).map(([state, [sign, name]]) => el("li", {}, el("span", {class: `swatch date ${state}`, "aria-hidden": "true"}, sign), name)),
    el("li", {}, el("span", {class: "swatch date dot", "aria-hidden": "true"}, "•"), "quarantined rows"),
  );
}

// answer is the API's; choose(row) is called for a date; chosen is the one that is shown first.
export function calendar(answer, chosen, choose) {
  const rows = new Map(answer.dates.map((row) => [row.dt, row]));
  if (!rows.size) return el("p", {class: "note"}, "Nothing has landed yet.");
  const stop = rows.has(chosen) ? chosen : answer.dates.at(-1).dt;
  const months = [...new Set(answer.dates.map((row) => row.dt.slice(0, 7)))];
  return el("div", {class: "calendar", onkeydown: move}, months.map((month) => el("div", {class: "beside"}, drawMonth(month, rows, stop, choose))));
}

function drawMonth(month, rows, stop, choose) {
  const first = Date.parse(`${month}-01T00:00:00Z`);
  const before = (new Date(first).getUTCDay() + 6) % 7;
  const weeks = [];
  for (let monday = first - before * DAY_MS; day(monday) < `${month}-32`; monday += 7 * DAY_MS) {
    weeks.push(Array.from({length: 7}, (_, n) => day(monday + n * DAY_MS)));
  }
  return el(
    "table",
    {class: "month"},
    el("caption", {}, `${MONTHS[Number(month.slice(5)) - 1]} ${month.slice(0, 4)}`),
    el("thead", {}, el("tr", {}, DAYS.map((name) => el("th", {scope: "col"}, name)))),
    el("tbody", {}, weeks.map((week) => el("tr", {}, week.map((dt) => cell(dt, month, rows.get(dt), stop, choose))))),
  );
}

function cell(dt, month, row, stop, choose) {
  if (!dt.startsWith(month)) return el("td", {});
  const number_ = String(Number(dt.slice(8)));
  if (!row) return el("td", {}, el("span", {class: "nothing"}, number_));
  const [sign, name] = DATE[row.state];
  const aside = row.quarantined ? `, ${number(row.quarantined)} quarantined` : "";
  const label = `${dt}: ${name}, ${number(row.rows)} rows${row.late_rows ? `, ${number(row.late_rows)} late` : ""}${aside}`;
  return el(
    "td",
    {},
    el(
      "button",
      {
        type: "button",
        class: `date ${row.state}`,
        "data-dt": dt,
        "aria-label": label,
        title: label,
        tabindex: dt === stop ? "0" : "-1",
        onclick: () => choose(row),
      },
      el("span", {"aria-hidden": "true"}, number_),
      el("span", {class: "sign", "aria-hidden": "true"}, sign, row.quarantined ? "•" : ""),
    ),
  );
}

function move(event) {
  const at = document.activeElement.dataset?.dt;
  const step = STEPS[event.key];
  if (!at || !step) return;
  event.preventDefault();
  const all = new Map([...event.currentTarget.querySelectorAll("button")].map((node) => [node.dataset.dt, node]));
  let to = Date.parse(at);
  for (let tries = 0; tries < 60; tries += 1) {
    to += step * DAY_MS;
    const node = all.get(day(to));
    if (node) {
      all.get(at).tabIndex = -1;
      node.tabIndex = 0;
      node.focus();
      return;
    }
  }
}

// Mark the date in a calendar, and show ``detail`` beside its month.
export function mark(drawn, dt, detail) {
  for (const one of drawn.querySelectorAll("[aria-pressed]")) one.removeAttribute("aria-pressed");
  const node = drawn.querySelector(`[data-dt="${CSS.escape(dt)}"]`);
  node.setAttribute("aria-pressed", "true");
  drawn.querySelector(".detail")?.remove();
  node.closest(".beside").append(detail);
}

// What is known of one date; backfill(row) opens the form for it.
export function dateDetail(row, backfill) {
  const facts = [
    ["Rows", number(row.rows)],
    ["Late rows", number(row.late_rows)],
    ["Quarantined", number(row.quarantined)],
    ["Changed", time(row.changed_at)],
    ["Closed", time(row.closed_at)],
    row.state === "final_incomplete" && ["Still missing", `${plural(row.unfinished, "partition")}, ${plural(row.outstanding, "offset")}`],
  ].filter(Boolean);
  return el(
    "section",
    {class: "card detail", "aria-labelledby": "chosen"},
    el("h3", {id: "chosen", tabindex: "-1"}, row.dt, " ", badge(row.state, DATE)),
    el("p", {class: "soft"}, DATE[row.state][2]),
    el("dl", {class: "facts"}, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    el("button", {type: "button", onclick: () => backfill(row)}, "Backfill this date …"),
  );
}
