// ------------------------------------------------------------------ the table

const columns = [{ name: "Task", get: (i) => tasks[i].label }];
if (tasks.some((task) => task.rows !== null)) columns.push({ name: "Rows", get: (i) => tasks[i].rows, show: (v) => number(v, 6) });
// Clusters and links are those of the graph that the slider shows.
const isLinked = stops.some((entry) => entry.chosen && entry.edges.length > 0);
if (isLinked) columns.push({ name: "Cluster", get: (i) => stop().clusters[i] + 1, swatch: true }, { name: "Links", get: (i) => neighbours[i].length, show: (v) => String(v) });
if (tasks.some((task) => task.errors) && chosenLevel !== null) columns.push({ name: data.error[0].toUpperCase() + data.error.slice(1), get: (i) => tasks[i].errors?.[chosenLevel] ?? null, show: (v) => fixed(v, (levels[chosenLevel].error || 1) / 30) });
if (data.target) columns.push({ name: data.target.classes ? `Share of ${cut(data.target.classes[1], 14)}` : "Rate", get: (i) => tasks[i].rate, show: (v) => rateText(v) }, { name: "Observed / expected", get: (i) => tasks[i].ratio[0], show: (v) => number(v) });
if (gains.length) columns.push({ name: "Gain", get: (i) => tasks[i].gain, show: (v, i) => gainText(i), gain: true });
features.forEach((name, k) => columns.push({ name, get: (i) => tasks[i].coefficients[k], show: (v) => fixed(v, tableSizes[k]), feature: k }));
const table = { sort: 0, down: false, limit: 100 };
const head = document.querySelector("#table thead"), body = document.querySelector("#table tbody");
const compare = (a, b) => {
  if (a === null || b === null) return (a === null) - (b === null);
  return a - b;
};
const cellOf = (spec, i) => {
  const value = spec.get(i), cell = element("td", {});
  if (spec.swatch) {
    const c = stop().clusters[i], big = sizesNow[c] > 1;
    if (big && !isCrowded()) cell.append(element("span", { class: "swatch", style: `background:${palette[c]};border-radius:${isSquare(c) ? "2px" : "50%"}` }));
    cell.append(big ? String(value) : "–");
    return cell;
  }
  cell.textContent = spec.show ? spec.show(value, i) : value;
  const doubt = spec.feature === undefined ? null : errorOf(i, spec.feature);
  if (doubt !== null) cell.append(element("span", { class: "doubt" }, ` ± ${fixed(doubt, tableSizes[spec.feature])}`));
  if (spec === columns[0]) cell.title = value;
  if (spec.gain && value !== null && !isZero(value)) cell.className = value > 0 ? "gain-up" : "gain-down";
  if (spec.feature !== undefined && tableSpreads[spec.feature] > 0) {
    // A spread far below the standard error is none to look at.
    const z = (value - sharing[spec.feature].common) / Math.max(tableSpreads[spec.feature], doubt ?? 0), strength = Math.min(Math.abs(z) / 3, 1) * 34;
    if (strength > 3) cell.style.background = `color-mix(in srgb, var(${z > 0 ? "--bad" : "--good"}) ${strength.toFixed(0)}%, transparent)`;
  }
  return cell;
};
let rowOf = new Map();
const showRows = (limit = table.limit) => {
  const wanted = byId("filter").value.trim().toLowerCase();
  const list = tasks.map((_, i) => i).filter((i) => !wanted || tasks[i].label.toLowerCase().includes(wanted));
  const { get } = columns[table.sort], sign = table.down ? -1 : 1;
  if (table.sort === 0) list.sort((a, b) => sign * (rank[a] - rank[b]));
  else list.sort((a, b) => { const [u, v] = [get(a), get(b)]; return u === null || v === null ? compare(u, v) : sign * compare(u, v) || a - b; });
  rowOf = new Map();
  body.replaceChildren(...list.slice(0, limit).map((i) => { const row = element("tr", { tabindex: 0, "data-task": i }, ...columns.map((spec) => cellOf(spec, i))); rowOf.set(i, row); return row; }));
  byId("shown").textContent = list.length > limit ? `${limit} of ${count(list.length, "task")}` : count(list.length, "task");
  byId("more").hidden = list.length <= limit;
  markRow();
};
let marked = null;
const markRow = () => { if (marked) marked.removeAttribute("aria-selected"); marked = rowOf.get(state.task) || null; if (marked) marked.setAttribute("aria-selected", "true"); };
const buildHead = () => head.replaceChildren(element("tr", {}, ...columns.map((spec, k) => element("th", { scope: "col", "aria-sort": table.sort === k ? (table.down ? "descending" : "ascending") : "none" },
  element("button", { type: "button", title: spec.name, onclick: () => { table.down = table.sort === k ? !table.down : spec !== columns[0]; table.sort = k; buildHead(); showRows(); head.querySelectorAll("button")[k].focus(); } }, spec.name)))));
const openRow = (event) => { const row = event.target.closest("tr[data-task]"); if (!row) return; const i = Number(row.dataset.task); bringIntoView(i); selectTask(i); byId("graph").scrollIntoView(); };
body.addEventListener("click", openRow);
body.addEventListener("keydown", (event) => {
  if (event.key === "Enter") openRow(event);
  const row = event.target.closest("tr");
  if (event.key === "ArrowDown" && row.nextElementSibling) { event.preventDefault(); row.nextElementSibling.focus(); }
  if (event.key === "ArrowUp" && row.previousElementSibling) { event.preventDefault(); row.previousElementSibling.focus(); }
});
byId("filter").addEventListener("input", () => showRows());
byId("more").addEventListener("click", () => { table.limit += 400; showRows(); });
