"use strict";
// The page works without this: it only filters the matrix and shows the details of a cell.

const DATA = JSON.parse(document.getElementById("data").textContent);
const ORDER = ["dsinks", "dbias", "dv", "dk", "dq", "lse", "out"]; // the last first, then all others
const CELLS = DATA.cells.map((cell) => ({
  ...cell,
  tensors: cell.tensors
    .map((values) => Object.fromEntries(DATA.tensor.map((name, n) => [name, values[n]])))
    .sort((a, b) => ORDER.indexOf(b.name) - ORDER.indexOf(a.name)),
}));
const FILTERS = ["status", "dtype", "device", "subject"];
const NUMBERS = { nan: NaN, inf: Infinity, "-inf": -Infinity }; // JSON has none of these

const $ = (selector) => document.querySelector(selector);
const matrix = $("#matrix");
const rows = [...matrix.tBodies[0].rows].map((row) => ({ row, cells: [...row.cells].slice(1) }));
const heads = [...matrix.tHead.rows[1].cells];
const groups = [...matrix.tHead.rows[0].cells].slice(1);
const form = $(".filters");
const dialog = $("#details");

/** An element or, under "svg:", one of SVG: element("p", { class: "note" }, "text", child). */
function element(tag, attributes = {}, ...children) {
  const svg = tag.startsWith("svg:");
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

const number = (x) => (typeof x === "string" ? NUMBERS[x] : x);

/** A share in few characters, as in the matrix: .034, .97, 12.3, 4e6. */
function short(x) {
  x = number(x);
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "nan";
  if (x === 0) return "0";
  if (x >= 9995) return x.toExponential(1).replace("+", "");
  return x < 0.9995 ? x.toFixed(x < 0.0995 ? 3 : 2).replace(/^0/, "") : String(+x.toPrecision(3));
}

/** Three digits of a number of the record. */
function brief(x) {
  x = number(x);
  if (x === 0 || !Number.isFinite(x)) return String(x);
  return Math.abs(x) >= 1e-3 && Math.abs(x) < 1e5 ? String(+x.toPrecision(3)) : x.toExponential(2).replace("+", "");
}

// ---- the filters

/** What is chosen: {dtype: Set, ..., case: string}. An empty set chooses everything. */
function chosen() {
  const pressed = [...form.querySelectorAll('[aria-pressed="true"]')];
  const sets = FILTERS.map((name) => [name, new Set(pressed.filter((chip) => chip.dataset.filter === name).map((chip) => chip.dataset.value))]);
  return { ...Object.fromEntries(sets), case: form.elements.case.value.trim().toLowerCase() };
}

function wanted(cell, choice) {
  return cell.case.toLowerCase().includes(choice.case) && FILTERS.every((name) => !choice[name].size || choice[name].has(cell[name]));
}

/** Hide the cells that are not chosen, and rows and columns without any. */
function filter() {
  const choice = chosen();
  const alive = heads.map(() => 0);
  let shown = 0;
  for (const { row, cells } of rows) {
    let any = 0;
    cells.forEach((td, column) => {
      const button = td.firstElementChild;
      if (!button) return;
      button.hidden = !wanted(CELLS[button.dataset.cell], choice);
      if (!button.hidden) any++, alive[column]++;
    });
    row.hidden = !any;
    shown += any;
  }
  heads.forEach((head, column) => (head.hidden = !alive[column]));
  for (const { cells } of rows) cells.forEach((td, column) => (td.hidden = !alive[column]));
  for (const group of groups) {
    const shownHeads = heads.filter((head) => !head.hidden && head.dataset.subject === group.dataset.subject);
    group.hidden = !shownHeads.length;
    group.colSpan = Math.max(shownHeads.length, 1);
    const first = heads.indexOf(shownHeads[0]);
    heads.forEach((head, column) => {
      if (head.dataset.subject !== group.dataset.subject) return;
      for (const each of [head, ...rows.map(({ cells }) => cells[column])]) each.classList.toggle("first", column === first);
    });
  }
  matrix.hidden = !shown;
  $("#shown").textContent = shown === CELLS.length ? `${shown.toLocaleString("en")} cells` : `${shown.toLocaleString("en")} of ${CELLS.length.toLocaleString("en")} cells`;
  form.querySelector("[type=reset]").hidden = shown === CELLS.length;
  const first = visible()[0];
  if (first && !visible().some((button) => button.tabIndex === 0)) focusable(first);
  remember(choice);
}

/** Keep the choice, and the open cell, in the address: it can be sent and comes back. */
function remember(choice = chosen()) {
  const parameters = new URLSearchParams();
  for (const name of FILTERS) if (choice[name].size) parameters.set(name, [...choice[name]].join(","));
  if (choice.case) parameters.set("case", choice.case);
  if (dialog.open) parameters.set("cell", dialog.dataset.cell);
  history.replaceState(null, "", parameters.size ? `#${parameters}` : location.pathname + location.search);
}

function recall() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  for (const chip of form.querySelectorAll(".chip")) {
    const values = (parameters.get(chip.dataset.filter) ?? "").split(",");
    chip.setAttribute("aria-pressed", values.includes(chip.dataset.value));
  }
  form.elements.case.value = parameters.get("case") ?? "";
  const cell = parameters.get("cell");
  filter();
  if (cell in CELLS) open(+cell);
}

