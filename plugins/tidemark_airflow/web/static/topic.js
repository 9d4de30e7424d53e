// One topic: its head, partitions as strips, how far behind it was, its dates.

import {calendar, dateDetail, legend as dateLegend} from "./calendar.js";
import {chart, COUNTS, SECONDS} from "./chart.js";
import {acknowledge, backfill, lineage} from "./dialogs.js";
import {clock, duration, el, number, path, place, plural, put, range, say, short, since, time} from "./dom.js";
import {flow} from "./flow.js";
import {incidents} from "./incidents.js";
import {api} from "./server.js";
import {badge, inWords} from "./states.js";
import {legend, nameOf, strip, table} from "./strips.js";
import {pager} from "./topics.js";

const LIMIT = 50;
const HOURS = [[6, "6 hours"], [24, "1 day"], [168, "7 days"]];
const FILTERS = {all: "All", gaps: "With gaps", held: "Held", behind: "Behind"};

const address = () => new URLSearchParams(location.search);

// Change the address without going anywhere, so that it can be kept and sent.
function remember(values) {
  const query = address();
  for (const [name, value] of Object.entries(values)) value ? query.set(name, value) : query.delete(name);
  history.replaceState(null, "", `?${query.toString().replaceAll("%2F", "/")}`);
}

export async function showTopic(view, at) {
  const now = await api.topic(at);
  const openBackfill = (from, to = from, mode = undefined) =>
    backfill({topics: [`${at.cluster}/${at.topic}`], from_date: from, to_date: to, mode});
  const sections = [partitions(at, now), past(at), dates(at, openBackfill), flow(at)];
  put(view, head(at, now, openBackfill), sections.map(({node}) => node));
  await Promise.all(sections.map(({load}) => load()));
  const asked = address();
  const [from, to, mode] = ["from_date", "to_date", "mode"].map((name) => asked.get(name) ?? undefined);
  if (asked.has("backfill")) await openBackfill(from, to, mode);
}

