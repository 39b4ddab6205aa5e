// Follows the runs of a folder: asks every 2 s for what is new. All text goes into the page as text, never as HTML.
"use strict";
const EVERY_MS = 2000, FIRST_PICKED = 6;
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#999933"];
const KINDS = { compute: "#009e73", environment: "#0072b2", Python: "#e69f00", communication: "#d55e00", waiting: "#9198a1", other: "#cc79a7" };
const get = (id) => document.getElementById(id);
const state = { picked: new Set(), known: new Set(), open: "", over: "env_steps", since: "", query: "", board: null, detailSince: "", detailOf: "" };

function make(tag, about = {}, ...children) {
  const element = Object.assign(document.createElement(tag), about);
  element.append(...children);
  return element;
}

const number = (value, digits = 1) => value === null || value === undefined ? "-" : value.toLocaleString("en", { maximumFractionDigits: digits });

async function ask(path, words) {
  const answer = await fetch(`${path}?${new URLSearchParams(words)}`);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

// ---- the list of runs

function pickNew(runs) {
  for (const one of runs) {
    if (state.known.has(one.run)) continue;
    if (one.state === "running" || state.picked.size < FIRST_PICKED) state.picked.add(one.run);
    state.known.add(one.run);
  }
  if (!runs.some((one) => one.run === state.open)) state.open = runs.length ? runs[0].run : "";
}

function showRuns(runs) {
  const words = get("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = runs.filter((one) => words.every((word) => JSON.stringify(Object.values(one)).toLowerCase().includes(word)));
  const focused = document.activeElement && document.activeElement.dataset.key;
  get("runs").replaceChildren(...shown.map(runItem));
  if (!runs.length) get("runs").append(make("li", { className: "soft" }, "no run yet: msrl train ppo"));
  if (focused) get("runs").querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function runItem(one) {
  const pick = make("input", { type: "checkbox", checked: state.picked.has(one.run), title: "compare", ariaLabel: `compare ${one.name}` });
  pick.dataset.key = `pick ${one.run}`;
  pick.onchange = () => { pick.checked ? state.picked.add(one.run) : state.picked.delete(one.run); poll(); };
  const name = make("button", { type: "button" }, one.name);
  name.dataset.key = `open ${one.run}`;
  name.onclick = () => { state.open = one.run; poll(); };
  const facts = make("div", {}, name, make("div", { className: one.state }, one.state, one.state === "ended" && one.why ? `: ${one.why}` : ""));
  if (one.state === "unreadable") facts.append(make("div", { className: "soft" }, one.why));
  else {
    const speed = one.state === "running" ? `, ${number(one.steps_per_second, 0)} steps/s` : "";
    facts.append(
      make("div", { className: "soft" }, `${one.algorithm}, ${one.env}, ${one.policy}, seed ${one.seed}`),
      make("div", { className: "soft" }, `${number(one.env_steps, 0)} of ${number(one.total_steps, 0)} steps${speed}, return ${number(one.mean_return)}`));
    if (one.state === "running") facts.append(make("progress", { max: one.total_steps, value: one.env_steps || 0 }));
  }
  return make("li", { className: one.run === state.open ? "open" : "" }, pick, facts);
}

// ---- curves

const order = (names) => {
  const first = ["mean_return", "eval/mean_return", ...names.filter((name) => name.startsWith("info/")), "loss", "steps_per_second"].filter((name) => names.includes(name));
  return [first, names.filter((name) => !first.includes(name))];
};

function wanted() {
  const [first, rest] = order(state.board ? state.board.metrics : ["mean_return"]);
  return get("more").open ? [...first, ...rest] : first;
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const axis = (about) => ({ gridcolor: style("--line"), zerolinecolor: style("--line"), linecolor: style("--line"), automargin: true, ...about });
const layout = (about) => ({
  margin: { l: 8, r: 8, t: 4, b: 8 }, showlegend: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  font: { color: style("--text"), size: 11, family: "system-ui, sans-serif" }, hovermode: "closest", ...about });
const SETTINGS = { displayModeBar: false };
// A plot's place also changes without the window's, as when a scroll bar comes.
const places = new ResizeObserver((changes) => { for (const { target } of changes) if (target.layout && target.clientWidth) Plotly.Plots.resize(target); });

function traces(groups) {
  const found = [];
  groups.forEach((group, i) => {
    if (!group) return;
    const color = COLOURS[i % COLOURS.length], lines = { mode: group.x.length > 1 ? "lines" : "markers", hoverinfo: "x+y" };
    if (group.low) {
      found.push({ x: group.x, y: group.low, mode: "lines", line: { width: 0, color }, hoverinfo: "skip" },
        { x: group.x, y: group.high, mode: "lines", line: { width: 0, color }, fill: "tonexty", fillcolor: `${color}33`, hoverinfo: "skip" });
      for (const run of group.runs) found.push({ ...run, mode: "lines", line: { width: 1, color }, opacity: 0.35, hoverinfo: "skip" });
    }
    found.push({ x: group.x, y: group.mean, ...lines, line: { width: 2, color }, marker: { color } });
  });
  return found;
}

function showCurves(board) {
  get("legend").replaceChildren(...board.groups.map((group, i) => {
    const swatch = make("i");
    swatch.style.background = COLOURS[i % COLOURS.length];
    const count = group.runs.length > 1 ? `, ${group.runs.length} runs: mean, from minimum to maximum` : "";
    return make("li", {}, swatch, make("span", {}, group.label + count));
  }));
  const [first, rest] = order(board.metrics);
  charts(get("first"), first, board);
  charts(get("rest"), get("more").open ? rest : [], board);
}

function charts(place, names, board) {
  for (const old of [...place.children]) {
    if (names.includes(old.dataset.metric)) continue;
    places.unobserve(old.lastChild);
    Plotly.purge(old.lastChild);
    old.remove();
  }
  for (const name of names) {
    let chart = [...place.children].find((one) => one.dataset.metric === name);
    if (!chart) {
      chart = make("div", { className: "chart" }, make("h3", {}, name), make("div", { className: "plot" }));
      chart.dataset.metric = name;
      place.append(chart);
      places.observe(chart.lastChild);
    }
    if (board.curves[name]) {
      const title = { text: board.axes[state.over], font: { size: 11 }, standoff: 4 };
      Plotly.react(chart.lastChild, traces(board.curves[name]), layout({ xaxis: axis({ title }), yaxis: axis({}), uirevision: state.over }), SETTINGS);
    }
  }
}

// ---- one run

function showDetail(run) {
  get("detail").hidden = false;
  get("name").textContent = run.name;
  get("why").replaceChildren(run.error ? make("pre", { className: "failed" }, run.error) : "");
  const address = (path, words) => `${path}?${new URLSearchParams({ run: run.run, ...words })}`;
  if (get("graph").dataset.is !== run.run + run.graph) {
    get("graph").dataset.is = run.run + run.graph;
    get("graph").replaceChildren(run.graph ? make("img", { src: address("graph.svg", { v: run.graph }), alt: "lines of the algorithm in the colours of the fragments that run them" })
      : make("span", { className: "soft" }, "no picture: an earlier version trained this run, or its algorithm's file has no line of its own"));
  }
  const rows = run.messages.map((one) => make("tr", {}, make("td", {}, one.what), make("td", { className: "soft" }, `${one.said} an iteration`),
    make("td", { className: "number" }, one.ms === null ? "" : `${number(one.ms, 3)} ms`)));
  get("messages").replaceChildren(rows.length ? make("table", {}, ...rows) : make("p", { className: "soft" }, "one process: nothing is sent"));
  showProfile(run);
  showFilms(run, address);
  const logs = Object.entries(run.logs).flatMap(([file, text]) => [make("h3", {}, file), make("div", { className: "box" }, make("pre", {}, text))]);
  const before = get("logs").textContent;
  get("logs").replaceChildren(...(logs.length ? logs : [make("p", { className: "soft" }, "none")]));
  if (get("logs").textContent !== before) for (const pre of get("logs").querySelectorAll("pre")) pre.scrollTop = pre.scrollHeight;
  get("plan").textContent = run.plan;
  get("config").replaceChildren(...Object.entries(run.config).map(([key, value]) => make("tr", {}, make("td", {}, key), make("td", {}, value))));
}

function showFilms(run, address) {
  const key = JSON.stringify([run.run, run.films]);
  if (get("films").dataset.is === key) return; // a film that plays goes on
  get("films").dataset.is = key;
  const films = Object.entries(run.films).map(([name, v]) => {
    const src = address("film", { name, v });
    return /\.gif$/.test(name) ? make("img", { src, alt: name, className: "film" }) : make("video", { src, controls: true, muted: true, loop: true, autoplay: true, playsInline: true });
  });
  get("films").replaceChildren(...(films.length ? films : [make("p", { className: "soft" }, `none in the run's folder: msrl eval ${run.path} --video ${run.path}/episode.mp4`)]));
}

function showProfile(run) {
  const place = get("profile");
  if (!run.ranks.length) {
    place.replaceChildren(make("p", { className: "soft" }, "no profile yet: train with --profile 20"));
    return;
  }
  const plot = make("div");
  plot.style.height = `${60 + 30 * run.ranks.length}px`;
  const sum = (rank, kind) => rank.parts.filter((part) => part.kind === kind).reduce((total, part) => total + part.ms, 0);
  const bars = Object.entries(KINDS).map(([kind, color]) => ({
    type: "bar", orientation: "h", name: kind, marker: { color }, y: run.ranks.map((rank) => rank.rank), x: run.ranks.map((rank) => sum(rank, kind)), hovertemplate: "%{x:.3g} ms<extra></extra>" }));
  const legend = make("p", {}, `${number(run.iteration_ms, 2)} ms an iteration: `, ...Object.entries(KINDS).flatMap(([kind, color]) => {
    const dot = make("span", {}, "■ ");
    dot.style.color = color;
    return [dot, `${kind}  `];
  }));
  const rows = run.ranks.flatMap((rank) => rank.parts.filter((part) => part.ms > 0.002 * run.iteration_ms).map((part, i) => make("tr", {},
    make("td", {}, i ? "" : rank.rank), make("td", {}, part.what), make("td", { className: "number" }, `${number(part.ms, 2)} ms`), make("td", { className: "number" }, `${number(100 * part.ms / run.iteration_ms)} %`))));
  place.replaceChildren(legend, plot, make("details", {}, make("summary", {}, "parts"), make("table", {}, ...rows)));
  Plotly.react(plot, bars, layout({ barmode: "stack", xaxis: axis({ ticksuffix: " ms" }), yaxis: axis({ autorange: "reversed" }) }), SETTINGS);
  places.observe(plot);
}

// ---- asking

async function pollBoard() {
  const words = [["over", state.over], ...[...state.picked].map((run) => ["run", run]), ...wanted().map((name) => ["metric", name])];
  const query = JSON.stringify(words);
  const content = await ask("api/board", [...words, ["since", query === state.query ? state.since : ""]]);
  state.query = query;
  state.since = content.version;
  if (!content.runs) return;
  const before = state.picked.size + wanted().length;
  state.board = content;
  pickNew(content.runs);
  get("folder").textContent = content.folder;
  if (!get("over").children.length) get("over").append(...Object.entries(content.axes).map(([value, text]) => make("option", { value }, text)));
  showCurves(content);
  if (state.picked.size + wanted().length !== before) await pollBoard();
}

async function pollDetail() {
  if (!state.open) { get("detail").hidden = true; return; }
  const same = state.detailOf === state.open;
  const run = await ask("api/run", { run: state.open, since: same ? state.detailSince : "" });
  state.detailOf = state.open;
  state.detailSince = run.version;
  if (run.run) showDetail(run);
}

let asking = null, again = false;
async function poll() {
  if (asking) { again = true; return; }
  clearTimeout(state.timer);
  asking = true;
  try {
    await pollBoard();
    showRuns(state.board.runs);
    await pollDetail();
    get("said").textContent = "";
  } catch (error) {
    get("said").textContent = error instanceof TypeError ? "no answer: is msrl board running?" : error.message;
  }
  asking = null;
  if (again) { again = false; poll(); } else state.timer = setTimeout(() => document.hidden || poll(), EVERY_MS);
}

get("over").onchange = () => { state.over = get("over").value; poll(); };
get("more").ontoggle = poll;
get("search").oninput = () => state.board && showRuns(state.board.runs);
document.onvisibilitychange = () => document.hidden || poll();
matchMedia("(prefers-color-scheme: dark)").onchange = () => { if (state.board) { showCurves(state.board); state.detailSince = ""; poll(); } };
poll();
