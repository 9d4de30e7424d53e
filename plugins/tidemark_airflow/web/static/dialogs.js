// Dialogs: acknowledge a gap, the backfill form filled in, where offsets come from. The browser keeps the focus in them.

import {bytes, clock, el, number, place, plural, put, range, time} from "./dom.js";
import {airflow, api, Refused} from "./server.js";
import {inWords} from "./states.js";

const BACKFILL = "tidemark_backfill";

function dialog(title, ...content) {
  const node = el(
    "dialog",
    {"aria-labelledby": "dialog-title", onclose: () => node.remove()},
    el(
      "div",
      {class: "bar"},
      el("h2", {id: "dialog-title", tabindex: "-1", autofocus: true}, title),
      el("button", {type: "button", class: "quiet", "aria-label": "Close", onclick: () => node.close()}, "✕"),
    ),
    content,
  );
  document.body.append(node);
  node.showModal();
  return node;
}

// A form whose submit button is busy while work() runs; what is refused is shown above it and read out.
function form(label, work, ...fields) {
  const problem = el("p", {class: "note warn", role: "alert", hidden: true});
  const button = el("button", {type: "submit", class: "main"}, label);
  const node = el("form", {}, fields, el("div", {class: "actions"}, problem, button));
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    problem.hidden = true;
    try {
      await work(node, new FormData(node));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      problem.textContent = error.message;
      problem.hidden = false;
      button.disabled = false;
    }
  });
  return node;
}

export function acknowledge(at, row, gap, done) {
  const count = gap.end - gap.start;
  const opened = dialog(
    "Acknowledge a gap",
    el("p", {}, `${at.topic}-${row.partition}: offsets ${range(gap.start, gap.end)} (${number(count)}), ${inWords(gap.reason)}.`),
    el("p", {}, el("strong", {}, "This gives them up for good, and cannot be undone. "), "The partition continues past them once its agent has read your acknowledgement."),
    form(
      `Give up ${plural(count, "offset")}`,
      async (_, data) => {
        const word = {incarnation: row.incarnation, partition: row.partition, start: gap.start, end: gap.end, reason: data.get("reason")};
        await api.acknowledge(at, word);
        opened.close();
        await done();
      },
      el("label", {for: "reason"}, "Reason: why they are lost, and why the partition may continue"),
      el("textarea", {id: "reason", name: "reason", rows: "3", maxlength: "1000", required: true}),
    ),
  );
  opened.querySelector("#reason").focus();
}

// The modes whose runs read a field, where not all do; the other modes refuse it, or do not heed it.
const MODES_OF = {
  from_date: ["rebuild", "compare", "missing", "replay"],
  to_date: ["rebuild", "compare", "missing", "replay"],
  exchange: ["rebuild", "missing"],
  extend: ["rebuild", "compare", "replay"],
  differences: ["rebuild", "schema"],
  schema_version: ["schema"],
  reason: ["rebuild", "missing", "replay", "repair", "schema"],
  approve_above_gib: ["rebuild", "missing", "replay", "repair", "schema"],
};
// Fields that are folded with those of the DAG's section "Limits".
const FOLDED = ["configuration"];
const REQUIRED = ["schema_version"];
// The form needs dates in each mode; where they are not heeded, it has this one.
const today = () => new Date().toISOString().slice(0, 10);

