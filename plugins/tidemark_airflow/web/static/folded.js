// A section that is read when somebody opens it, since reading it takes long.

import {el, put, say} from "./dom.js";
import {Refused} from "./server.js";

// read() returns what the section shows.
export function folded(id, title, read) {
  const content = el("div", {});
  let asked = false;

  async function open(event) {
    if (!event.target.open || asked) return;
    asked = true;
    put(content, el("p", {class: "note"}, "Counting …"));
    try {
      put(content, await read());
      say(`${title} shown`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      asked = false;
      put(content, el("p", {class: "note warn", role: "alert"}, error.message));
    }
  }
  return el("section", {"aria-labelledby": id}, el("details", {ontoggle: open}, el("summary", {}, el("h2", {id}, title)), content));
}
