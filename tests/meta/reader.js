// A reader of the HTML report, appended to it by test_report_page.py, which sets CELL and WHO before. It filters,
// opens a cell, walks on and closes it, and hands what it saw to the frame around.

const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const drawn = (selector, inside) => all(selector, inside).filter((element) => element.checkVisibility());
const texts = (selector, inside) => all(selector, inside).map((element) => element.textContent);
const details = document.querySelector("dialog");
const search = document.querySelector("[type=search]");

const shown = () => drawn("#matrix td button").map((button) => +button.dataset.cell);
const said = () => document.querySelector("#shown").textContent;
const titles = () => texts("h2, h3", details);
const excess = () => [document.documentElement, details].map((each) => each.scrollWidth - each.clientWidth);

function choose(filter, value) {
  all(".chip").find(({ dataset }) => dataset.filter === filter && dataset.value === value).click();
}

function press(key) {
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
}

/** WCAG 2, relative luminance, plus .05. */
function light(color) {
  const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = color.match(/[\d.]+/g).map((x) => linear(x / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
}

/** Of an element's text on what is behind it. */
function contrast(element) {
  const background = (each) => getComputedStyle(each).backgroundColor;
  let ground = element;
  while (background(ground) === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
  const [a, b] = [getComputedStyle(element).color, background(ground)].map(light);
  return Math.max(a, b) / Math.min(a, b);
}

function hardestToRead(selector, inside) {
  return drawn(selector, inside).map((element) => [contrast(element), element.outerHTML]).sort(([a], [b]) => a - b)[0];
}

async function read() {
  const seen = {};
  seen.first = { shown: shown(), said: said(), excess: excess(), pressed: texts('.chip[aria-pressed="true"]') };
  document.querySelector("[type=reset]").click();
  seen.all = { shown: shown().length, said: said(), excess: excess(), hash: location.hash };
  const plain = "h1, h2, .lead, .facts, .note, .why, .count, .chip, cite, legend, .legend, .plain th, .plain td";
  seen.contrast = hardestToRead(`${plain}:not(.nothing), #matrix th, #matrix button:not(.no_evidence)`);
  choose("subject", WHO);
  choose("dtype", "float32");
  seen.chosen = { shown: shown(), said: said(), hash: location.hash };
  document.querySelector(`#matrix button[data-cell="${CELL}"]`).click();
  seen.opened = {
    open: details.open,
    titles: titles(),
    excess: excess(),
    hash: location.hash,
    text: details.textContent,
    tensors: texts(".tensors tbody th", details),
    heat: all(".tensor rect", details).map((square) => square.getAttribute("class")),
    mask: all("rect.seen", details).length,
    bars: texts(".bars span:nth-child(3n)", details).map((text) => +text.replace(",", "")),
    contrast: hardestToRead("th, td, dt, dd, p, h2, h3, .pill, .axes, .bars span, code", details),
  };
  all(".tensors button", details)[3].click();
  seen.tensor = titles();
  press("ArrowRight");
  seen.next = titles()[0];
  const closed = new Promise((resolve) => details.addEventListener("close", resolve, { once: true }));
  document.querySelector("#close").click();
  await closed;
  seen.closed = { open: details.open, hash: location.hash };
  const before = document.activeElement;
  press("ArrowUp");
  seen.moved = [before, document.activeElement].map((button) => +button.dataset.cell);
  seen.stops = all('#matrix [tabindex="0"]').length;
  search.value = "no such case";
  search.dispatchEvent(new Event("input", { bubbles: true }));
  seen.none = { shown: shown(), said: said() };
  return seen;
}

addEventListener("load", async () => {
  let seen = {};
  try {
    seen = await read();
  } catch (error) {
    errors.push(error.stack);
  }
  parent.postMessage(JSON.stringify({ ...seen, errors }), "*");
});
