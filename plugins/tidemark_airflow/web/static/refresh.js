// The page as a clock: ages tick each second, and the data is read again while somebody can see it and nobody is busy.

import {Refused} from "./server.js";
import {ago, clock} from "./dom.js";

export const EVERY_MS = 15_000;

const shown = document.getElementById("asof");
let reload = null; // of the view that is shown
let readAt = 0;
let askedAt = 0;
let problem = "";

// The view has just been read; again() reads it once more. Without again, nothing is shown that could be old.
export function fresh(again) {
  reload = again;
  readAt = askedAt = Date.now();
  problem = "";
  tell();
}

// A dialog or a selection would be disturbed; a hidden page is read when it is seen again.
const busy = () => document.hidden || document.querySelector("dialog") !== null || !getSelection().isCollapsed;

function tell() {
  const time = new Date(readAt).toISOString().slice(11, 19);
  const paused = document.querySelector("dialog") ? ", paused" : "";
  shown.hidden = reload === null;
  shown.classList.toggle("warn", problem !== "");
  const text = `as of ${time} UTC${problem ? `: not read since, ${problem}` : paused}`;
  if (shown.textContent !== text) shown.textContent = text;
  shown.title = `${clock(new Date(readAt).toISOString())}. The page reads its data again every ${EVERY_MS / 1000} seconds.`;
}

async function tick() {
  for (const one of document.querySelectorAll("time[data-form]")) {
    const text = ago(one.dateTime, one.dataset.form);
    if (one.textContent !== text) one.textContent = text;
  }
  if (reload === null) return;
  if (!busy() && Date.now() - askedAt >= EVERY_MS) {
    const again = reload;
    askedAt = Date.now();
    try {
      await again();
      if (again === reload) [readAt, problem] = [Date.now(), ""];
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (error.status === 401) location.reload(); // signed out meanwhile: the page itself leads to the login
      problem = error.message;
    }
  }
  tell();
}

setInterval(tick, 1000);
document.addEventListener("visibilitychange", tick);
