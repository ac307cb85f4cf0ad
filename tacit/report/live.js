"use strict";
// Requests this page again and replaces the parts that changed, but not an episode that is being read.
(() => {
  const EVERY_MS = 2000, SILENT_S = 600;
  const main = document.querySelector("main");
  const key = (section) => section.id;
  // A browser reads what is in <noscript> as text, a parser as markup: it is left out of the comparison.
  const source = (section) => section.outerHTML.replace(/<noscript>.*?<\/noscript>/s, "");
  const sources = new Map([...main.children].map((section) => [key(section), source(section)]));
  let stamp = document.body.dataset.stamp, waiting = null, stopped = "";

  const age = (s) => s < 90 ? `${Math.max(0, Math.round(s))} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
  function tell() {
    const header = document.querySelector("header"), line = header.querySelector(".following");
    const finished = header.querySelector(".state.good"), { written, hint } = header.dataset;
    const since = Date.now() / 1000 - Number(written);
    let said = stopped;
    if (!said && written && !finished) said = `last written ${age(since)} ago` + (since > SILENT_S && hint ? `; if it was stopped, ${hint}` : "");
    if (line.textContent !== said) line.textContent = said;
  }

  // Copy opened sections and scroll positions from the old part to the new one.
  function resume(before, after) {
    for (const [kind, name] of [["details", "open"], [".scroll", "scrollLeft"], ["select", "value"]]) {
      const old = before.querySelectorAll(kind);
      after.querySelectorAll(kind).forEach((element, i) => { if (old[i]) element[name] = old[i][name]; });
    }
  }

  function put(section, was, before) {
    if (was) {
      was.querySelector("#viewer")?.dispatchEvent(new Event("gone"));
      was.replaceWith(section);
    } else main.insertBefore(section, before);
    sources.set(key(section), source(section));
    if (was) resume(was, section);
    liven(section);
  }

  function take(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    stamp = fresh.body.dataset.stamp;
    document.title = fresh.title;
    document.querySelector("header").replaceWith(fresh.querySelector("header"));
    const sections = [...fresh.querySelectorAll("main > *")], names = new Set(sections.map(key));
    for (const old of [...main.children]) {
      if (names.has(key(old))) continue;
      old.querySelector("#viewer")?.dispatchEvent(new Event("gone"));
      old.remove();
      sources.delete(key(old));
    }
    let at = main.firstElementChild;
    for (const section of sections) {
      const was = at && key(at) === key(section) ? at : null;
      at = was ? was.nextElementSibling : at;
      if (was && sources.get(key(section)) === source(section)) continue;
      if (was && key(section) === "trajectories" && /^#episode=/.test(location.hash)) hold(was, section);
      else put(section, was, at);
    }
  }

  // An episode is being read: show newer ones on request only.
  function hold(was, section) {
    waiting = section;
    if (was.querySelector(".newer")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "newer";
    button.textContent = "show newer episodes";
    button.addEventListener("click", () => {
      history.replaceState(null, "", location.pathname);
      put(waiting, was);
    });
    was.querySelector("h2").after(button);
  }

  async function ask() {
    const began = performance.now();
    if (!document.hidden) {
      try {
        const answer = await fetch(location.pathname, { headers: { "If-None-Match": `"${stamp}"` }, cache: "no-store" });
        stopped = answer.ok || answer.status === 304 ? "" : `the server answered ${answer.status}`;
        if (answer.ok) take(await answer.text());
      } catch {
        stopped = stopped || `the server does not answer: this page is from ${new Date().toLocaleTimeString()}`;
      }
    }
    // A page that takes long to render is requested less often, so that watching hardly slows training.
    setTimeout(ask, Math.max(EVERY_MS, 5 * (performance.now() - began)));
    tell();
  }
  setInterval(tell, 1000);
  setTimeout(ask, EVERY_MS);
  document.addEventListener("DOMContentLoaded", tell);
})();
