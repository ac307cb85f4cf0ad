"use strict";
// Everything is written as text: strings from worlds and models never become markup.
// `root` is the page, or a part of it that was added later.
function liven(root) {
  function fill(element, attributes, ...children) {
    for (const [key, value] of Object.entries(attributes)) if (value != null) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  const make = (name, attributes, ...children) => fill(document.createElement(name), attributes, ...children);
  const signed = (value, digits) => (value > 0 ? "+" : value < 0 ? "\u2212" : "") + Math.abs(value).toFixed(digits);
  const within = (value, last) => Math.max(0, Math.min(last, value));

  // ---- charts: the values under the pointer, or under the arrow keys

  for (const svg of root.querySelectorAll("svg[data-chart]")) {
    const chart = JSON.parse(svg.dataset.chart);
    const output = svg.closest("figure").querySelector("output"), pointer = svg.querySelector(".pointer");
    const resting = output.textContent;
    const [x0, x1, left, right] = chart.x, [y0, y1, bottom, top] = chart.y;
    const placeX = (x) => left + ((x - x0) / (x1 - x0)) * (right - left);
    const placeY = (y) => bottom - ((y - y0) / (y1 - y0)) * (bottom - top);
    const shown = (y) => (chart.share ? (100 * y).toFixed(1) + "%" : String(Number(y.toPrecision(4)))).replace("-", "\u2212");
    const mark = (name, attributes) => pointer.append(fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes));
    const xs = [...new Set(chart.series.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
    const several = chart.series.length > 1;
    let at = -1;

    const hide = () => {
      at = -1;
      pointer.replaceChildren();
      output.textContent = resting;
    };
    const show = (index) => {
      pointer.replaceChildren();
      at = within(index, xs.length - 1);
      const x = xs[at], told = [];
      mark("line", { x1: placeX(x), x2: placeX(x), y1: top, y2: bottom });
      for (const series of chart.series) {
        const [, y, low, high] = series.points.find((p) => p[0] === x) || [];
        if (y === undefined) continue;
        mark("circle", { cx: placeX(x), cy: placeY(y), r: 3.5, fill: `var(--c${series.color})` });
        told.push((several ? series.name + " " : "") + shown(y) + (several || low === undefined ? "" : ` [${shown(low)}, ${shown(high)}]`));
      }
      output.textContent = `${chart.label} ${x}: ${told.join(", ")}`;
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const away = xs.map((value) => Math.abs(placeX(value) - x));
      show(away.indexOf(Math.min(...away)));
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      show(at < 0 && move < 0 ? xs.length - 1 : at + move);
    });
  }

  // ---- trajectories, step by step

  const viewer = root.querySelector("#viewer");
  if (!viewer) return;
  const { texts, episodes } = JSON.parse(root.querySelector("#episodes").textContent);
  const gone = new AbortController(), whileHere = { signal: gone.signal };
  viewer.addEventListener("gone", () => gone.abort());
  const [goal, outcome, strip, legend, where, body, episodeBox] =
    [".goal", ".outcome", ".strip", ".legend", "#where", "#step", "#episode"].map((name) => viewer.querySelector(name));
  const [back, forth] = viewer.querySelectorAll(".steer button");
  const filters = [...viewer.querySelectorAll("select[data-key]")];
  const state = { episode: 0, step: 0 };
  // With few sources, a filter above chooses the source; with many, the list shows it for each episode.
  const many = new Set(episodes.map((episode) => episode.from)).size > 2;

  // A filter's value is an outcome, a family or a source; an empty value shows all.
  const fits = (episode) => filters.every(({ value, dataset: { key } }) => !value
    || value === (key === "outcome" ? (episode.success ? "won" : "lost") : episode[key]));
  const filtered = () => [...episodes.keys()].filter((i) => fits(episodes[i]));

  function go(episode, step) {
    state.episode = episode;
    state.step = within(step, episode < 0 ? 0 : episodes[episode].turns.length - 1);
    const focused = document.activeElement, inside = viewer.contains(focused);
    render();
    // Redrawing removes the button that had the focus; restore it.
    if (inside && (!viewer.contains(focused) || focused.disabled)) strip.querySelector("[aria-current]")?.focus({ preventScroll: true });
    if (episode >= 0) history.replaceState(null, "", `#episode=${episode + 1}&step=${state.step + 1}`);
  }

  const text = (title, content, extra = "") => make("div", { class: "text " + extra }, make("h4", {}, title), make("pre", { tabindex: 0 }, content || "(nothing)"));
  const fact = (name, value, style) => make("div", {}, make("dt", {}, name), make("dd", { class: style }, value));
  // Numbers of a step: title and digits. Other recorded numbers are listed by their own names.
  const TOLD = new Map(Object.entries({
    reward: ["reward", 3], credit: ["credit, mean per token", 4], logprob: ["log-probability", 2],
    skill_shift: ["skill shift, sum of tokens", 3], prompt_tokens: ["tokens read"], tokens: ["tokens written"],
  }));
  const listed = (items, between) => items.filter(Boolean).join(between);

  function render() {
    episodeBox.replaceChildren(...filtered().map((i) => {
      const e = episodes[i], name = `${i + 1}. ${e.success ? "won" : "lost"}, ${e.turns.length} step${e.turns.length === 1 ? "" : "s"}: ${many ? e.from + ", " : ""}${e.task}`;
      return make("option", { value: i, selected: i === state.episode ? "" : null }, name);
    }));
    const episode = episodes[state.episode];
    for (const element of [goal, outcome, strip, legend, where, body]) element.replaceChildren();
    back.disabled = !episode || state.step === 0;
    forth.disabled = !episode || state.step >= episode.turns.length - 1;
    if (!episode) return where.append("No episode matches the filters.");
    goal.append(episode.goal || episode.task);
    const facts = [episode.family, `score ${episode.score}`, `stopped: ${episode.stop}`, episode.detail, episode.condition !== "plain" ? `condition ${episode.condition}` : "", episode.from];
    outcome.append(make("b", { class: episode.success ? "good" : "bad" }, episode.success ? "success" : "failure"), " \u00b7 " + listed(facts, " \u00b7 "));
    if (!episode.turns.length) {
      where.append("This episode ended before its first step.");
      return body.append(text("the world showed", texts[episode.final]));
    }
    renderStrip(episode.turns);
    renderStep(episode, episode.turns[state.step]);
  }

  function renderStrip(turns) {
    turns.forEach((turn, i) => {
      const wrong = !turn.valid ? "unparsed" : turn.effective ? "" : "refused";
      const style = [turn.credit > 0 ? "plus" : turn.credit < 0 ? "minus" : "", wrong];
      const told = [wrong, "credit" in turn ? `credit ${signed(turn.credit, 3)}` : ""];
      const button = { type: "button", class: listed(style, " "), title: listed(told, ", "), "aria-label": `step ${i + 1}`, "aria-current": i === state.step ? "step" : null };
      strip.append(make("button", button, i + 1));
      strip.lastChild.addEventListener("click", () => go(state.episode, i));
    });
    legend.append(listed([
      turns.some((turn) => "credit" in turn) ? "underline: credit above (blue) or below (orange) zero" : "evaluations record no reward or credit",
      turns.some((turn) => turn.valid && !turn.effective) && "amber: refused by the world",
      turns.some((turn) => !turn.valid) && "struck out: not in the full format",
    ], "; ") + ".");
  }

  function renderStep(episode, turn) {
    where.append(`step ${state.step + 1} of ${episode.turns.length}`);
    const facts = make("dl", { class: "facts" },
      fact("completion", turn.valid ? "in the full format" : "not in the full format", turn.valid ? "good" : "bad"),
      fact("action", turn.effective ? "accepted" : "refused", turn.effective ? "good" : "warn"));
    const known = ["saw", "wrote", "action", "valid", "effective", "prompt", "skills", "shift_by_token", ...TOLD.keys()];
    for (const key of [...TOLD.keys(), ...Object.keys(turn).filter((name) => !known.includes(name))]) {
      const [name, digits] = TOLD.get(key) || [key.replaceAll("_", " ")];
      if (key in turn) facts.append(fact(name, digits && typeof turn[key] === "number" ? signed(turn[key], digits) : turn[key]));
    }
    const read = (turn.prompt || [["", turn.saw]]).map(([name, index]) => text(name ? "prompt: " + name : "saw", texts[index]));
    const source = make("p", { class: "quiet" }, turn.prompt ? `Prompt ${episode.prompts}.` : episode.prompts);
    const next = episode.turns[state.step + 1];
    const did = make("div", {}, ...wrote(episode, turn), text("action", texts[turn.action], "act"),
      text("the world answered", texts[next ? next.saw : episode.final]));
    body.append(facts, make("div", { class: "columns" }, make("div", {}, ...read, source), did));
  }

  // Tokens colored by their shift. The episode's largest shift has full color, so that small ones can be distinguished.
  const tinted = (share) => `background: color-mix(in srgb, var(--c${share < 0 ? 1 : 0}) ${Math.round(60 * Math.abs(share))}%, transparent)`;
  function wrote(episode, turn) {
    const skills = (turn.skills || []).map(([where, index]) =>
      text(`hindsight\u2019s skill for ${where === "step" ? "this step" : "the episode"}, which the agent did not read`, texts[index], "told"));
    if (!turn.shift_by_token) return [...skills, text("wrote", texts[turn.wrote])];
    const most = Math.max(...episode.turns.flatMap((t) => (t.shift_by_token || []).map((pair) => Math.abs(pair[1]))));
    const token = (word, shift) => make("span", { class: "token", style: tinted(most ? shift / most : 0), title: signed(shift, 4) }, word || "\u23ce");
    const block = text("wrote, by token");
    block.lastChild.replaceChildren(...turn.shift_by_token.map(([word, shift]) => token(texts[word], shift)));
    block.append(make("p", { class: "shifts quiet" }, "the skill makes it ", make("span", { style: tinted(-1) }, "less likely"), " ",
      make("span", { style: tinted(1) }, "likelier"), `; full color: ${most.toFixed(3)} nats, the largest of this episode`));
    return [...skills, block];
  }

  function fromAddress() {
    const [, episode, step] = /^#episode=(\d+)(?:&step=(\d+))?$/.exec(location.hash) || [];
    if (!episodes[episode - 1]) return false;
    for (const box of filters) box.value = "";
    go(episode - 1, (step || 1) - 1);
    return true;
  }

  viewer.addEventListener("change", ({ target }) => {
    const left = filtered();
    if (target === episodeBox) go(Number(target.value), 0);
    else if (left.includes(state.episode)) render();
    else go(left.length ? left[0] : -1, 0);
  });
  back.addEventListener("click", () => go(state.episode, state.step - 1));
  forth.addEventListener("click", () => go(state.episode, state.step + 1));
  document.addEventListener("keydown", (event) => {
    const box = viewer.getBoundingClientRect(), inView = box.top < window.innerHeight && box.bottom > 0;
    if (event.altKey || event.ctrlKey || event.metaKey || !inView || state.episode < 0) return;
    if (event.target.closest && event.target.closest("select, input, textarea, .scroll")) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], episode = { PageUp: -1, PageDown: 1 }[event.key];
    if (!step && !(episode && viewer.contains(event.target))) return;
    event.preventDefault();
    if (step) return go(state.episode, state.step + step);
    const left = filtered();
    go(left[within(left.indexOf(state.episode) + episode, left.length - 1)], 0);
  }, whileHere);
  window.addEventListener("hashchange", fromAddress, whileHere);
  viewer.hidden = false;
  if (fromAddress()) viewer.scrollIntoView();
  else render();
}
liven(document);