form.addEventListener("click", ({ target }) => {
  const chip = target.closest(".chip");
  if (!chip) return;
  chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") !== "true");
  filter();
});
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", (event) => {
  event.preventDefault();
  for (const chip of form.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", "false");
  form.elements.case.value = "";
  filter();
});

// ---- moving in the matrix

const visible = () => [...matrix.querySelectorAll("td:not([hidden]) > button:not([hidden])")];

/** Only one button of the matrix can be tabbed to. */
function focusable(button) {
  matrix.querySelector('td > button[tabindex="0"]')?.setAttribute("tabindex", "-1");
  button.tabIndex = 0;
}

matrix.addEventListener("focusin", ({ target }) => target.dataset.cell && focusable(target));
matrix.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const td = event.target.closest("td");
  if (!step || !td) return;
  event.preventDefault();
  let row = rows.findIndex((each) => each.row === td.parentElement);
  let column = rows[row].cells.indexOf(td);
  for (;;) {
    row += step[0];
    column += step[1];
    const next = rows[row]?.cells[column];
    if (!next) return;
    const button = next.firstElementChild;
    if (button && !button.hidden && !next.hidden && !rows[row].row.hidden) return button.focus();
  }
});

// ---- the details of a cell

document.addEventListener("click", ({ target }) => {
  const button = target.closest("button[data-cell]");
  if (button) open(+button.dataset.cell);
});
$("#close").addEventListener("click", () => dialog.close());
$("#back").addEventListener("click", () => walk(-1));
$("#next").addEventListener("click", () => walk(1));
dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close()); // the backdrop
dialog.addEventListener("keydown", ({ key }) => {
  if (key === "ArrowLeft") walk(-1);
  if (key === "ArrowRight") walk(1);
});
dialog.addEventListener("close", () => {
  const button = matrix.querySelector(`button[data-cell="${dialog.dataset.cell}"]`);
  button?.classList.remove("current");
  button?.focus();
  remember();
});

/** To the next or the one before of the cells that are shown. */
function walk(step) {
  const order = visible().map((button) => +button.dataset.cell);
  const next = order[order.indexOf(+dialog.dataset.cell) + step];
  if (next !== undefined) open(next);
}

function open(n) {
  matrix.querySelector("button.current")?.classList.remove("current");
  matrix.querySelector(`button[data-cell="${n}"]`)?.classList.add("current");
  dialog.dataset.cell = n;
  const order = visible().map((button) => +button.dataset.cell);
  const at = order.indexOf(n);
  $("#place").textContent = at < 0 ? "" : `${(at + 1).toLocaleString("en")} of ${order.length.toLocaleString("en")}`;
  $("#back").disabled = at <= 0;
  $("#next").disabled = at < 0 || at === order.length - 1;
  $("#cell").replaceChildren(...details(CELLS[n]));
  if (!dialog.open) dialog.showModal();
  dialog.focus(); // not its first button: the arrow keys walk
  dialog.scrollTop = 0;
  remember();
}

