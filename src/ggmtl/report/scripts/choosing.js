// ------------------------------------------------------------------ choosing

const refresh = () => { showPanel(); markRow(); drawStrips(); drawCurves(); draw(); };
const selectTask = (i) => { state.task = i; state.edge = state.cluster = state.hover = null; refresh(); panel.scrollTop = 0; };
const selectEdge = (edge) => { state.edge = edge; state.task = state.cluster = null; refresh(); panel.scrollTop = 0; };
const clear = () => { state.task = state.edge = state.cluster = null; refresh(); };

const search = byId("search"), found = byId("found");
const matches = (text) => { const wanted = text.trim().toLowerCase(); return wanted ? tasks.map((_, i) => i).filter((i) => tasks[i].label.toLowerCase().includes(wanted)).sort((a, b) => tasks[a].label.length - tasks[b].label.length) : []; };
const go = (i) => { found.hidden = true; search.value = tasks[i].label; bringIntoView(i); selectTask(i); };
const bringIntoView = (i) => { const [x, y] = points[i] || [0, 0]; if (x < 10 || y < 10 || x > width - 10 || y > height - 10) { state.view.x += width / 2 - x; state.view.y += height / 2 - y; } };
search.addEventListener("input", () => {
  const list = matches(search.value).slice(0, 12);
  found.replaceChildren(...list.map((i) => element("li", { role: "option" }, element("button", { type: "button", onclick: () => go(i) }, tasks[i].label))));
  if (!list.length && search.value.trim()) found.replaceChildren(element("li", { class: "quiet" }, "No task of that name."));
  found.hidden = !search.value.trim();
});
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") { const [first] = matches(search.value); if (first !== undefined) go(first); }
  if (event.key === "Escape") { search.value = ""; found.hidden = true; clear(); }
  if (event.key === "ArrowDown" && !found.hidden) { event.preventDefault(); found.querySelector("button")?.focus(); }
});
found.addEventListener("keydown", (event) => {
  const buttons = [...found.querySelectorAll("button")], k = buttons.indexOf(document.activeElement);
  if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); (buttons[k + (event.key === "ArrowDown" ? 1 : -1)] || search).focus(); }
  if (event.key === "Escape") { found.hidden = true; search.focus(); }
});
document.addEventListener("pointerdown", (event) => { if (!found.contains(event.target) && event.target !== search) found.hidden = true; });

const level = byId("level"), weight = byId("weight"), colour = byId("colour");
const howTo = matchMedia("(pointer: coarse)").matches ? "Drag to move, tap a task or a link." : "Drag to move, Ctrl and wheel to zoom; arrow keys go from task to task.";
const hintWords = () => {
  if (onMap) {
    const outside = places.filter((p) => p[0] < low[0] || p[1] < low[1] || p[0] > high[0] || p[1] > high[1]).length;
    return `Each task is drawn where it lies.${outside ? ` Zoom out for ${count(outside, "task")} farther away.` : ""} ${howTo}`;
  }
  const fainter = stop().edges.some((edge) => edge[SUPPORT] !== undefined && edge[SUPPORT] < 0.999) ? " Fainter links were found in fewer folds." : "";
  if (shownEdges.length) return `${howTo}${fainter}`;
  if (stop().edges.length) return emptyWords();
  return `No links. ${data.axes.length ? `Near means alike: ${data.axes[1].length ? "the map shows the two directions" : "from left to right, the map shows the one direction"} in which the models differ most.` : "Arrow keys go from task to task."}`;
};
const setStop = (k) => {
  state.stop = k; level.value = k; state.edge = state.cluster = null;
  collect(); sizesNow = clusterSizes();
  const now = stop(), text = `${links(shownEdges.length)}${now.chosen ? " · the model" : ""}`;
  byId("level-text").textContent = text;
  level.setAttribute("aria-valuetext", text);
  byId("graph-words").textContent = now.words;
  byId("weight-name").textContent = ranking === SUPPORT ? "Support at least" : "Weight at least";
  byId("weight-text").textContent = ranking === SUPPORT ? `${Math.round(100 * state.least)} %` : number(state.least, 2);
  byId("weight-row").style.visibility = ranking === null ? "hidden" : "";
  canvas.dataset.edges = shownEdges.length;
  byId("hint").textContent = hintWords();
  if (isLinked) showRows();
  refresh();
};
level.max = stops.length - 1;
level.addEventListener("input", () => setStop(Number(level.value)));
weight.addEventListener("input", () => { state.least = Number(weight.value); setStop(state.stop); });
if (stops.length < 2) byId("level-row").style.display = "none";
if (!stops.some((entry) => rankOf(entry.edges) !== null)) byId("weight-row").style.display = "none";
if (!anyLinks) document.querySelector(".sliders").style.display = "none";

// Colour says what the places do not: on a map with many clusters, the coefficient that differs most.
const mostVarying = features.map((_, k) => k).sort((a, b) => spreads[b] * sharing[b].unit - spreads[a] * sharing[a].unit)[0];
if (anyLinks) colour.append(element("option", { value: "cluster" }, "cluster"));
if (gains.length) colour.append(element("option", { value: "gain" }, "gain by sharing"));
if (n > 1) colour.append(element("optgroup", { label: "coefficient" }, ...features.map((_, k) => element("option", { value: k }, names[k]))));
sizesNow = clusterSizes();
const modelHasLinks = stop().edges.length > 0;
if (onMap && (isCrowded() || !modelHasLinks)) state.colour = String(mostVarying);
else if (gains.length && data.placed_by === "models") state.colour = "gain";
else if (!modelHasLinks && n > 1) state.colour = String(mostVarying);
colour.value = state.colour;
colour.addEventListener("change", () => { state.colour = colour.value; state.cluster = null; refresh(); });
if (n < 2) byId("colour-row").style.display = "none";
