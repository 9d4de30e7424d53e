// All topics, from the worst state to the best; a hundred at a time, however many there are.

import {showBrokersets} from "./brokersets.js";
import {el, hint, lasting, number, plural, put, say, short, since, time} from "./dom.js";
import {incidents} from "./incidents.js";
import {api} from "./server.js";
import {badge, TOPIC} from "./states.js";

const LIMIT = 100;
const STALE_SECONDS = 300;
const TYPING_MS = 200;
const FINAL = "The newest date that is closed: no more rows are waited for in it.";

export async function showTopics(view) {
  const asked = new URLSearchParams(location.search);
  const wanted = {state: asked.get("state") ?? "", contains: asked.get("contains") ?? "", offset: 0};
  const list = el("div", {class: "list"});
  const chips = el("div", {class: "chips", role: "group", "aria-label": "Only topics that are"});
  const notes = el("div", {});
  let typing = 0;

  async function load() {
    const answer = await api.topics({...wanted, limit: LIMIT});
    const query = new URLSearchParams(Object.entries(wanted).filter(([name, value]) => value && name !== "offset"));
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    put(chips, drawChips(answer));
    put(notes, answer.clusters.map(stale), incidents(answer.incidents));
    put(list, drawList(answer));
    return answer;
  }

  async function change(update) {
    const answer = await load(Object.assign(wanted, update));
    say(plural(answer.total, "topic"));
  }

  function drawChips(answer) {
    const all = Object.values(answer.counts).reduce((sum, count) => sum + count, 0);
    const chip = (state, label, count) =>
      el(
        "button",
        {type: "button", class: "chip", "aria-pressed": String(wanted.state === state), onclick: () => change({state, offset: 0})},
        label,
        el("span", {class: "count"}, number(count)),
      );
    const known = Object.keys(TOPIC).filter((state) => answer.counts[state] || wanted.state === state);
    return [chip("", "All", all), ...known.map((state) => chip(state, badge(state), answer.counts[state]))];
  }

  function drawList(answer) {
    if (!answer.topics.length) {
      const filtered = wanted.state || wanted.contains;
      return [el("p", {class: "note"}, filtered ? "No topic matches." : "There is no topic that you may see.")];
    }
    return [table(answer.topics), pager(answer, LIMIT, (offset) => change({offset}))];
  }

  const search = el("input", {
    type: "search",
    id: "search",
    autocomplete: "off",
    value: wanted.contains,
    oninput: (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => change({contains: event.target.value, offset: 0}), TYPING_MS);
    },
  });
  const head = el(
    "div",
    {class: "head"},
    el("h1", {}, "Topics"),
    el("div", {class: "field"}, el("label", {for: "search"}, "Name, owner or table"), search),
  );
  const brokersets = el("section", {hidden: true, "aria-labelledby": "brokersets"});
  await load();
  put(view, head, notes, chips, list, brokersets);
  showBrokersets(brokersets); // all indexes are parsed for it, and the topics do not wait
  return () => Promise.all([load(), showBrokersets(brokersets)]);
}

function stale({cluster, observed_at: at}) {
  if (at && Date.now() - Date.parse(at) < STALE_SECONDS * 1000) return null;
  const when = at ? `was last observed ${since(at)} ago` : "has not been observed yet";
  return el("p", {class: "note warn"}, `Cluster ${cluster} ${when}: see to it that the DAG tidemark_watch is on and runs.`);
}

function table(topics) {
  const head = ["State", "Topic", "Behind", "Gaps", "Held", hint("Final to", FINAL), "Rows", "Last commit", "Owner"];
  const numeric = new Set(["Behind", "Gaps", "Held", "Rows"]);
  return el(
    "div",
    {class: "scroll", tabindex: "0", role: "region", "aria-label": "Topics by health"},
    el(
      "table",
      {class: "topics stacked", role: "table"},
      el("thead", {role: "rowgroup"}, el("tr", {role: "row"}, head.map((name) => el("th", {scope: "col", role: "columnheader", class: numeric.has(name) ? "num" : null}, name)))),
      el("tbody", {role: "rowgroup"}, topics.map(row)),
    ),
  );
}

// In a narrow window a row is a block of name, state and the cells with a label, see page.css; roles keep it a row.
function row(one) {
  const waits = one.behind_since ? el("small", {}, lasting(one.behind_since)) : null;
  const gaps = one.gaps ? [number(one.gaps), el("small", {}, plural(one.missing, "offset"))] : "–";
  const cell = (attributes, ...content) => el("td", {role: "cell", ...attributes}, content);
  return el(
    "tr",
    {role: "row"},
    cell({}, badge(one.state), one.incidents ? el("small", {}, plural(one.incidents, "incident")) : null),
    el("th", {scope: "row", role: "rowheader"}, el("a", {href: `?topic=${one.cluster}/${one.topic}`}, el("span", {class: "soft"}, `${one.cluster}/`), one.topic)),
    cell({class: "num", title: number(one.lag), "data-label": "Behind"}, one.state === "unknown" ? "–" : short(one.lag), waits),
    cell({class: "num"}, gaps),
    cell({class: "num"}, one.held ? plural(one.held, "partition") : "–"),
    cell({}, one.final_to || "–", one.incomplete ? el("small", {}, `${plural(one.incomplete, "date")} incomplete`) : null),
    cell({class: "num", title: number(one.rows)}, short(one.rows)),
    cell({"data-label": "Last commit"}, time(one.committed_at)),
    cell({}, one.owner),
  );
}

export function pager({total, offset}, limit, go) {
  if (total <= limit) return null;
  const last = Math.min(total, offset + limit);
  return el(
    "nav",
    {class: "pager", "aria-label": "Pages"},
    el("button", {type: "button", disabled: offset === 0, onclick: () => go(Math.max(0, offset - limit))}, "Previous"),
    el("span", {}, `${number(offset + 1)} to ${number(last)} of ${number(total)}`),
    el("button", {type: "button", disabled: last >= total, onclick: () => go(offset + limit)}, "Next"),
  );
}
