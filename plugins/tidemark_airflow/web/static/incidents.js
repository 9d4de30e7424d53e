// What a person should know of, as the watch DAG found it: what, since when, why, and what mends it.

import {el, lasting, plural} from "./dom.js";

// Incidents of these kinds mean that something is lost, or may be; the others need attention.
const LOSS = ["gap", "audit"];

// A command in a sentence: between backquotes, or from a program's name up to a word that goes on with the sentence.
const COMMAND =
  /`([^`]+)`|(?<![\w-])((?:tidemark(?:-agent)?|systemctl|journalctl|timedatectl|chronyc|spark-submit)(?![\w-])(?: (?!(?:names|makes|shows|leaves|on|and|or) )[^\s;,()]+)*)/g;

// The same for an agent that systemd does not run; what systemd's units are told has no other form.
const ELSEWHERE = [
  [/^journalctl -u tidemark-agent(?: -g (\S+))?$/, "docker compose logs agent", "kubectl logs POD --container tidemark-agent"],
  [/^systemctl status tidemark-agent$/, "docker compose ps agent", "kubectl describe pod POD"],
  [/^systemctl restart tidemark-agent$/, "docker compose restart agent", "kubectl delete pod POD"],
];
const OF_A_HOST = /^(systemctl|journalctl|timedatectl|chronyc) /;

// act(incident) is a button that does what mends it, or null.
export function incidents(open, act = () => null) {
  if (!open?.length) return null;
  return el(
    "details",
    {class: open.some(({kind}) => LOSS.includes(kind)) ? "incidents loss" : "incidents", open: open.length <= 3},
    el("summary", {}, plural(open.length, "open incident")),
    el("ul", {}, open.map((one) => incident(one, act(one)))),
  );
}

function incident(one, button) {
  return el(
    "li",
    {},
    el("p", {}, el("strong", {}, one.title), " ", el("small", {}, lasting(one.since))),
    el("p", {}, one.text),
    el("p", {}, el("span", {class: "soft"}, "Likely: "), one.likely),
    el("p", {}, el("span", {class: "soft"}, "What to do: "), remedy(one.mend)),
    button,
  );
}

// The remedy: prose as prose, commands as code, and a command of one platform with its name and what the others have.
export function remedy(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(COMMAND)) {
    const command = found[1] ?? found[2];
    parts.push(text.slice(at, found.index), onPlatforms(command));
    at = found.index + found[0].length;
  }
  return [...parts, text.slice(at)];
}

function onPlatforms(command) {
  const code = el("code", {}, command);
  for (const [pattern, containers, kubernetes] of ELSEWHERE) {
    const match = pattern.exec(command);
    if (!match) continue;
    const filter = match[1] ? ` | grep ${match[1]}` : "";
    return [code, " (systemd), ", el("code", {}, containers + filter), " (containers) or ", el("code", {}, kubernetes + filter), " (Kubernetes)"];
  }
  return OF_A_HOST.test(`${command} `) ? [code, " (systemd)"] : code;
}
