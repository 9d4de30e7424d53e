// Requests: to the page's own API, and to Airflow's for the backfill form.

const REQUEST_HEADER = "X-Tidemark-Request";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, {credentials: "same-origin", ...options});
  } catch {
    throw new Refused(0, "Airflow's API server does not answer.");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, explain(answer.detail) || `Airflow answered ${response.status}.`);
  return answer;
}

function explain(detail) {
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) return detail.map((one) => `${(one.loc ?? []).slice(1).join(".")}: ${one.msg}`).join("; ");
  return detail ? JSON.stringify(detail) : "";
}

const query = (values) => {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
};

const send = (path, body, headers = {}) =>
  ask(path, {method: "POST", headers: {"Content-Type": "application/json", ...headers}, body: JSON.stringify(body)});

const of = ({cluster, topic}) => `api/topics/${encodeURIComponent(cluster)}/${encodeURIComponent(topic)}`;

export const api = {
  topics: (values) => ask(`api/topics${query(values)}`),
  brokersets: () => ask("api/brokersets"),
  topic: (at) => ask(of(at)),
  partitions: (at, values) => ask(`${of(at)}/partitions${query(values)}`),
  dates: (at, values) => ask(`${of(at)}/dates${query(values)}`),
  columns: (at) => ask(`${of(at)}/columns`),
  history: (at, values) => ask(`${of(at)}/history${query(values)}`),
  flow: (at) => ask(`${of(at)}/flow`),
  report: (at, run) => ask(`${of(at).replace("topics", "reports")}${query({run})}`),
  quarantine: (at) => ask(`${of(at)}/quarantine`),
  readers: (at) => ask(`${of(at)}/readers`),
  lineage: (at, values) => ask(`${of(at)}/lineage${query(values)}`),
  acknowledge: (at, word) => send(`${of(at)}/acknowledgements`, word, {[REQUEST_HEADER]: "page"}),
};

export const airflow = {
  dag: (id) => ask(`../api/v2/dags/${encodeURIComponent(id)}/details`),
  run: (id, run) => ask(`../api/v2/dags/${encodeURIComponent(id)}/dagRuns/${encodeURIComponent(run)}`),
  trigger: (id, conf) => send(`../api/v2/dags/${encodeURIComponent(id)}/dagRuns`, {logical_date: null, conf}),
};