function details(cell) {
  const about = DATA.cases[cell.case];
  const worst = cell.tensors.reduce((a, b) => (a && number(a.max_share) >= number(b.max_share) ? a : b), null);
  const tensor = element("div", { class: "tensor" });
  const parts = [title(cell, about)];
  if (cell.tensors.length) {
    parts.push(tensors(cell, worst, (chosen) => tensor.replaceChildren(...evidence(chosen))), tensor);
    tensor.replaceChildren(...evidence(worst));
  }
  parts.push(element("div", { class: "pair" }, facts(cell, about), about.picture ? mask(about) : ""));
  const declared = DATA.subjects[cell.subject].diverges.filter((each) => (cell.diverges ?? []).includes(each.name));
  if (declared.length) parts.push(element("div", {}, element("h3", {}, "Declared differences that showed"),
    ...declared.map((each) => element("p", {}, each.says, element("cite", {}, each.source)))));
  parts.push(element("div", {}, element("h3", {}, "Run this cell again"), element("code", { class: "again" }, command(cell)),
    cell.replay ? element("code", { class: "again" }, `parity replay ${quoted(cell.replay)}`) : ""));
  return parts;
}

function title(cell, about) {
  return element("div", {},
    element("h2", { id: "details-title" }, cell.case),
    element("p", { class: "what" }, `${cell.subject} · ${cell.dtype} · ${cell.device}`),
    element("span", { class: `pill ${cell.status}` }, DATA.status[cell.status] + (cell.warn ? ", with little room" : "")),
    cell.reason ? element("p", { class: "reason" }, cell.reason) : "",
    element("p", { class: "what" }, `There to catch: ${about.catches}`),
    about.origin ? element("p", { class: "what" }, `Reported: ${about.origin}`) : "");
}

/** As a shell takes it for one word. */
const quoted = (x) => (/^[\w./:=-]+$/.test(x) ? x : `'${x.replaceAll("'", "'\\''")}'`);

function command(cell) {
  return `parity run --case ${quoted(cell.case)} --subject ${quoted(cell.subject)} --dtype ${cell.dtype} --device ${cell.device} --seed ${DATA.seed}`;
}

/** A table of all tensors; the chosen one's evidence is shown below. */
function tensors(cell, first, choose) {
  const select = (row, tensor) => {
    row.parentElement.querySelector('[aria-current="true"]')?.removeAttribute("aria-current");
    row.setAttribute("aria-current", "true");
    choose(tensor);
  };
  const body = element("tbody", {}, ...cell.tensors.map((tensor) => {
    const over = tensor.status === "failed" ? "out" : "";
    const row = element("tr", {},
      element("th", { scope: "row" }, element("button", { type: "button", onclick: () => select(row, tensor) }, tensor.name)),
      element("td", { class: over }, short(tensor.max_share)),
      element("td", {}, short(tensor.p99_share)),
      ...["nan", "inf", "lost"].map((kind) => element("td", { class: tensor[kind] ? "out" : "" }, String(tensor[kind]))),
      element("td", { class: over }, DATA.status[tensor.status]));
    if (tensor === first) row.setAttribute("aria-current", "true");
    return row;
  }));
  const headings = ["tensor", "max share", "99 %", "NaN", "Inf", "lost", ""].map((text) => element("th", { scope: "col" }, text));
  return element("div", { class: "scroll" }, element("table", { class: "tensors" }, element("thead", {}, element("tr", {}, ...headings)), body));
}

