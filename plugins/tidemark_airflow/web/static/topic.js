// One topic: its head, partitions as strips, how far behind it was, its dates.

import {calendar, dateDetail, legend as dateLegend, mark} from "./calendar.js";
import {chart, COUNTS, SECONDS} from "./chart.js";
import {acknowledge, backfill, lineage} from "./dialogs.js";
import {agentOf, clock, copyable, duration, el, hint, lasting, number, path, place, plural, put, range, say, short, time} from "./dom.js";
import {flow} from "./flow.js";
import {incidents} from "./incidents.js";
import {quarantine} from "./quarantine.js";
import {api} from "./server.js";
import {badge, inWords, TOPIC} from "./states.js";
import {legend, nameOf, strip, table} from "./strips.js";
import {pager} from "./topics.js";

const LIMIT = 50;
const HOUR_MS = 3_600_000;
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
  let now = await api.topic(at);
  const known = {columns: null, dates: null};
  const openBackfill = (from, to = from, mode = undefined) =>
    backfill({topics: [`${at.cluster}/${at.topic}`], from_date: from, to_date: to, mode});
  const ofPartitions = partitions(at, () => now);
  const ofDates = dates(at, openBackfill);
  const sections = [ofPartitions, past(at), ofDates];
  const refused = quarantine(at);
  const top = el("div", {});

  // What one click does for an incident: its backfill, or the gaps that it is about.
  function act({kind, mode, date}) {
    const days = known.dates?.dates.filter((one) => one.quarantined).map((one) => one.dt) ?? [];
    const button = (label, onclick) => el("button", {type: "button", onclick}, label);
    if (mode === "replay") return button("Replay the quarantine …", () => openBackfill(days[0], days.at(-1), mode));
    if (mode) return button(`Rebuild ${date} …`, () => openBackfill(date, date, mode));
    return kind === "gap" ? button("Show the gaps", ofPartitions.showGaps) : null;
  }
  const draw = () => put(top, head(at, now, openBackfill), glance(now, known), ofTable(now, known), incidents(now.incidents, act), facts(now));

  async function load() {
    const columns = api.columns(at).then((answer) => (known.columns = answer.columns));
    await Promise.all([columns, ...sections.map((one) => one.load())]);
    known.dates = ofDates.answer();
    refused.hidden = !known.dates.quarantined;
    draw();
  }
  draw();
  put(view, top, sections.map(({node}) => node), refused, flow(at));
  await load();
  const asked = address();
  const [from, to, mode] = ["from_date", "to_date", "mode"].map((name) => asked.get(name) ?? undefined);
  if (asked.has("backfill")) await openBackfill(from, to, mode);
  return async () => {
    now = await api.topic(at);
    await load();
  };
}

function head(at, now, openBackfill) {
  const old = el("p", {class: "note warn"}, `The watermark indexes cannot be read, so this may be old: ${now.failure}`);
  const bar = el(
    "div",
    {class: "head"},
    el("h1", {}, el("span", {class: "soft"}, `${at.cluster}/`), at.topic, " ", badge(now.state)),
    el(
      "div",
      {class: "actions"},
      el("a", {class: "button", href: `../dags/${encodeURIComponent(now.dag_id)}`}, "Ingest DAG"),
      el("button", {type: "button", class: "main", onclick: () => openBackfill()}, "Backfill …"),
    ),
  );
  return [bar, now.failure ? old : null];
}

const list = (name, rows) =>
  el("dl", {class: `${name} card`}, rows.map(([term, value, wide]) => el("div", {class: wide ? "wide" : null}, el("dt", {}, term), el("dd", {}, value))));

