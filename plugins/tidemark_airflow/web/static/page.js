// Which view the address asks for, and what all views share: crumbs, errors, links out of a frame.

import {el, path, put, say} from "./dom.js";
import {fresh} from "./refresh.js";
import {Refused} from "./server.js";
import {showTopic} from "./topic.js";
import {showTopics} from "./topics.js";

const view = document.getElementById("view");

// {cluster, topic} of ?topic=<cluster>/<topic>; null without it.
function asked() {
  const [cluster, topic] = (new URLSearchParams(location.search).get("topic") ?? "").split("/");
  return cluster && topic ? {cluster, topic} : null;
}

function crumbs(at) {
  const list = document.getElementById("crumbs");
  const here = at ? `${at.cluster}/${at.topic}` : "Topics";
  put(list, at && el("li", {}, el("a", {href: "?"}, "Topics")), el("li", {"aria-current": "page"}, path(here)));
  document.title = at ? `${here} · Continuity` : "Continuity";
}

function failed(error) {
  if (!(error instanceof Refused)) throw error;
  if (error.status === 401) {
    location.reload(); // signed out meanwhile: the page itself leads to the login
    return;
  }
  put(
    view,
    el(
      "div",
      {class: "note warn", role: "alert"},
      el("h1", {}, "This could not be read"),
      el("p", {}, error.message),
      el("button", {type: "button", onclick: show}, "Try again"),
    ),
  );
}

async function show() {
  const at = asked();
  crumbs(at);
  fresh(null);
  view.setAttribute("aria-busy", "true");
  try {
    fresh(await (at ? showTopic(view, at) : showTopics(view)));
    say(`${document.title} loaded`);
  } catch (error) {
    failed(error);
  } finally {
    view.removeAttribute("aria-busy");
  }
}

// Airflow shows the page in a frame that may not navigate the window; a link of the window's own document may.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || window.top === window || link.getAttribute("href").startsWith("?")) return;
  event.preventDefault();
  const outer = window.top.document.createElement("a");
  outer.href = link.href;
  window.top.document.body.append(outer);
  outer.click();
  outer.remove();
});

// In Airflow's frame the page has Airflow's scheme, which people switch there.
if (window.top !== window) {
  const {classList, style} = document.documentElement;
  classList.add("framed");
  style.colorScheme = window.top.document.documentElement.style.colorScheme;
}
window.addEventListener("popstate", show);
show();
