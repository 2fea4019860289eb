// ------------------------------------------------------------------ the side panel

const panel = byId("panel");
const swatch = (i) => element("span", { class: "swatch", style: `background:${colourOf(i)}` });
// One line of a list: colour, name, bar and value; without bar where nothing is ranked.
const lineButton = (i, share, value, action, text) => {
  const meter = element("span", { class: "meter" });
  if (share === null) meter.style.visibility = "hidden"; else meter.append(element("i", { style: `width:${Math.round(100 * share)}%` }));
  return element("button", { type: "button", onclick: action }, swatch(i), element("span", { class: "label" }, text ?? tasks[i].label), meter, element("span", { class: "value" }, value));
};
const edgeButton = (i, edge, text) => lineButton(i, ranking === null ? null : edge[ranking], ranking === null ? "" : strengthText(edge, ranking), () => selectEdge(edge), text);
const listOf = (buttons, most, rest, look = "") => {
  const list = element("ul", { class: `links${look}` });
  buttons.slice(0, most).forEach((button) => list.append(element("li", {}, button)));
  if (buttons.length > most) list.append(element("li", { class: "quiet" }, `and ${buttons.length - most} ${rest}`));
  return list;
};
const tableOf = (head, rows) => element("table", { class: `of-${head.length}` }, element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
  element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((text, k) => (k ? element("td", {}, text) : element("th", { scope: "row", title: text }, text)))))));
const scaleOf = (title, low, high, look = "") => [element("h4", {}, title), element("div", { class: `scale${look}` }), element("div", { class: "ends" }, element("span", {}, low), element("span", {}, high))];
const showPanel = () => panel.replaceChildren(...(state.task !== null ? taskPanel(state.task) : state.edge ? edgePanel(state.edge) : overview()));

const membersOf = (c) => tasks.map((_, i) => i).filter((i) => stop().clusters[i] === c).sort((a, b) => rank[a] - rank[b]);
const namesOf = (members) => members.slice(0, 4).map((i) => cut(tasks[i].label, 16)).join(", ") + (members.length > 4 ? ` and ${members.length - 4} more` : "");
// Coefficients whose mean over a cluster is far from the mean over all tasks; first those that change the target most.
const traitsOf = (members) => features.map((_, k) => [k, members.reduce((sum, i) => sum + values[k][i], 0) / members.length - means[k]])
  .filter(([k, gap]) => Math.abs(gap) > 0.7 * spreads[k]).sort((a, b) => Math.abs(b[1]) * sharing[b[0]].unit - Math.abs(a[1]) * sharing[a[0]].unit)
  .slice(0, 2).map(([k, gap]) => `${gap > 0 ? "higher" : "lower"} ${cut(names[k], 22)}`).join(", ");
