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

// Show these children, and none of those before. What is drawn again keeps its focus, what is unfolded, and its scrolling.
export function put(node, ...children) {
  const [at, kept] = [placesOf(node, document.activeElement), states(node)];
  node.replaceChildren(...present(children));
  const after = states(node);
  if (after.length === kept.length) after.forEach((one, place) => Object.assign(one.node, {open: kept[place].open, scrollLeft: kept[place].left}));
  if (!owner?.isConnected) hideTip();
  const focus = at?.reduce((inner, place) => inner?.children[place], node);
  if (focus && focus !== node) focus.focus({preventScroll: true});
}

const states = (node) => [...node.querySelectorAll("details, .scroll")].map((one) => ({node: one, open: one.open, left: one.scrollLeft}));

// The places of ``inner`` and of what it lies in, below ``outer``; null if it does not lie there.
function placesOf(outer, inner) {
  if (!outer.contains(inner) || inner === outer) return null;
  return [...(placesOf(outer, inner.parentElement) ?? []), [...inner.parentElement.children].indexOf(inner)];
}

const FIRST_SLOT = 2_000_000_000;
// A broker's number, or the slot of an agent that fetches.
export const place = (broker) => (broker >= FIRST_SLOT ? `slot ${broker - FIRST_SLOT}` : number(broker));
export const agentOf = (broker) => (broker >= FIRST_SLOT ? place(broker) : `broker ${broker}`);
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

// An age in one of two forms, "5 min ago" and "for 5 min"; it grows while the page is shown, see refresh.js.
export const ago = (iso, form) => (form === "for" ? `for ${since(iso)}` : `${since(iso)} ago`);

export function time(iso, text, form = "ago") {
  if (!iso) return "–";
  const title = clock(new Date(iso).toISOString());
  return el("time", {datetime: iso, title, "data-form": text === undefined ? form : null}, text ?? ago(iso, form));
}

export const lasting = (iso) => time(iso, undefined, "for");

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

// Tell a screen reader; the text is never seen.
export function say(text) {
  document.getElementById("said").textContent = text;
}

// A term with its meaning, which is shown where the pointer or the focus is, and read out.
export function hint(term, meaning) {
  return tipped(el("span", {class: "hint", tabindex: "0"}, term, el("span", {class: "unseen"}, `: ${meaning}`)), meaning);
}

const tip = el("div", {class: "tip", hidden: true, "aria-hidden": "true"});
document.body.append(tip);
let owner = null;

// Show ``text`` at ``node`` while the pointer or the focus is there.
export function tipped(node, text) {
  const show = () => {
    owner = node;
    tip.textContent = text;
    tip.hidden = false;
    const at = node.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left + window.scrollX)}px`;
    tip.style.top = `${at.bottom + window.scrollY + 6}px`;
  };
  for (const event of ["pointerenter", "focus"]) node.addEventListener(event, show);
  for (const event of ["pointerleave", "blur"]) node.addEventListener(event, hideTip);
  return node;
}

function hideTip() {
  tip.hidden = true;
}
document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());

// A query to copy. Without a secure context browsers give no clipboard: then the text is selected for the person's own keys.
export function copyable(title, text) {
  const code = el("code", {}, text);
  const copy = async () => {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } else {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    say(button.textContent);
  };
  const button = el("button", {type: "button", "aria-label": `Copy the query for ${title}`, onclick: copy}, "Copy");
  return el("div", {class: "copyable"}, el("small", {}, title), code, button);
}
