// Names, signs and explanations of states: never told apart by colour alone.

import {el} from "./dom.js";

// As in tidemark/monitoring/judgement.py; a test compares them.
export const TOPIC = {
  gap: ["✕", "Gap", "offsets are missing, and nobody has acknowledged the gap"],
  unequal: ["≠", "Unequal", "the table is not what its evidence or its audit says"],
  late: ["▲", "Late", "offsets have waited for longer than the topic's freshness"],
  attention: ["!", "Attention", "an open incident says what is wrong"],
  held: ["‖", "Held", "an open transaction holds a partition"],
  behind: ["→", "Behind", "offsets wait to be landed"],
  current: ["≈", "Current", "all that is stored has landed, and newer offsets are in Kafka alone"],
  complete: ["✓", "Complete", "every offset of the log has a class"],
  unknown: ["?", "Unknown", "nobody has looked yet, or no agent knows the topic"],
};

export const SPAN = {
  landed: ["landed", "in the table, or accounted for in another way"],
  uploaded: ["uploaded", "in the store, not yet landed"],
  held: ["held", "in the store, held by an open transaction"],
  gap: ["gap", "missing in the store"],
  log: ["in Kafka", "in the broker's log alone"],
};

const REASON = {
  deleted_before_upload: "deleted before upload",
  unclean_election: "cut off by an unclean election",
  failed_disk: "on a failed disk",
  corrupt: "corrupt",
  staging_full: "the agent's staging was full",
  remote_tier: "only in Kafka's remote tier",
  unknown: "for an unknown reason",
};

// A later version's agents may give other reasons.
export const inWords = (reason) => REASON[reason] ?? reason;

export const DATE = {
  open: ["○", "open", "rows may still come"],
  final: ["✓", "final", "closed: no more rows are waited for"],
  final_incomplete: ["!", "final, incomplete", "closed, although known offsets were still missing"],
  reopened: ["↻", "reopened", "was closed, and rows came late"],
  expired: ["×", "expired", "removed by retention"],
};

export const BROKERSET = {
  fits: ["✓", "Fits", "no broker exceeds the capacity, also with any one broker gone"],
  exceeded: ["✕", "Over capacity", "a broker exceeds the capacity, today or with some broker gone"],
};

export function badge(state, table = TOPIC) {
  const [sign, name, meaning] = table[state];
  return el("span", {class: `badge ${state}`, title: meaning}, el("span", {"aria-hidden": "true"}, sign), name);
}