function head(at, now, openBackfill) {
  const waits = now.behind_since ? `for ${since(now.behind_since)}` : "";
  const facts = [
    ["Rows", number(now.rows)],
    ["Behind", `${plural(now.lag, "offset")} ${waits}`],
    ...(now.promise === null ? [] : promise(now)),
    ["Missing", now.missing ? plural(now.missing, "offset") : "none"],
    ...(now.remote_tier ? [["Only in Kafka's remote tier", plural(now.remote_tier, "offset")]] : []),
    ["Last commit", now.committed_at ? [time(now.committed_at), ` (ledger ${number(now.ledger_n)})`] : "none"],
    ["Brokers observed", time(now.observed_at)],
    ["Owner", now.owner],
    ["Table", el("code", {}, path(now.table))],
    ["Dates in", now.time_zone],
    ...(now.partition_by.length === 1 ? [] : [["Partitioned by", now.partition_by.join(", ")]]),
    ...(now.followed === null ? [] : [["Schema", followed(now.followed)]]),
    ...(now.state_table === null ? [] : [["State table", stateTable(now.state_table)]]),
  ];
  return el(
    "div",
    {},
    el(
      "div",
      {class: "head"},
      el("h1", {}, el("span", {class: "soft"}, `${at.cluster}/`), at.topic, " ", badge(now.state)),
      el(
        "div",
        {class: "actions"},
        el("a", {class: "button", href: `../dags/${encodeURIComponent(now.dag_id)}`}, "Ingest DAG"),
        el("button", {type: "button", class: "main", onclick: () => openBackfill()}, "Backfill …"),
      ),
    ),
    now.failure ? el("p", {class: "note warn"}, `The watermark indexes cannot be read, so this may be old: ${now.failure}`) : null,
    incidents(now.incidents),
    el("dl", {class: "facts card"}, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
  );
}

// The version of its registry's schema that a topic has adopted, what that changed, and what waits for a person.
function followed(schema) {
  const changes = schema.changes.length ? ` (${schema.changes.join("; ")})` : "";
  const waits = schema.waits.length ? `. Version ${schema.waiting_version} waits: ${schema.waits.join("; ")}` : "";
  return [`${schema.subject}, version ${schema.version}, since `, time(schema.adopted_at), changes, waits];
}

// One row for each key: which commit it equals, what it may lack, and since when an audit has compared every key.
function stateTable(state) {
  const proved = state.proved_at ? ["the oldest audit of a key: ", time(state.proved_at)] : "not yet audited as a whole";
  const words = [`${state.table}, ${plural(state.rows, "row")}, as of ledger ${number(state.of)}`, ...state.doubts, state.stopped && "stopped"];
  return [words.filter(Boolean).join("; "), "; ", proved];
}

// What a topic with a freshness promises, from the append on, and how long the oldest byte has waited for the store.
function promise(now) {
  const unknown = now.unmeasured ? `not known of ${plural(now.unmeasured, "partition")}` : "";
  const waits = now.unstored_since ? `for ${since(now.unstored_since)}` : "";
  return [
    ["Freshness", duration(now.promise)],
    ["Not in the store", [waits, unknown].filter(Boolean).join("; ") || "nothing"],
  ];
}

function partitions(at, now) {
  const asked = address();
  const wanted = {only: FILTERS[asked.get("only")] ? asked.get("only") : "all", offset: 0, at: asked.get("partition") ?? ""};
  const chips = el("div", {class: "chips", role: "group", "aria-label": "Only partitions that are"});
  const list = el("div", {class: "list"});
  let asTable = false;

  async function load() {
    const answer = await api.partitions(at, {...wanted, limit: LIMIT});
    wanted.offset = answer.offset;
    drawChips();
    draw(answer);
    const row = answer.partitions.find((one) => nameOf(one) === wanted.at);
    const [from, to] = [Number(address().get("from")), Number(address().get("to"))];
    if (row && to > from) open(row, {start: from, end: to});
    wanted.at = "";
  }

  function change(update) {
    Object.assign(wanted, update);
    remember({only: wanted.only === "all" ? "" : wanted.only, partition: wanted.at, from: "", to: ""});
    return load();
  }

  function drawChips() {
    put(
      chips,
      Object.entries(FILTERS).map(([only, label]) =>
        el(
          "button",
          {type: "button", class: "chip", "aria-pressed": String(wanted.only === only), onclick: () => change({only, offset: 0, at: ""})},
          label,
          el("span", {class: "count"}, number(now.counts[only])),
        ),
      ),
      el("button", {type: "button", class: "chip", "aria-pressed": String(asTable), onclick: () => load(asTable = !asTable)}, "As a table"),
    );
  }

  function draw(answer) {
    const rows = answer.partitions;
    const content = asTable ? table(rows, whole) : el("ol", {class: "strips"}, rows.map((row) => item(row)));
    const empty = el("p", {class: "note"}, wanted.only === "all" ? "No partition is known yet." : "No partition is in that state.");
    put(list, rows.length ? content : empty, pager(answer, LIMIT, (offset) => change({offset, at: ""})));
    say(plural(answer.total, "partition"));
    list.querySelector(`[data-partition="${CSS.escape(wanted.at)}"]`)?.scrollIntoView({block: "center"});
  }

  const whole = (row) => open(row, {start: row.spans[0]?.start ?? 0, end: row.spans.at(-1)?.end ?? 1});

  function open(row, span) {
    remember({partition: nameOf(row), from: String(span.start), to: String(span.end)});
    return lineage(at, row, span.start, span.end, () => remember({from: "", to: ""}));
  }

  function item(row) {
    return el(
      "li",
      {"data-partition": nameOf(row), class: nameOf(row) === wanted.at ? "asked" : null},
      el("h3", {}, el("span", {class: "unseen"}, "Partition "), nameOf(row)),
      el(
        "div",
        {},
        strip(row, (span) => open(row, span)),
        el(
          "p",
          {class: "numbers"},
          [["landed to", row.landed], ["watermark", row.watermark], ["log end", row.log_end], ["behind", row.lag, row.broker]].map(([name, value]) =>
            el("span", {}, `${name} `, el("b", {}, number(value)))),
          row.broker === null ? null : el("span", {}, "broker ", el("b", {}, place(row.broker))),
        ),
        row.held_by.map((one) =>
          el("p", {class: "finding held"}, `Held by the open transaction of producer ${one.producer_id} from offset ${number(one.first_offset)} on.`)),
        row.remote_tier.map(([start, end]) =>
          el("p", {class: "finding held"}, `Offsets ${range(start, end)} are only in Kafka's remote tier, from where consumers get them: the partition begins behind them in the store.`)),
        row.gaps.map((gap) => (gap.reason === "remote_tier" ? tiered(gap) : finding(row, gap))),
      ),
    );
  }

  // Nothing is lost, so nobody is asked to give anything up.
  function tiered(gap) {
    const count = number(gap.end - gap.start);
    return el("p", {class: "finding held"}, `Offsets ${range(gap.start, gap.end)} (${count}) are only in Kafka's remote tier, from where consumers get them; the partition waits there since ${clock(gap.detected_at)}.`);
  }

  function finding(row, gap) {
    const what = `Gap: offsets ${range(gap.start, gap.end)} (${number(gap.end - gap.start)}) are missing, ${inWords(gap.reason)}; known since ${clock(gap.detected_at)}.`;
    const word = gap.acknowledged;
    let then;
    if (word) {
      then = el("p", {}, `Acknowledged by ${word.by} at ${clock(word.at)}: “${word.reason}”. The agent and the runs have not read it yet.`);
    } else if (now.may_acknowledge) {
      then = el("button", {type: "button", onclick: () => acknowledge(at, row, gap, load)}, "Acknowledge …");
    } else {
      then = el("p", {class: "soft"}, `To acknowledge it takes the right to edit the DAG ${now.dag_id}.`);
    }
    return el("div", {class: `finding ${word ? "said" : "gap"}`}, el("p", {}, what), then);
  }

  const goTo = el(
    "form",
    {
      class: "field inline",
      onsubmit: (event) => {
        event.preventDefault();
        change({at: new FormData(event.target).get("at"), only: "all"});
      },
    },
    el("label", {for: "go-to"}, "Partition"),
    el("input", {id: "go-to", name: "at", inputmode: "numeric", pattern: "([0-9]+-)?[0-9]+", size: "6", required: true}),
    el("button", {type: "submit"}, "Go"),
  );
  const node = el("section", {"aria-labelledby": "partitions"}, el("div", {class: "head"}, el("h2", {id: "partitions"}, "Partitions"), goTo), chips, legend(), list);
  return {node, load};
}

function past(at) {
  let hours = 24;
  const chips = el("div", {class: "chips", role: "group", "aria-label": "Of the last"});
  const charts = el("div", {class: "charts"});

  async function load() {
    put(
      chips,
      HOURS.map(([value, label]) =>
        el("button", {type: "button", class: "chip", "aria-pressed": String(value === hours), onclick: () => load(hours = value)}, label)),
    );
    const answer = await api.history(at, {hours});
    const points = (name) => answer.samples.map((one) => [Date.parse(one.at), one[name]]);
    put(
      charts,
      chart({title: "Offsets behind", points: points("lag"), format: short, steps: COUNTS}),
      chart({
        title: "The oldest has waited",
        points: points("waits"),
        format: duration,
        steps: SECONDS,
        limit: answer.freshness,
        limitName: `freshness ${duration(answer.freshness)}`,
      }),
    );
  }
  const node = el("section", {"aria-labelledby": "past"}, el("div", {class: "head"}, el("h2", {id: "past"}, "Lag and freshness"), chips), charts);
  return {node, load};
}

function dates(at, openBackfill) {
  let year = null;
  let chosen = address().get("dt") ?? "";
  if (/^\d{4}-\d{2}-\d{2}$/.test(chosen)) year = Number(chosen.slice(0, 4));
  const chips = el("div", {class: "chips", role: "group", "aria-label": "Year"});
  const content = el("div", {class: "dates"});
  const detail = el("div", {"aria-live": "polite"});

  function choose(row) {
    chosen = row.dt;
    remember({dt: chosen});
    put(detail, dateDetail(row, () => openBackfill(row.dt)));
  }

  async function load() {
    const answer = await api.dates(at, {year});
    year = answer.year;
    put(
      chips,
      answer.years.map((one) =>
        el("button", {type: "button", class: "chip", "aria-pressed": String(one === year), onclick: () => load(year = one)}, String(one))),
    );
    put(
      content,
      calendar(answer, chosen, choose),
      answer.undated ? el("p", {class: "soft"}, `${plural(answer.undated, "quarantined row")} without a date.`) : null,
    );
    const row = answer.dates.find((one) => one.dt === chosen);
    if (row) choose(row);
  }
  const node = el("section", {"aria-labelledby": "dates"}, el("div", {class: "head"}, el("h2", {id: "dates"}, "Dates"), chips), dateLegend(), el("div", {class: "split"}, content, detail));
  return {node, load};
}
