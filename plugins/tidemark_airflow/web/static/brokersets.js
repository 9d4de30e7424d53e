// The brokersets of each cluster: what their brokers upload now, and with the broker gone whose loss is worst.

import {bytes, el, number, plural, put, short, svg} from "./dom.js";
import {api} from "./server.js";
import {badge, BROKERSET} from "./states.js";

const DAY_SECONDS = 86400;
const WIDTH = 140;
const HEIGHT = 12;

// Fill ``place``; it stays hidden where no brokersets are configured.
export async function showBrokersets(place) {
  let content;
  try {
    const {clusters} = await api.brokersets();
    content = clusters.map((one) => [one.failure ? el("p", {class: "note warn"}, `Not all is known: ${one.failure}`) : null, table(one)]);
  } catch (error) {
    content = [el("p", {class: "note warn"}, error.message)];
  }
  if (!content.length) return;
  put(place, el("h2", {id: "brokersets"}, "Brokersets"), content);
  place.hidden = false;
}

function table({cluster, brokersets}) {
  const head = ["Brokerset", "Upload load", "Busiest broker", "Busiest without a broker", "Load by capacity", "Lag", "Held"];
  const numeric = new Set(["Upload load", "Busiest broker", "Busiest without a broker", "Lag", "Held"]);
  const most = Math.max(...brokersets.map((one) => Math.max(one.capacity ?? 0, one.rate_then, one.busiest_rate)), 1);
  const even = brokersets.some((one) => one.failover === "even");
  return [
    el(
      "div",
      {class: "list scroll", tabindex: "0", role: "region", "aria-label": `Brokersets of ${cluster}`},
      el(
        "table",
        {class: "topics"},
        el("thead", {}, el("tr", {}, head.map((name) => el("th", {scope: "col", class: numeric.has(name) ? "num" : null}, name)))),
        el("tbody", {}, brokersets.map((one) => row(cluster, one, most))),
      ),
    ),
    even ? el("p", {}, el("small", {}, EVEN, el("code", {}, "tidemark brokersets show --bootstrap"), " asks.")) : null,
  ];
}

const EVEN =
  "The page does not ask Kafka which replicas follow: the load of a lost broker is taken to spread evenly over the other zones. ";

const rate = (value) => `${bytes(value)}/s`;

function row(cluster, one, most) {
  const unmeasured = one.unmeasured ? el("small", {}, `the rate of ${number(one.unmeasured)} is not known`) : null;
  const lost = one.without === null ? "no other broker" : `broker ${one.busiest_then}, without ${one.without}`;
  return el(
    "tr",
    {},
    el(
      "th",
      {scope: "row"},
      el("span", {class: "soft"}, `${cluster}/`),
      one.brokerset,
      el("small", {class: "below"}, `${plural(one.brokers, "broker")}, ${plural(one.partitions, "partition")}`),
    ),
    el("td", {class: "num"}, rate(one.rate), el("small", {}, `${bytes(one.rate * DAY_SECONDS)} a day`), unmeasured),
    el("td", {class: "num"}, rate(one.busiest_rate), el("small", {}, `broker ${one.busiest}`)),
    el("td", {class: "num"}, rate(one.rate_then), el("small", {}, lost)),
    el("td", {}, bar(one, most), capacity(one)),
    el("td", {class: "num", title: number(one.lag)}, short(one.lag)),
    el("td", {class: "num", title: `${number(Math.round(one.held))} bytes`}, bytes(one.held)),
  );
}

function capacity(one) {
  if (one.capacity === null) return el("small", {}, "no capacity is set");
  const share = Math.round((100 * Math.max(one.rate_then, one.busiest_rate)) / one.capacity);
  return [badge(one.exceeded ? "exceeded" : "fits", BROKERSET), el("small", {}, `${share} % of ${rate(one.capacity)} at worst`)];
}

// The busiest broker now, how much more the busiest has at worst, and the capacity as a mark.
function bar(one, most) {
  const at = (value) => (WIDTH * value) / most;
  const limit = one.capacity === null ? null : Math.min(at(one.capacity), WIDTH - 1);
  return svg(
    "svg",
    {class: "load", width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true"},
    svg("rect", {class: "track", y: 2, width: WIDTH, height: HEIGHT - 4, rx: 3}),
    svg("rect", {class: one.exceeded ? "worst over" : "worst", y: 2, width: at(one.rate_then), height: HEIGHT - 4, rx: 3}),
    svg("rect", {class: "now", y: 2, width: at(one.busiest_rate), height: HEIGHT - 4, rx: 3}),
    limit === null ? null : svg("line", {class: "limit", x1: limit, x2: limit, y1: 0, y2: HEIGHT}),
  );
}