// The form is made of the DAG's own parameters, so that it is always the DAG's form.
export async function backfill(filled) {
  const opened = dialog("Backfill", el("p", {class: "note"}, "Loading the form …"));
  let dag;
  try {
    dag = await airflow.dag(BACKFILL);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    opened.lastElementChild.replaceWith(el("p", {class: "note warn", role: "alert"}, `${BACKFILL}: ${error.message}`));
    return;
  }
  const fields = Object.entries(dag.params).map(([name, param]) => ({...field(name, param, filled[name]), folded: FOLDED.includes(name) || Boolean(param.schema?.section)}));
  const mode = () => node.elements.mode.value;
  const used = ({name}) => MODES_OF[name]?.includes(mode()) ?? true;

  function conf(data) {
    const given = fields.filter(used).map(({name, read}) => [name, read(data)]);
    return {from_date: today(), to_date: today(), ...Object.fromEntries(given.filter(([, value]) => value !== undefined))};
  }
  const folded = fields.filter((one) => one.folded).map((one) => one.node);
  const node = form(
    "Start the run",
    async (_, data) => {
      const asked = conf(data);
      const run = await airflow.trigger(BACKFILL, asked);
      follow(opened, node, asked.topics, run);
    },
    dag.is_paused ? el("p", {class: "note warn"}, `The DAG ${BACKFILL} is paused: the run will wait until it is not.`) : null,
    fields.filter((one) => !one.folded).map((one) => one.node),
    folded.length ? el("details", {}, el("summary", {}, "Limits"), folded) : null,
  );
  // Disabled controls are neither sent nor checked.
  function showFields() {
    for (const one of fields) {
      one.node.hidden = !used(one);
      for (const control of one.node.querySelectorAll("input, textarea")) control.disabled = one.node.hidden;
    }
  }
  node.addEventListener("change", (event) => event.target.name === "mode" && showFields());
  node.addEventListener("invalid", (event) => event.target.closest("details")?.setAttribute("open", ""), true);
  opened.lastElementChild.replaceWith(node);
  showFields();
  node.querySelector("input:not([disabled]), textarea").focus();
}

const POLL_MS = 1500;
const ENDS = {success: "has ended", failed: "has failed: its log names the field and the rule, or the error"};

