"use strict";
// Everything is written as text: strings from worlds, models and other clients never become markup.
(() => {
  const find = (id) => document.getElementById(id);
  function make(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (value != null) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  const EVERY_MS = 1500, LIKELY = 6, AWAY = "The server does not answer. This page keeps trying.";
  const kept = /^#token=(.+)$/.exec(location.hash);
  if (kept) sessionStorage.setItem("token", decodeURIComponent(kept[1]));
  if (kept) history.replaceState(null, "", location.pathname);
  let modules = [], shown = null, at = -1, running = false, rival = null, away = false;

  async function ask(method, path, body) {
    const headers = { "content-type": "application/json", authorization: `Bearer ${sessionStorage.getItem("token") || ""}` };
    const asked = { method, headers, body: body === undefined ? undefined : JSON.stringify(body) };
    const answer = await fetch(path, asked).catch(() => { away = true; throw new Error(AWAY); });
    const told = await answer.json();
    if (answer.status === 401) enter(false);
    if (!answer.ok) throw new Error(told.error.message);
    return told;
  }
  const say = (message) => { find("said").textContent = message || ""; };
  // Run a button's request; show the server's error if it is refused.
  const doing = (work) => async (event) => {
    event.preventDefault();
    say("");
    try { await work(); } catch (error) { say(error.message); }
  };

  function enter(inside) {
    find("entry").hidden = inside;
    find("inside").hidden = !inside;
  }
  const number = (label, value, more) => make("div", {}, make("dt", {}, label), make("dd", {}, make("b", {}, value), make("span", {}, more)));

  async function look() {
    const watched = shown && shown.session, { sessions } = await ask("GET", "/sessions");
    const open = sessions.filter((session) => session.open);
    find("numbers").replaceChildren(
      number("modules", modules.length, modules.map((m) => m.name).join(", ")),
      number("open sessions", open.length, `${sessions.length - open.length} over`));
    find("sessions").replaceChildren(...sessions.slice(0, 50).map((session) => {
      const button = make("button", { type: "button" }, session.goal || "(no goal)");
      button.addEventListener("click", doing(() => show(session.session)));
      const state = session.open ? (session.hosted ? "open, here" : "open") : [session.outcome, session.note].filter(Boolean).join(": ");
      const style = session.open ? "warn" : session.outcome === "success" ? "good" : "";
      return make("tr", { "aria-current": shown && shown.session === session.session ? "true" : null },
        make("td", {}, button), make("td", {}, session.module), make("td", {}, session.turn), make("td", { class: style }, state));
    }));
    // A session of another program continues by itself.
    const mine = shown && sessions.find((session) => session.session === shown.session);
    if (mine && !running && (mine.turn !== shown.turn || mine.open !== shown.open)) await show(shown.session);
    // Sessions are in the server's memory: one that it does not know was lost when the server restarted.
    if (shown && shown.open && shown.session === watched && !mine) {
      Object.assign(shown, { open: false, outcome: "lost", note: "the server was restarted" });
      render();
    }
  }

  async function show(name, turn) {
    const follow = !shown || shown.session !== name || at >= shown.turns.length - 1;
    if (!shown || shown.session !== name) rival = null;
    shown = await ask("GET", `/sessions/${name}`);
    at = turn ?? (follow ? shown.turns.length - 1 : at);
    find("viewer").hidden = false;
    render();
  }

  const text = (title, content, extra = "") => make("div", { class: "text " + extra }, make("h4", {}, title), make("pre", { tabindex: 0 }, content || "(nothing)"));
  const fact = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
  const share = (value) => (value >= 0.9995 || value < 0.0005 ? value.toPrecision(2) : (100 * value).toFixed(1) + "%");

  function render() {
    const turns = shown.turns, turn = turns[at];
    find("goal").textContent = shown.goal;
    const state = shown.open ? "open" : shown.outcome;
    find("outcome").replaceChildren(make("b", { class: shown.outcome === "success" ? "good" : shown.open ? "warn" : "bad" }, state),
      " · " + [shown.note, shown.family, shown.module, shown.task, `temperature ${shown.temperature}`].filter(Boolean).join(" · "));
    find("hands").hidden = !(shown.open && shown.hosted);
    find("again").hidden = shown.open || !shown.hosted;
    find("versus").textContent = rival || "";
    find("strip").replaceChildren(...turns.map((one, i) => {
      const button = make("button", { type: "button", class: one.by === "hand" ? "hand" : one.acted ? "plus" : "", "aria-label": `turn ${i + 1}`, "aria-current": i === at ? "step" : null }, i + 1);
      button.addEventListener("click", () => { at = i; render(); });
      return button;
    }));
    find("back").disabled = at <= 0;
    find("forth").disabled = at >= turns.length - 1;
    find("where").textContent = turn ? `turn ${at + 1} of ${turns.length}` : "no observation yet";
    find("step").replaceChildren();
    if (!turn) return;
    const facts = make("dl", { class: "facts" }, fact("acted", turn.acted ? (turn.by === "hand" ? "by hand" : "the module") : "nobody yet"),
      fact("tokens read", turn.prompt_tokens), fact("tokens written", turn.tokens));
    if (turn.probability != null) facts.append(fact("probability", share(turn.probability)));
    for (const [name, value] of Object.entries(turn.signals)) if (value) facts.append(fact(name.replaceAll("_", " "), value));
    if (!turn.effective) facts.append(fact("world", "refused it"));
    const did = make("div", {}, text("action", turn.action || "(not yet)", "act"));
    if (turn.alternatives) did.append(likely(turn));
    const next = turns[at + 1];
    did.append(text("the world answered", next ? next.observation : shown.final || "(not yet)"));
    find("step").append(facts, make("div", { class: "columns" },
      make("div", {}, text("state block", turn.state), text("saw", turn.observation), text("prompt, as it was read", turn.prompt)), did));
    find("actions").replaceChildren(...(turns.at(-1).actions || []).map((action) => make("option", { value: action })));
  }

  function likely(turn) {
    const block = make("div", { class: "text" }, make("h4", {}, "how likely each action was"));
    const rows = make("div", { class: "likely" });
    for (const { action, probability } of turn.alternatives) {
      const bar = make("i", {});
      bar.style.width = `${Math.max(1, 100 * probability)}%`;
      rows.append(make(action === turn.action ? "b" : "span", {}, action), bar, make("output", {}, share(probability)));
    }
    block.append(rows);
    return block;
  }

  async function step(action) {
    const name = shown.session;
    await ask("POST", `/sessions/${name}/step`, { alternatives: LIKELY, ...(action ? { action } : {}) });
    await show(name);
  }
  // After an action the page stays at this turn, to show its answer.
  async function stepAndStay(action) {
    const turn = shown.turns.length - 1;
    await step(action);
    at = turn;
    render();
  }

  async function letRun() {
    if (running) return void (running = false);
    const name = shown.session;
    running = true;
    find("run").textContent = "Stop it";
    try {
      while (running && shown.open && shown.session === name && shown.turns.length <= most()) await step();
    } finally {
      running = false;
      find("run").textContent = "Let it run";
    }
  }
  const most = () => (modules.find((m) => m.name === shown.module) || { max_steps: 50 }).max_steps;

  // The rival plays the same task from the beginning, in a session of its own.
  async function playSame() {
    const mine = shown, { skill, split, number: task } = JSON.parse(sessionStorage.getItem(mine.session) || "{}");
    if (!skill) throw new Error("this page did not begin that episode, and does not know which task it was.");
    const begun = await ask("POST", "/sessions", { skill, seed: mine.seed, play: { split, number: task } });
    let told = begun;
    for (let turn = 0; told.open && turn < most(); turn++) told = await ask("POST", `/sessions/${begun.session}/step`, {});
    if (told.open) await ask("POST", `/sessions/${begun.session}/end`, { outcome: "failure", note: "out of turns" });
    const its = await ask("GET", `/sessions/${begun.session}`);
    const acted = (session) => session.turns.filter((turn) => turn.acted).length;
    rival = `The module alone: ${its.outcome} after ${acted(its)} turns. This episode: ${mine.outcome} after ${acted(mine)}.`;
    render();
  }

  find("login").addEventListener("submit", doing(async () => {
    sessionStorage.setItem("token", find("token").value.trim());
    await begin();
  }));
  find("begin").addEventListener("submit", doing(async () => {
    const play = { split: find("split").value, number: Number(find("number").value) }, skill = find("module").value;
    const begun = await ask("POST", "/sessions", { skill, seed: Number(find("seed").value), play });
    sessionStorage.setItem(begun.session, JSON.stringify({ skill, ...play }));
    await show(begun.session, 0);
    await look();
    find("viewer").scrollIntoView();
  }));
  find("module").addEventListener("change", splits);
  find("one").addEventListener("click", doing(() => stepAndStay()));
  find("run").addEventListener("click", doing(letRun));
  find("end").addEventListener("click", doing(async () => {
    await ask("POST", `/sessions/${shown.session}/end`, { outcome: "abandoned" });
    await show(shown.session);
  }));
  find("act").addEventListener("submit", doing(async () => {
    const action = find("action").value.trim();
    if (!action) throw new Error("which action?");
    await stepAndStay(action);
    find("action").value = "";
  }));
  find("same").addEventListener("click", doing(playSame));
  find("back").addEventListener("click", () => { at -= 1; render(); });
  find("forth").addEventListener("click", () => { at += 1; render(); });

  function splits() {
    const module = modules.find((m) => m.name === find("module").value);
    find("split").replaceChildren(...(module ? module.splits : []).map((split) => make("option", { value: split }, split)));
    if (module && module.splits.includes("unseen")) find("split").value = "unseen";
  }
  async function begin() {
    modules = (await ask("GET", "/modules")).modules;
    await look(); // before anything is shown: what came later would push buttons away from under the pointer
    away = false;
    if (find("said").textContent === AWAY) say("");
    find("module").replaceChildren(...modules.map((m) => make("option", { value: m.name }, m.name)));
    splits();
    enter(true);
  }
  setInterval(() => {
    // A server that was away may have come back with other modules.
    if (!find("inside").hidden && !document.hidden) (away ? begin : look)().catch((error) => say(error.message));
  }, EVERY_MS);
  begin().catch((error) => { enter(false); if (sessionStorage.getItem("token")) say(error.message); });
})();
