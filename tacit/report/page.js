"use strict";
// Everything is written as text: strings from worlds and models never become markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";

  function make(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value === true) element.setAttribute(key, "");
      else if (value !== false && value != null) element.setAttribute(key, value);
    }
    element.append(...children.filter((child) => child != null));
    return element;
  }

  const signed = (value, digits) => (value > 0 ? "+" : value < 0 ? "\u2212" : "") + Math.abs(value).toFixed(digits);

  // ---- charts: the values under the pointer, or under the arrow keys

  function bindChart(svg) {
    const chart = JSON.parse(svg.dataset.chart);
    const figure = svg.closest("figure");
    const output = figure.querySelector("output");
    const pointer = svg.querySelector(".pointer");
    const resting = output.textContent;
    const [x0, x1, left, right] = chart.x;
    const [y0, y1, bottom, top] = chart.y;
    const placeX = (x) => left + ((x - x0) / (x1 - x0)) * (right - left);
    const placeY = (y) => bottom - ((y - y0) / (y1 - y0)) * (bottom - top);
    const shown = (y) => (chart.share ? (100 * y).toFixed(1) + "%" : String(Number(y.toPrecision(4)))).replace("-", "\u2212");
    const xs = [...new Set(chart.series.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
    let at = -1;

    function show(index) {
      at = Math.max(0, Math.min(xs.length - 1, index));
      const x = xs[at];
      pointer.replaceChildren();
      const line = document.createElementNS(SVG, "line");
      for (const [key, value] of [["x1", placeX(x)], ["x2", placeX(x)], ["y1", top], ["y2", bottom]]) line.setAttribute(key, value);
      pointer.append(line);
      const told = [];
      for (const series of chart.series) {
        const point = series.points.find((p) => p[0] === x);
        if (!point) continue;
        const dot = document.createElementNS(SVG, "circle");
        for (const [key, value] of [["cx", placeX(x)], ["cy", placeY(point[1])], ["r", 3.5], ["class", "c" + series.colour]]) dot.setAttribute(key, value);
        pointer.append(dot);
        const band = point.length > 2 && chart.series.length === 1 ? ` [${shown(point[2])}, ${shown(point[3])}]` : "";
        told.push((chart.series.length > 1 ? series.name + " " : "") + shown(point[1]) + band);
      }
      output.textContent = `${chart.label} ${x}: ${told.join(", ")}`;
    }

    function hide() {
      at = -1;
      pointer.replaceChildren();
      output.textContent = resting;
    }

    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = x0 + (((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width - left) / (right - left) * (x1 - x0);
      let nearest = 0;
      xs.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(xs[nearest] - x)) nearest = i; });
      show(nearest);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      show(at < 0 ? (move > 0 ? 0 : xs.length - 1) : at + move);
    });
  }

  document.querySelectorAll("svg[data-chart]").forEach(bindChart);

  // ---- trajectories, step by step

  const block = document.getElementById("episodes");
  if (!block) return;
  const { texts, episodes } = JSON.parse(block.textContent);
  const viewer = document.getElementById("viewer");
  const state = { episode: 0, step: 0, outcome: "", family: "", from: "" };
  // From a few places, the place is best chosen above; from many, it is what tells episodes apart.
  const named = (e) => (distinct("from").length > 2 ? `${e.from}, ${e.task}` : e.task);
  const distinct = (key) => [...new Set(episodes.map((episode) => episode[key] || ""))];

  function select(label, options, onchange, wide) {
    const box = make("select", { onchange: (event) => onchange(event.target.value) });
    for (const [value, name] of options) box.append(make("option", { value }, name));
    return [make("label", { class: wide ? "wide" : null }, label, box), box];
  }

  const filtered = () => episodes.map((_, i) => i).filter((i) => {
    const episode = episodes[i];
    return (!state.outcome || (state.outcome === "won") === episode.success)
      && (!state.family || episode.family === state.family)
      && (!state.from || episode.from === state.from);
  });

  function filter(key) {
    return (value) => {
      state[key] = value;
      const left = filtered();
      if (!left.includes(state.episode)) go(left.length ? left[0] : -1, 0);
      else render();
    };
  }

  const [outcomeLabel] = select("outcome", [["", "all"], ["won", "successes"], ["lost", "failures"]], filter("outcome"));
  const [familyLabel] = select("family", [["", "all"], ...distinct("family").map((f) => [f, f || "none"])], filter("family"));
  const [fromLabel] = select("from", [["", "all"], ...distinct("from").map((f) => [f, f])], filter("from"));
  const [episodeLabel, episodeBox] = select("episode", [], (value) => go(Number(value), 0), true);
  const goal = make("p", { class: "goal" });
  const outcome = make("p", { class: "outcome quiet" });
  const strip = make("div", { class: "strip", role: "group", "aria-label": "steps" });
  const legend = make("p", { class: "legend quiet" });
  const back = make("button", { type: "button", "aria-label": "previous step", onclick: () => go(state.episode, state.step - 1) }, "\u2190");
  const forth = make("button", { type: "button", "aria-label": "next step", onclick: () => go(state.episode, state.step + 1) }, "\u2192");
  const where = make("span", { id: "where", "aria-live": "polite" });
  const body = make("div", { id: "step" });
  viewer.append(
    make("div", { class: "choices" }, outcomeLabel, familyLabel, fromLabel, episodeLabel),
    goal, outcome, strip, legend, make("div", { class: "steer" }, back, where, forth), body,
  );

  function go(episode, step) {
    state.episode = episode;
    const last = episode < 0 ? 0 : episodes[episode].turns.length - 1;
    state.step = Math.max(0, Math.min(last, step));
    const focused = document.activeElement, inside = viewer.contains(focused);
    render();
    // Drawing anew takes the focus away with the button that had it; whoever was here stays here.
    if (inside && (!viewer.contains(focused) || focused.disabled)) strip.querySelector("[aria-current]")?.focus({ preventScroll: true });
    if (episode >= 0) history.replaceState(null, "", `#episode=${episode + 1}&step=${state.step + 1}`);
  }

  const text = (title, content, extra) => make("div", { class: "text" + (extra ? " " + extra : "") }, make("h4", {}, title), make("pre", { tabindex: "0" }, content || "(nothing)"));
  const fact = (name, value, style) => make("div", {}, make("dt", {}, name), make("dd", { class: style }, value));

  function render() {
    const left = filtered();
    episodeBox.replaceChildren(...left.map((i) => {
      const e = episodes[i];
      return make("option", { value: i, selected: i === state.episode }, `${i + 1}. ${e.success ? "won" : "lost"}, ${e.turns.length} steps: ${named(e)}`);
    }));
    const episode = episodes[state.episode];
    for (const element of [goal, outcome, strip, legend, where, body]) element.replaceChildren();
    back.disabled = !episode || state.step === 0;
    forth.disabled = !episode || state.step >= episode.turns.length - 1;
    if (!episode) {
      where.append("No episode here is like that.");
      return;
    }
    goal.append(episode.goal || episode.task);
    const facts = [episode.family, `score ${episode.score}`, `stopped: ${episode.stop}`, episode.detail, episode.condition !== "plain" ? `condition ${episode.condition}` : "", episode.from];
    outcome.append(make("b", { class: episode.success ? "good" : "bad" }, episode.success ? "success" : "failure"), " \u00b7 " + facts.filter(Boolean).join(" \u00b7 "));
    if (!episode.turns.length) {
      where.append("This episode ended before its first step.");
      body.append(text("the world showed", texts[episode.final]));
      return;
    }
    renderStrip(episode);
    renderStep(episode, episode.turns[state.step]);
  }

  function renderStrip(episode) {
    episode.turns.forEach((turn, i) => {
      const style = [turn.credit > 0 ? "plus" : turn.credit < 0 ? "minus" : "", !turn.valid ? "unparsed" : turn.effective ? "" : "refused"];
      const told = [!turn.valid ? "did not parse" : turn.effective ? "" : "refused", "credit" in turn ? `credit ${signed(turn.credit, 3)}` : ""];
      strip.append(make("button", {
        type: "button", class: style.filter(Boolean).join(" ") || null, title: told.filter(Boolean).join(", ") || null,
        "aria-label": `step ${i + 1}`, "aria-current": i === state.step ? "step" : null, onclick: () => go(state.episode, i),
      }, String(i + 1)));
    });
    const credited = episode.turns.some((turn) => "credit" in turn);
    const notes = [credited ? "underline: credit above (blue) or below (orange) zero" : "evaluations have no reward or credit on record"];
    if (episode.turns.some((turn) => turn.valid && !turn.effective)) notes.push("amber: refused by the world");
    if (episode.turns.some((turn) => !turn.valid)) notes.push("struck out: did not parse");
    legend.append(notes.join("; ") + ".");
  }

  function renderStep(episode, turn) {
    where.append(`step ${state.step + 1} of ${episode.turns.length}`);
    const facts = make("dl", { class: "facts" },
      fact("completion", turn.valid ? "parses" : "does not parse", turn.valid ? "good" : "bad"),
      fact("action", turn.effective ? "accepted" : "refused", turn.effective ? "good" : "warn"));
    if ("reward" in turn) facts.append(fact("reward", signed(turn.reward, 3)));
    if ("credit" in turn) facts.append(fact("credit, mean per token", signed(turn.credit, 4)));
    if ("logprob" in turn) facts.append(fact("log-probability", signed(turn.logprob, 2)));
    if ("prompt_tokens" in turn) facts.append(fact("tokens read", String(turn.prompt_tokens)));
    if ("tokens" in turn) facts.append(fact("tokens written", String(turn.tokens)));
    for (const [name, value] of Object.entries(turn.marks || {})) facts.append(fact(name.replaceAll("_", " "), String(value)));
    const read = make("div", {});
    if (turn.prompt) {
      for (const [name, index] of turn.prompt) read.append(text("prompt: " + name, texts[index]));
      read.append(make("p", { class: "quiet" }, "Prompt " + episode.prompts + "."));
    } else {
      read.append(text("saw", texts[turn.saw]), make("p", { class: "quiet" }, episode.prompts));
    }
    const next = episode.turns[state.step + 1];
    const did = make("div", {}, text("wrote", texts[turn.wrote]), text("action", texts[turn.action], "act"),
      text("the world answered", texts[next ? next.saw : episode.final]));
    body.append(facts, make("div", { class: "columns" }, read, did));
  }

  function fromAddress() {
    const match = /^#episode=(\d+)(?:&step=(\d+))?$/.exec(location.hash);
    if (!match || !episodes[match[1] - 1]) return false;
    Object.assign(state, { outcome: "", family: "", from: "" });
    viewer.querySelectorAll(".choices select").forEach((box) => { if (box !== episodeBox) box.value = ""; });
    state.episode = match[1] - 1;
    state.step = Math.max(0, Math.min(episodes[state.episode].turns.length - 1, (match[2] || 1) - 1));
    render();
    return true;
  }

  function inView() {
    const box = viewer.getBoundingClientRect();
    return box.top < window.innerHeight && box.bottom > 0;
  }

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !inView() || state.episode < 0) return;
    if (event.target.closest && event.target.closest("select, input, textarea, .scroll")) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const episode = { PageUp: -1, PageDown: 1 }[event.key];
    if (!step && !(episode && viewer.contains(event.target))) return;
    event.preventDefault();
    if (step) return go(state.episode, state.step + step);
    const left = filtered();
    const place = Math.max(0, Math.min(left.length - 1, left.indexOf(state.episode) + episode));
    go(left[place], 0);
  });
  window.addEventListener("hashchange", fromAddress);
  viewer.hidden = false;
  if (fromAddress()) viewer.scrollIntoView();
  else render();
})();
