// A topic's way from Kafka over raw and table to catalogs and readers, counted when somebody opens it.

import {bytes, el, number, plural, time} from "./dom.js";
import {folded} from "./folded.js";
import {api} from "./server.js";

export const flow = (at) =>
  folded("flow", "Data flow", async () => {
    const [found, {readers}] = await Promise.all([api.flow(at), api.readers(at)]);
    return el("ol", {class: "flow"}, steps(found, readers));
  });

function steps({kafka, raw, table, catalogs}, readers) {
  const packed = `${plural(raw.packed_ranges, "range")} of packs beyond them: ${bytes(raw.packed_bytes)}, ${plural(raw.packed_offsets, "offset")}`;
  const version = table.delta_version === null ? "not there yet" : `Delta version ${number(table.delta_version)}`;
  const dates = table.dates ? `${plural(table.dates, "date")}, ${table.first_date} to ${table.last_date}` : "no date";
  return [
    step("Topic", name(kafka)),
    step(
      "Raw",
      name(raw.dataset),
      `${plural(raw.partitions, "partition")}: ${plural(raw.segments, "segment")}, ${bytes(raw.bytes)}, ${plural(raw.offsets, "offset")}`,
      raw.packed_ranges ? packed : null,
      raw.unread.map((one) => `Damaged: ${one}`),
    ),
    step(
      "Table",
      name(table.dataset),
      `${version}, ledger ${number(table.ledger)}: ${plural(table.rows, "row")}, ${plural(table.files, "file")}, ${bytes(table.bytes)}; ${dates}`,
      table.columns.map((one) => `${one.name} ${one.kind}`).join(", "),
    ),
    catalogs.length ? step("Catalogs", catalogs.map(listed)) : null,
    step("Readers", readersOf(readers)),
  ];
}

const step = (title, ...lines) =>
  el("li", {class: "card"}, el("h3", {}, title), lines.flat().filter(Boolean).map((line) => el("p", {}, line)));

const name = ({namespace, name: own}) => el("code", {}, `${namespace} ${own}`);

function listed({catalog, state, behind}) {
  if (state === null || !(state.at || state.failing_since)) return `${catalog}: not listed yet`;
  if (state.failing_since) return [`${catalog}: fails since `, time(state.failing_since), `: ${state.error}`];
  return `${catalog}: ${state.identifier}, ledger ${number(state.ledger_n)}${behind ? `, ${plural(behind, "commit")} behind` : ""}`;
}

const readersOf = (readers) => (readers.length ? readers.map(reader) : ["None that Airflow knows of."]);

const reader = ({dag, task, asset}) => [
  el("a", {href: `../dags/${encodeURIComponent(dag)}`}, dag),
  task ? `, task ${task}` : "",
  ": ",
  el("code", {}, asset),
];