// Is it right, how old is it, what is missing, and who brings it.
function glance(now, known) {
  const incomplete = now.dates.final_incomplete ?? 0;
  const behind = now.lag ? [`${plural(now.lag, "offset")} behind`, now.behind_since ? [" ", lasting(now.behind_since)] : ""] : "nothing waits";
  const line = (text, state = null) => el("small", {class: state}, text);
  return list("glance", [
    ["Is it right?", [sentence(now.state), known.dates?.quarantined ? line(`${plural(known.dates.quarantined, "record")} in quarantine`, "attention") : null]],
    ["Newest commit", [now.committed_at ? time(now.committed_at) : "none", line(behind)]],
    [
      "Missing",
      [
        now.missing ? el("span", {class: "loss"}, plural(now.missing, "offset")) : "nothing",
        incomplete ? line(`${plural(incomplete, "date")} closed incomplete`, "attention") : null,
      ],
    ],
    ["Agents", agents(now.agents)],
  ]);
}

function sentence(state) {
  const meaning = TOPIC[state][2];
  return `${meaning[0].toUpperCase()}${meaning.slice(1)}.`;
}

const AGENTS = 3;

// The agents of the brokers that lead partitions: the silent ones first.
function agents(all) {
  if (!all.length) return el("span", {class: "attention"}, "none is known");
  const alive = all.filter((one) => one.alive).length;
  const versions = [...new Set(all.map((one) => one.version))];
  const told = alive === all.length ? `${number(alive)} alive` : el("span", {class: "attention"}, `${number(alive)} of ${number(all.length)} alive`);
  const rows = [...all].sort((one, other) => one.alive - other.alive).slice(0, AGENTS);
  return [
    [told, `, ${versions.length === 1 ? "version" : "versions"} ${versions.join(", ")}`],
    rows.map((one) =>
      el("small", {class: one.alive ? null : "attention"}, `${agentOf(one.broker)}: ${versions.length === 1 ? "" : `${one.version}, `}`, time(one.written_at))),
    all.length > AGENTS ? el("small", {}, `and ${number(all.length - AGENTS)} more`) : null,
  ];
}

const COLUMNS = 10;
const KAFKA = "kafka_";

// The table's columns, those of the parser first, and a query that is ready to be copied.
function ofTable(now, known) {
  const columns = [...(known.columns ?? [])].sort((one, other) => one.name.startsWith(KAFKA) - other.name.startsWith(KAFKA));
  const named = (one) => el("span", {class: "column"}, el("code", {}, one.name), ` ${one.kind}`);
  const newest = known.dates?.dates.findLast((one) => one.rows)?.dt;
  const where = newest ? ` WHERE dt = DATE '${newest}'` : "";
  const [text, name] = [now.table.replaceAll("'", "''"), now.table.replace(/^s3:/, "s3a:").replaceAll("`", "``")];
  const queries = {DuckDB: `delta_scan('${text}')`, "Spark SQL": `delta.\`${name}\``};
  const rest = columns.slice(COLUMNS);
  return el(
    "div",
    {class: "table card"},
    el(
      "div",
      {},
      el("h2", {}, "Columns"),
      el("p", {class: "columns"}, columns.length ? columns.slice(0, COLUMNS).map(named) : known.columns ? "Nothing has landed yet." : "…"),
      rest.length ? el("details", {}, el("summary", {}, `${number(rest.length)} more`), el("p", {class: "columns"}, rest.map(named))) : null,
    ),
    el("div", {}, el("h2", {}, "Query"), Object.entries(queries).map(([engine, from]) => copyable(engine, `SELECT * FROM ${from}${where} LIMIT 10`))),
  );
}

const OBSERVED = "When an agent last told the offsets of a partition of this topic.";

function facts(now) {
  return list("facts", [
    ["Rows", number(now.rows)],
    ...(now.promise === null ? [] : promise(now)),
    ...(now.remote_tier ? [["Only in Kafka's remote tier", plural(now.remote_tier, "offset")]] : []),
    ["Ledger", now.committed_at ? number(now.ledger_n) : "none"],
    [hint("Brokers observed", OBSERVED), time(now.observed_at)],
    ["Owner", now.owner],
    ["Dates in", now.time_zone],
    ...(now.partition_by.length === 1 ? [] : [["Partitioned by", now.partition_by.join(", ")]]),
    ["Table", el("code", {}, path(now.table)), true],
    ...(now.followed === null ? [] : [["Schema", followed(now.followed), true]]),
    ...(now.state_table === null ? [] : [["State table", stateTable(now.state_table), true]]),
  ]);
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
  const waits = now.unstored_since ? lasting(now.unstored_since) : "";
  return [
    ["Freshness", duration(now.promise)],
    ["Not in the store", waits || unknown ? [waits, waits && unknown ? "; " : "", unknown] : "nothing"],
  ];
}

