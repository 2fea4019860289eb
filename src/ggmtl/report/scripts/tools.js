const data = JSON.parse(document.getElementById("data").textContent);
const { tasks, features, places, sharing } = data;
const n = tasks.length;
const byId = (id) => document.getElementById(id);
const root = document.documentElement;

// ------------------------------------------------------------------ small tools

const element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  for (const child of children) node.append(child);  // text becomes a text node, never markup
  return node;
};
const drawn = (tag, attributes = {}, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const tints = new Map();
const tint = (name) => { if (!tints.has(name)) tints.set(name, getComputedStyle(root).getPropertyValue(name).trim()); return tints.get(name); };
const minus = (text) => text.replace("-", "−");
const number = (value, digits = 3) => {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3)) return minus(value.toExponential(1));
  return minus(Number(value.toPrecision(digits)).toString());
};
const fixed = (value, step) => {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || step < 1e-6)) return number(value);
  const size = Math.floor(Math.log10(step || 1)), text = value.toFixed(Math.min(Math.max(0, (size >= 0 ? 2 : 1) - size), 6));
  return minus(Number(text) === 0 ? text.replace("-", "") : text);
};
const isZero = (share) => Math.abs(share) < 0.0005;
const percent = (share) => (share === null ? "–" : isZero(share) ? "0.0 %" : minus(`${share > 0 ? "+" : ""}${(100 * share).toFixed(Math.abs(share) < 0.0995 ? 1 : 0)} %`));
// Standard error of a coefficient, and a gain with its own; null and nothing where they are not known.
const errorOf = (i, k) => data.standard_errors?.[i][k] ?? null;
const gainText = (i) => `${percent(tasks[i].gain)}${tasks[i].gain !== null && tasks[i].gain_error !== null ? ` ± ${Math.max(1, Math.round(100 * tasks[i].gain_error))}` : ""}`;
const count = (value, word) => `${value.toLocaleString("en")} ${word}${value === 1 ? "" : "s"}`;
const links = (value) => (value ? count(value, "link") : "no links");
const cut = (text, most = 26) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const column = (k) => tasks.map((task) => task.coefficients[k]);
const spreadOf = (list) => {
  const mean = list.reduce((a, b) => a + b, 0) / list.length;
  return Math.sqrt(list.reduce((a, b) => a + (b - mean) ** 2, 0) / list.length);
};
// Intercepts are read at the average row, not where all features are zero.
const last = features.length - 1, hasIntercept = features[last] === "intercept";
const atAverage = (models, own) => own + sharing.reduce((sum, entry, k) => sum + (k < last ? models[k] * entry.mean : 0), 0);
const names = features.map((name, k) => (hasIntercept && k === last ? "intercept (average row)" : name));
const values = features.map((_, k) => (hasIntercept && k === last ? tasks.map((task) => atAverage(task.coefficients, task.coefficients[k])) : column(k)));
const common = sharing.map((entry, k) => (hasIntercept && k === last ? atAverage(sharing.map((other) => other.common), entry.common) : entry.common));
const means = values.map((list) => list.reduce((a, b) => a + b, 0) / n);
const spreads = values.map(spreadOf);
const sizes = values.map((list, k) => Math.max(spreads[k], 1e-3 * Math.max(...list.map(Math.abs))) || 1);
// Of the coefficients as they stand in the table.
const tableSpreads = features.map((_, k) => spreadOf(column(k)));
const tableSizes = features.map((_, k) => Math.max(tableSpreads[k], 1e-3 * Math.max(...column(k).map(Math.abs))) || 1);

// Place of every task when labels are sorted as people do: Task 2 before Task 10.
const collator = new Intl.Collator(undefined, { numeric: true });
const rank = new Array(n);
tasks.map((_, i) => i).sort((a, b) => collator.compare(tasks[a].label, tasks[b].label)).forEach((i, place) => { rank[i] = place; });

// ------------------------------------------------------------------ theme

const system = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
const setTheme = (name) => { root.dataset.theme = name; tints.clear(); redrawAll(); };
const currentTheme = () => chosenTheme || (system.matches ? "dark" : "light");
byId("theme").addEventListener("click", () => { chosenTheme = root.dataset.theme === "dark" ? "light" : "dark"; setTheme(chosenTheme); });
system.addEventListener("change", () => setTheme(currentTheme()));
addEventListener("beforeprint", () => { showRows(500); setTheme("light"); });
addEventListener("afterprint", () => setTheme(currentTheme()));
