// Why records were refused: by reason and schema, with the places of the first ones.

import {el, number, plural, range} from "./dom.js";
import {folded} from "./folded.js";
import {api} from "./server.js";

export const quarantine = (at) =>
  folded("quarantine", "Quarantine", async () => {
    const found = await api.quarantine(at);
    const unread = found.files.length - found.files_read;
    return [
      unread ? el("p", {class: "note"}, `The reasons are those of the newest ${plural(found.files_read, "file")} of ${number(found.files.length)}.`) : null,
      found.lost.length ? el("p", {class: "note warn"}, `${plural(found.lost.length, "file")} of the quarantine are lost, the first: ${found.lost[0]}`) : null,
      el("ul", {class: "flow"}, found.reasons.map((one) => el("li", {class: "card"}, reason(one)))),
      el("p", {class: "soft"}, "With values: ", el("code", {}, `tidemark quarantine ${at.topic} --cluster ${at.cluster}`)),
    ];
  });

function reason({reason: why, schema_id: id, schema_version: version, records, examples}) {
  const schema = id === null ? "" : `, schema ${id}${version === null ? "" : ` (version ${number(version)})`}`;
  return [
    el("h3", {}, why),
    el("p", {}, plural(records, "record"), schema),
    el("p", {class: "soft"}, "The first: ", examples.map(placeOf).join("; ")),
  ];
}

const placeOf = ({incarnation, partition, start, end}) => `partition ${incarnation ? `${incarnation}-` : ""}${partition}, ${end - start === 1 ? "offset" : "offsets"} ${range(start, end)}`;
