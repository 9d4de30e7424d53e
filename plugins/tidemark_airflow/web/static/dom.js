// Elements, numbers and times. All text goes in as text: nothing of what the API answers is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

// el("p", {class: "note", onclick: f}, "text", child, …); null and false children are left out.
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...present(children));
  return node;
}

const present = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

// Show these children, and none of those before.
export function put(node, ...children) {
  node.replaceChildren(...present(children));
}

const FIRST_SLOT = 2_000_000_000;
// A broker's number, or the slot of an agent that fetches.
export const place = (broker) => (broker >= FIRST_SLOT ? `slot ${broker - FIRST_SLOT}` : number(broker));
export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-GB"));

const SHORT = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
export function short(value) {
  const [unit, letter] = SHORT.find(([limit]) => value >= limit) ?? [1, ""];
  const scaled = value / unit;
  return `${scaled >= 100 || unit === 1 ? Math.round(scaled) : scaled.toFixed(1)}${letter}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const steps = ["B", "KiB", "MiB", "GiB", "TiB"];
  const step = value < 1024 ? 0 : Math.min(steps.length - 1, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** step).toFixed(step ? 1 : 0)} ${steps[step]}`;
}

// A path or an address, which may be broken after each slash.
export const path = (text) => text.split(/(?<=\/)(?!\/)/).flatMap((part) => [part, el("wbr")]);

// The offsets [start, end), as people count them: from the first to the last.
export const range = (start, end) => (end - start === 1 ? number(start) : `${number(start)} to ${number(end - 1)}`);

export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const since = (iso) => duration(Math.max(0, (Date.now() - Date.parse(iso)) / 1000));
export const clock = (iso) => `${iso.slice(0, 10)} ${iso.slice(11, 16)} UTC`;

export function time(iso, text) {
  return iso ? el("time", {datetime: iso, title: clock(new Date(iso).toISOString())}, text ?? `${since(iso)} ago`) : "–";
}

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

// Tell a screen reader; the text is never seen.
export function say(text) {
  document.getElementById("said").textContent = text;
}