function partitions(at, now) {
  const asked = address();
  const wanted = {only: FILTERS[asked.get("only")] ? asked.get("only") : "all", offset: 0, at: asked.get("partition") ?? ""};
  const chips = el("div", {class: "chips", role: "group", "aria-label": "Only partitions that are"});
  const list = el("div", {class: "list"});
  let asTable = false;
  let marked = wanted.at;

  async function load() {
    const answer = await api.partitions(at, {...wanted, limit: LIMIT});
    wanted.offset = answer.offset;
    drawChips();
    draw(answer);
    const row = answer.partitions.find((one) => nameOf(one) === wanted.at);
    const [from, to] = [Number(address().get("from")), Number(address().get("to"))];
    if (row && to > from) open(row, {start: from, end: to});
    wanted.at = "";
    return answer;
  }

  async function change(update) {
    Object.assign(wanted, update);
    marked = wanted.at;
    remember({only: wanted.only === "all" ? "" : wanted.only, partition: wanted.at, from: "", to: ""});
    say(plural((await load()).total, "partition"));
  }

  async function showGaps() {
    await change({only: "gaps", offset: 0, at: ""});
    node.scrollIntoView();
  }

  function drawChips() {
    put(
      chips,
      Object.entries(FILTERS).map(([only, label]) =>
        el(
          "button",
          {type: "button", class: "chip", "aria-pressed": String(wanted.only === only), onclick: () => change({only, offset: 0, at: ""})},
          label,
          el("span", {class: "count"}, number(now().counts[only])),
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
      {"data-partition": nameOf(row), class: nameOf(row) === marked ? "asked" : null},
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
    } else if (now().may_acknowledge) {
      then = el("button", {type: "button", onclick: () => acknowledge(at, row, gap, load)}, "Acknowledge …");
    } else {
      then = el("p", {class: "soft"}, `To acknowledge it takes the right to edit the DAG ${now().dag_id}.`);
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
  return {node, load, showGaps};
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
    const to = Math.max(Date.now(), Date.parse(answer.samples.at(-1)?.at ?? 0));
    const axis = [to - hours * HOUR_MS, to];
    const points = (name) => answer.samples.map((one) => [Date.parse(one.at), one[name]]);
    put(
      charts,
      chart({title: "Offsets behind", points: points("lag"), axis, format: short, steps: COUNTS}),
      chart({
        title: "The oldest has waited",
        points: points("waits"),
        axis,
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
  let answer = null;
  let chosen = address().get("dt") ?? "";
  if (/^\d{4}-\d{2}-\d{2}$/.test(chosen)) year = Number(chosen.slice(0, 4));
  const chips = el("div", {class: "chips", role: "group", "aria-label": "Year"});
  const content = el("div", {class: "dates"});

  function choose(row) {
    chosen = row.dt;
    remember({dt: chosen});
    show(content, row);
    say(`${chosen} shown`);
  }

  const show = (drawn, row) => mark(drawn, row.dt, dateDetail(row, () => openBackfill(row.dt)));

  async function load() {
    answer = await api.dates(at, {year});
    year = answer.year;
    put(
      chips,
      answer.years.map((one) =>
        el("button", {type: "button", class: "chip", "aria-pressed": String(one === year), onclick: () => load(year = one)}, String(one))),
    );
    const drawn = calendar(answer, chosen, choose);
    const row = answer.dates.find((one) => one.dt === chosen);
    if (row) show(drawn, row);
    put(content, drawn, answer.undated ? el("p", {class: "soft"}, `${plural(answer.undated, "quarantined row")} without a date.`) : null);
  }
  const node = el("section", {"aria-labelledby": "dates"}, el("div", {class: "head"}, el("h2", {id: "dates"}, "Dates"), chips), dateLegend(), content);
  return {node, load, answer: () => answer};
}