const clusterButton = (c, size, largest) => {
  const members = membersOf(c), traits = traitsOf(members);
  const button = lineButton(members[0], size / largest, String(size), () => { state.cluster = state.cluster === c ? null : c; refresh(); }, `Cluster ${c + 1}`);
  button.setAttribute("aria-pressed", state.cluster === c);
  if (state.colour === "cluster") button.querySelector(".swatch").style.cssText = `background:${clusterColour(c)};border-radius:${isSquare(c) ? "2px" : "50%"}`;
  button.append(element("span", { class: "about" }, `${namesOf(members)}${traits ? ` · ${traits}` : ""}`));
  return button;
};
const gainList = (list) => listOf(list.map((i) => lineButton(i, Math.min(1, Math.abs(tasks[i].gain) / gainBound), gainText(i), () => selectTask(i))), list.length, "more", " wide");
const gainParts = () => {
  const bound = percent(gainBound).slice(1), beyond = gainSizes.at(-1) > gainBound ? "at least " : "", unranked = n - gains.length;
  const sorted = tasks.map((_, i) => i).filter((i) => tasks[i].gain !== null).sort((a, b) => tasks[b].gain - tasks[a].gain);
  const shown = Math.min(6, Math.ceil(sorted.length / 2));
  return [
    ...scaleOf(`${data.error[0].toUpperCase()}${data.error.slice(1)} of each task against ${data.gain_against || "the best simple model"}`, `${beyond}${bound} worse`, `${beyond}${bound} better`),
    element("p", { class: "quiet" }, `Gains are shrunk towards the gain of all tasks, because few held-out rows say little. ± is one standard error.${unranked ? ` Drawn as rings and not ranked: ${count(unranked, "task")} with too few held-out rows${data.target ? " or only one outcome" : ""}.` : ""}`),
    element("h4", {}, "Tasks that gain most"), gainList(sorted.slice(0, shown)), element("h4", {}, "Tasks that gain least"), gainList(sorted.slice(shown).slice(-6).reverse()),
  ];
};
const coefficientParts = () => {
  const k = Number(state.colour), show = (value) => fixed(value, sizes[k]);
  const sorted = tasks.map((_, i) => i).sort((a, b) => values[k][b] - values[k][a]), shown = Math.min(6, Math.ceil(n / 2));
  const list = (some) => listOf(some.map((i) => lineButton(i, Math.min(1, Math.abs(values[k][i] - common[k]) / reaches[k]), show(values[k][i]), () => selectTask(i))), some.length, "more");
  return [...scaleOf(names[k], `${show(common[k] - reaches[k])} or less`, `${show(common[k] + reaches[k])} or more`, " rising"), element("h4", {}, "Highest"), list(sorted.slice(0, shown)), element("h4", {}, "Lowest"), list(sorted.slice(shown).slice(-6).reverse())];
};
const clusterParts = () => {
  const found = clusterSizes().map((size, c) => [c, size]).filter(([, size]) => size > 1);
  const parts = [];
  if (found.length > 1) {
    const most = isCrowded() ? 20 : palette.length;
    parts.push(element("h4", {}, isCrowded() ? "Clusters: choose one to see it in the graph" : "Clusters"), listOf(found.slice(0, most).map(([c, size]) => clusterButton(c, size, found[0][1])), most, "more"));
    if (found.length > most) parts.push(element("p", { class: "quiet" }, `and ${found.length - most} smaller`));
  }
  if (ranking === null) return parts;
  const heaviest = [...shownEdges].sort(strongerFirst).slice(0, 8);
  const title = ranking === SUPPORT ? "Best supported links (found in … of the folds)" : "Strongest links";
  parts.push(element("h4", {}, title), listOf(heaviest.map((edge) => edgeButton(edge[0], edge, `${cut(tasks[edge[0]].label, 14)} – ${cut(tasks[edge[1]].label, 14)}`)), 8, "more"));
  return parts;
};
const overview = () => {
  const linked = shownEdges.length > 0;
  const parts = [element("h3", { class: "name" }, "Overview"), element("p", {}, linked ? "Choose a task or a link to see what is behind it." : "Choose a task to see its model and its errors.")];
  if (!linked) parts.push(element("p", {}, emptyWords()));
  if (state.colour === "gain" && gains.length) return [...parts, ...gainParts()];
  if (state.colour !== "cluster") return [...parts, ...coefficientParts()];
  return linked ? [...parts, ...clusterParts()] : parts;
};
const featureOrder = (distance) => features.map((_, k) => k).sort((a, b) => distance(b) - distance(a));
const taskPanel = (i) => {
  const task = tasks[i], facts = [];
  if (task.rows !== null) facts.push(count(task.rows, "row"));
  facts.push(sizesNow[stop().clusters[i]] > 1 ? `cluster ${stop().clusters[i] + 1}` : "in no cluster");
  if (task.gain !== null) facts.push(`gain ${gainText(i)}`);
  const parts = [element("h3", { class: "name" }, task.label), element("p", {}, facts.join(" · "))];
  if (data.target) parts.push(element("p", {}, outcomeWords(task)));
  const far = featureOrder((k) => Math.abs(values[k][i] - common[k]) / sizes[k]);
  if (neighbours[i].length) parts.push(element("h4", {}, `Linked to ${count(neighbours[i].length, "task")}${ranking === SUPPORT ? " (found in … of the folds)" : ""}`), listOf(neighbours[i].map(([j, edge]) => edgeButton(j, edge)), 10, "more"));
  else parts.push(element("p", {}, shownEdges.length ? "Linked to no other task in this graph: its model follows the shared model and its own rows." : "No links in this graph."));
  parts.push(element("h4", {}, "Model, largest differences first"), tableOf(["", "here", "± s.e.", "shared"], far.slice(0, 14).map((k) => [names[k], fixed(values[k][i], sizes[k]), names[k] === features[k] && errorOf(i, k) !== null ? fixed(errorOf(i, k), sizes[k]) : "", fixed(common[k], sizes[k])])));
  if (task.errors) parts.push(element("h4", {}, `Held-out ${data.error} of this task`), tableOf(["", data.error], levels.map((level, k) => [level.title + (level.chosen ? " ✓" : ""), number(task.errors[k])])));
  return parts;
};
const edgePanel = (edge) => {
  const [i, j] = edge, [a, b] = [tasks[i], tasks[j]];
  const gap = (k) => Math.abs(values[k][i] - values[k][j]) / sizes[k];
  const varying = featureOrder(gap).filter((k) => spreads[k] > 0);
  const parts = [element("h3", { class: "name" }, `${a.label} – ${b.label}`), element("p", {}, edgeWords(edge))];
  const both = neighbours[i].map((e) => e[0]).filter((t) => neighbours[j].some((e) => e[0] === t));
  if (varying.length > 1) {
    const alike = varying.slice(-Math.min(2, Math.floor(varying.length / 2))).reverse().map((k) => names[k]).join(" and ");
    parts.push(element("p", {}, `Closest in ${alike}; furthest apart in ${names[varying[0]]} (${number(gap(varying[0]), 2)} times the spread over all tasks). ${both.length ? `They share ${count(both.length, "neighbour")}.` : "They share no neighbour."}`));
  }
  parts.push(element("h4", {}, "Both models"), tableOf(["", cut(a.label, 9), cut(b.label, 9), "Δ"], featureOrder(gap).slice(0, 16).map((k) => [names[k], fixed(values[k][i], sizes[k]), fixed(values[k][j], sizes[k]), fixed(values[k][i] - values[k][j], sizes[k])])));
  parts.push(element("h4", {}, "Go to"), listOf([i, j].map((t) => lineButton(t, null, "", () => selectTask(t))), 2, ""));
  return parts;
};
const emptyWords = () => {
  if (n === 1) return "There is one task, so there is nothing to link.";
  if (stop().edges.length) return "No link is strong enough. Move the slider back to see weaker ones.";
  return stops.length > 1 ? "No links. The slider shows the graphs that were tried." : "No links.";
};