/** What is known of one tensor: its worst element, where its errors sit, how large they are. */
function evidence(tensor) {
  const error = Math.abs(number(tensor.got) - number(tensor.expected));
  const lines = tensor.worst === null ? [["", tensor.reason]] : [
    ["worst element", `${tensor.name}[${tensor.worst.join(", ")}]`],
    ["expected", tensor.expected], ["got", tensor.got],
    ["error", brief(error)], ["bound", brief(tensor.bound)],
    ["would pass", `atol=${brief(tensor.atol)} or rtol=${brief(tensor.rtol)}`],
    ["proves nothing", `${brief(100 * tensor.vacuous)} % of the elements`],
  ];
  const list = element("dl", { class: "list" }, ...lines.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
  const words = element("div", {}, element("h3", {}, tensor.name), list, tensor.heat ? heat(tensor) : "");
  return [element("div", { class: "pair" }, words, tensor.histogram ? histogram(tensor) : "")];
}

function heat(tensor) {
  const [heads, positions] = tensor.heat_of;
  const rows = tensor.heat.length, columns = tensor.heat[0].length;
  const axis = ["dk", "dv"].includes(tensor.name) ? "key" : "query";
  const look = (digit) => (digit === "." ? "nothing" : `l${parseInt(digit, 16)}`);
  const means = (digit) => (digit === "." ? "the bound proves nothing" : DATA.levels[parseInt(digit, 16)]);
  const where = (x, y) => `head ${range(y, heads, rows)}, ${axis} ${range(x, positions, columns)}`;
  const name = `${tensor.name}: largest share of the bound by head and ${axis}`;
  return element("figure", { class: "heat" }, element("h3", {}, `By head and ${axis}`),
    picture(name, tensor.heat, look, (digit, x, y) => `${where(x, y)}: ${means(digit)}`),
    element("figcaption", { class: "axes" }, `${heads_of(heads)} down, ${axis_of(positions, axis)} across`));
}

/** "3", or "6–8" where several were drawn as one. */
function range(n, total, drawn) {
  const size = Math.ceil(total / drawn);
  return size === 1 ? String(n) : `${n * size}–${Math.min((n + 1) * size, total) - 1}`;
}

const heads_of = (n) => `${n.toLocaleString("en")} ${n === 1 ? "head" : "heads"}`;
const axis_of = (n, axis) => `${n.toLocaleString("en")} ${n === 1 ? axis : { query: "queries", key: "keys" }[axis]}`;

/** A rectangle for each character of some lines: its class, and what it says when pointed at. */
function picture(name, lines, look, says = () => "") {
  const wide = Math.max(5, Math.min(20, 320 / Math.max(lines[0]?.length ?? 0, 1)));
  const high = Math.max(wide, Math.min(20, 60 / Math.max(lines.length, 1)));
  const [width, height] = [(lines[0]?.length ?? 0) * wide, lines.length * high];
  const rectangles = lines.flatMap((line, y) => [...line].map((character, x) => element("svg:rect",
    { x: x * wide, y: y * high, width: wide - 1, height: high - 1, rx: 1, class: look(character) },
    element("svg:title", {}, says(character, x, y)))));
  return element("svg:svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": name }, ...rectangles);
}

function histogram(tensor) {
  const largest = Math.max(...tensor.histogram, 1);
  const bars = tensor.histogram.flatMap((n, level) => [
    element("span", {}, DATA.levels[level]),
    n ? element("i", { class: `l${level}`, style: `width: ${(100 * n) / largest}%` }) : element("span"),
    element("span", {}, n ? n.toLocaleString("en") : ""),
  ]);
  return element("div", {}, element("h3", {}, "Elements by share of the bound"), element("div", { class: "bars" }, ...bars));
}

function facts(cell, about) {
  const shape = (x) => `(${x.join(", ")})`;
  const lines = about.picture
    ? [["q", shape(about.q)], ["k", shape(about.kv)], ["v", shape([...about.kv.slice(0, -1), about.v_dim])],
       ["filled", about.fill], ["layout", about.layout], ["NaN, Inf in", about.poison], ...Object.entries(about.options)]
    : [["x", shape([about.B, about.T, about.n_embd])], ["heads", about.n_head], ["style", about.style]];
  lines.push(["held to", cell.claim], ["seconds", cell.seconds ?? ""]);
  const shown = lines.filter(([, value]) => value !== "" && value !== null);
  return element("div", {}, element("h3", {}, "The case"), element("dl", { class: "list" },
    ...shown.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))])));
}

/** What the queries of the first head see. */
function mask(about) {
  const rows = about.picture.length, columns = about.picture[0]?.length ?? 0;
  const queries = about.q.at(-2), keys = about.kv.at(-2);
  const cut = rows < queries || columns < keys ? `; drawn: ${rows} × ${columns}` : "";
  return element("figure", {}, element("h3", {}, "What the first head sees"),
    picture("which keys each query sees", about.picture, (seen) => (seen === "#" ? "seen" : "nothing")),
    element("figcaption", { class: "axes" }, `${axis_of(queries, "query")} down, ${axis_of(keys, "key")} across${cut}`));
}

addEventListener("hashchange", recall);
recall();