// The run until it ends, and what its reports say so far; the form waits behind it with what was filled in.
async function follow(opened, form, topics, {dag_run_id: id, state}) {
  const status = el("p", {class: "note", role: "status"});
  const reports = el("div", {class: "reports"});
  const back = el("button", {type: "button", onclick: () => close()}, "Back to the form");
  const node = el("div", {}, status, reports, el("div", {class: "actions"}, back));
  const link = el("a", {href: `../dags/${BACKFILL}/runs/${encodeURIComponent(id)}`}, id);
  form.hidden = true;
  form.after(node);

  function close() {
    node.remove();
    form.hidden = false;
    form.querySelector("button[type=submit]").disabled = false;
  }
  for (let now = state; node.isConnected; now = (await answered(airflow.run(BACKFILL, id)))?.state ?? now) {
    const found = await Promise.all(topics.map((topic) => answered(api.report(at(topic), id))));
    const told = found.find((one) => one && !one.done)?.state; // empty until the run has begun its report
    put(status, "The run ", link, ` ${ENDS[now] ?? `is ${now}${told ? `: ${told}` : ""}`}.`);
    put(reports, found.map((one, place) => one?.state && report(topics[place], one)));
    if (now in ENDS) {
      status.classList.add(now === "success" ? "good" : "warn");
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

const at = (label) => ({cluster: label.split("/")[0], topic: label.split("/")[1]});

// Null while nothing answers: it is asked again.
const answered = (asked) =>
  asked.catch((error) => {
    if (error instanceof Refused) return null;
    throw error;
  });

// All parts but the first, which repeats the form.
function report(label, {name, state, parts}) {
  return el(
    "section",
    {"aria-label": `Report on ${label}`},
    el("h3", {}, label, ": ", state, " ", el("a", {href: `reports/${label}/${name}`}, "Report")),
    parts.slice(1).map(({title, header, rows, note}) => [
      el("h4", {}, title),
      note ? el("p", {}, note) : null,
      rows.length ? grid(header, rows.map(line)) : null,
    ]),
  );
}

function field(name, param, filled) {
  const schema = param.schema ?? {};
  const types = [schema.type ?? "string"].flat();
  const value = filled ?? param.value;
  const id = `field-${name}`;
  const known = {id, name, "aria-describedby": param.description ? `${id}-help` : null};
  const required = (!types.includes("null") && param.value === null) || REQUIRED.includes(name);
  let control;
  let read = (data) => (data.get(name) === "" ? (types.includes("null") ? null : undefined) : data.get(name));
  if (types.includes("boolean")) {
    control = el("input", {...known, type: "checkbox", checked: value === true});
    read = (data) => data.has(name);
  } else if (schema.enum) {
    return {name, read, node: choice(name, param, value)};
  } else if (types.includes("array")) {
    control = el("textarea", {...known, rows: "2", required: required}, (value ?? []).join("\n"));
    read = (data) => data.get(name).split("\n").map((one) => one.trim()).filter(Boolean);
  } else if (types.includes("integer") || types.includes("number")) {
    control = el("input", {...known, type: "number", min: schema.minimum, max: schema.maximum, step: types.includes("number") ? "any" : "1", value: value ?? "", required});
    read = (data) => (data.get(name) === "" ? null : Number(data.get(name)));
  } else {
    control = el("input", {...known, type: schema.format === "date" ? "date" : "text", value: value ?? "", required});
  }
  const label = el("label", {for: id}, schema.title ?? name);
  const help = param.description ? el("small", {id: `${id}-help`}, param.description) : null;
  const parts = control.type === "checkbox" ? [el("span", {class: "check"}, control, label), help] : [label, control, help];
  return {name, read, node: el("div", {class: "field"}, parts)};
}

// All options in full: what a select shows is cut where it has no room.
function choice(name, {schema, description}, value) {
  const option = (one) => el("label", {class: "check"}, el("input", {type: "radio", name, value: one, checked: one === value}), schema.values_display?.[one] ?? one);
  return el("fieldset", {class: "field"}, el("legend", {}, schema.title ?? name), schema.enum.map(option), description && !schema.values_display ? el("small", {}, description) : null);
}

export async function lineage(at, row, start, end, closed) {
  const title = `Partition ${row.incarnation ? `${row.incarnation}-` : ""}${row.partition}: offsets ${range(start, end)}`;
  const opened = dialog(title, el("p", {class: "note"}, "Reading evidence and manifests …"));
  opened.classList.add("wide");
  opened.addEventListener("close", closed);
  let answer;
  try {
    answer = await api.lineage(at, {incarnation: row.incarnation, partition: row.partition, start, end});
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    opened.lastElementChild.replaceWith(el("p", {class: "note warn", role: "alert"}, error.message));
    return;
  }
  const [packs, segments] = [true, false].map((packed) => answer.segments.filter((one) => one.packed === packed));
  opened.lastElementChild.replaceWith(
    el(
      "div",
      {},
      answer.more ? el("p", {class: "note warn"}, "There is more than is shown here: choose fewer offsets.") : null,
      el("h3", {}, "What became of them"),
      answer.rows.length
        ? grid(["Offsets", "Class", "Date", "Rows", "File", "From bytes of"], answer.rows.map(evidence))
        : el("p", {class: "soft"}, "None of them is landed."),
      el("h3", {}, "Segments in the raw store"),
      segments.length
        ? grid(["Segment", "Offsets", "State", "Size", "CRC32C", "Uploaded", "Broker", "Origin", "Epoch"], segments.map(segment))
        : el("p", {class: "soft"}, "No segment holds any of them."),
      packs.length
        ? [
            el("h3", {}, "Packs"),
            el("p", {class: "soft"}, "A pack has the newest records of many partitions of a broker, until segments hold them."),
            grid(["Pack", "State", "Size", "Uploaded", "Broker", "Origin"], packs.map(pack)),
          ]
        : null,
    ),
  );
}

function grid(head, rows) {
  return el(
    "div",
    {class: "scroll", tabindex: "0", role: "region", "aria-label": head[0]},
    el("table", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", {scope: "col"}, name)))), el("tbody", {}, rows)),
  );
}

const last = (key) => key.slice(key.lastIndexOf("/") + 1);

function evidence(one) {
  const file = one.file ? el("code", {title: one.file}, last(one.file)) : "–";
  const from = one.segment ? [el("code", {title: one.segment}, last(one.segment)), ` ${number(one.byte_start)} to ${number(one.byte_end)}`] : "–";
  return line([range(one.start, one.end), one.offset_class.replaceAll("_", " "), one.dt ?? "–", number(one.rows), file, from]);
}

function pack(one) {
  return line([stored(one), one.present ? "in the store" : "removed", bytes(one.size), uploaded(one), place(one.broker), one.origin]);
}

function segment(one) {
  const offsets = one.present ? range(one.base_offset, Math.max(one.next_offset, one.base_offset + 1)) : "–";
  const state = one.present ? one.state : "removed";
  return line([stored(one), offsets, state, bytes(one.size), one.crc32c ?? "–", uploaded(one), place(one.broker), one.origin ?? "–", number(one.leader_epoch)]);
}

const stored = ({store, key}) => el("code", {title: `${store}/${key}`}, key.split("/").slice(-2).join("/"));

const uploaded = ({uploaded_at: at}) => (at ? time(at, clock(at)) : "–");

const line = (values) => el("tr", {}, values.map((value) => el("td", {}, value)));
