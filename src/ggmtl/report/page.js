"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { tasks, features, places, sharing } = data;
  const levels = data.path.levels;
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
  const tint = (name) => getComputedStyle(root).getPropertyValue(name).trim();
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
  const count = (value, word) => `${value.toLocaleString("en")} ${word}${value === 1 ? "" : "s"}`;
  const links = (value) => (value ? count(value, "link") : "no links");
  const column = (k) => tasks.map((task) => task.coefficients[k]);
  const spreadOf = (values) => {
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    return Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / values.length);
  };
  const means = features.map((_, k) => column(k).reduce((a, b) => a + b, 0) / n);
  const spreads = features.map((_, k) => spreadOf(column(k)));
  const sizes = features.map((_, k) => Math.max(spreads[k], 1e-3 * Math.max(...column(k).map(Math.abs))) || 1);

  // Place of every task when labels are sorted as people do: Task 2 before Task 10.
  const collator = new Intl.Collator(undefined, { numeric: true });
  const rank = new Array(n);
  tasks.map((_, i) => i).sort((a, b) => collator.compare(tasks[a].label, tasks[b].label)).forEach((i, place) => { rank[i] = place; });

  // ------------------------------------------------------------------ theme

  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosenTheme = null;
  const setTheme = (name) => { root.dataset.theme = name; redrawAll(); };
  const currentTheme = () => chosenTheme || (system.matches ? "dark" : "light");
  byId("theme").addEventListener("click", () => { chosenTheme = root.dataset.theme === "dark" ? "light" : "dark"; setTheme(chosenTheme); });
  system.addEventListener("change", () => setTheme(currentTheme()));
  addEventListener("beforeprint", () => { showRows(500); setTheme("light"); });
  addEventListener("afterprint", () => setTheme(currentTheme()));

  // ------------------------------------------------------------------ state

  const chosenLevel = data.path.chosen;
  const empty = { edges: [], clusters: tasks.map(() => 0).map((_, i) => i), name: "none", level: null };
  const stops = [];
  levels.forEach((level, k) => {
    if (level.edges && level.edges.length) stops.push({ ...level, index: k });
    else if (k === chosenLevel && !data.edges.length) stops.unshift({ ...empty, index: k, name: level.name, error: level.error, standard_error: level.standard_error });
  });
  if (!stops.some((stop) => !stop.edges.length)) {
    const simple = levels.findIndex((level) => level.name === "hub");
    if (simple >= 0) stops.unshift({ ...empty, index: simple, name: "hub", error: levels[simple].error, standard_error: levels[simple].standard_error });
  }
  if (!stops.length) stops.push({ edges: data.edges, clusters: tasks.map((task) => task.cluster), index: chosenLevel, name: "graph" });
  const order = stops.map((stop, k) => k).sort((a, b) => stops[a].edges.length - stops[b].edges.length);
  const ordered = order.map((k) => stops[k]);
  const state = {
    stop: Math.max(0, ordered.findIndex((stop) => stop.index === chosenLevel)),
    least: 0, colour: "cluster", task: null, edge: null, hover: null, hoverEdge: null, view: null,
  };
  const stop = () => ordered[state.stop];
  let shownEdges = [], neighbours = [];
  const collect = () => {
    shownEdges = stop().edges.filter((edge) => edge[2] > state.least || state.least === 0);
    neighbours = tasks.map(() => []);
    shownEdges.forEach((edge) => { neighbours[edge[0]].push([edge[1], edge[2], edge]); neighbours[edge[1]].push([edge[0], edge[2], edge]); });
    neighbours.forEach((list) => list.sort((a, b) => b[1] - a[1] || rank[a[0]] - rank[b[0]]));
  };

  // ------------------------------------------------------------------ colours

  // Okabe and Ito without yellow, which is lost on white; a second and third round have other marks.
  const palette = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"];
  const radii = ["50%", "2px", "50% 50% 50% 0", "0 50%"];
  const markOf = (cluster) => Math.floor(cluster / palette.length) % 4;
  const clusterSizes = () => { const found = []; stop().clusters.forEach((c) => { found[c] = (found[c] || 0) + 1; }); return found; };
  let sizesNow = [];
  const clusterColour = (cluster) => (sizesNow[cluster] > 1 ? palette[cluster % palette.length] : root.dataset.theme === "dark" ? "#7b858e" : "#a3abb3");
  const gains = tasks.map((task) => task.gain).filter((gain) => gain !== null);
  const gainBound = gains.length ? [...gains].map(Math.abs).sort((a, b) => a - b)[Math.floor(0.95 * (gains.length - 1))] || 0.01 : 0;
  const parse = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  const gainColour = (gain) => {
    const middle = parse(root.dataset.theme === "dark" ? "#3a4148" : "#dfe3e6");
    if (gain === null) return `rgb(${middle})`;
    const end = parse(tint(gain >= 0 ? "--good" : "--bad"));
    const share = Math.min(Math.abs(gain) / gainBound, 1);
    return `rgb(${middle.map((m, k) => Math.round(m + (end[k] - m) * share))})`;
  };
  const colourOf = (i) => (state.colour === "gain" ? gainColour(tasks[i].gain) : clusterColour(stop().clusters[i]));

  // ------------------------------------------------------------------ the drawing

  const canvas = byId("drawing"), context = canvas.getContext("2d"), tip = byId("tip");
  const [low, high] = data.frame, onMap = data.placed_by === "places";
  let width = 0, height = 0, points = [], radius = 5;
  const fit = () => {
    const margin = n > 200 ? 26 : 44;
    const across = (width - 2 * margin) / Math.max(high[0] - low[0], 1e-9), down = (height - 2 * margin) / Math.max(high[1] - low[1], 1e-9);
    // Except on a map, a little unequal in the two directions, so that the picture fills its frame.
    const scale = Math.min(across, down, 110), wide = onMap ? 1 : Math.min(across / scale, 1.4), tall = onMap ? 1 : Math.min(down / scale, 1.25);
    state.view = { scale, wide, tall, x: width / 2 - scale * wide * (low[0] + high[0]) / 2, y: height / 2 + scale * tall * (low[1] + high[1]) / 2, fitted: scale };
  };
  const project = () => {
    const { scale, wide, tall, x, y, fitted } = state.view;
    points = places.map((p) => [x + scale * wide * p[0], y - scale * tall * p[1]]);
    const base = Math.max(2, Math.min(9, 0.3 * Math.sqrt(width * height / Math.max(n, 1)) * 0.42));
    radius = Math.min(base * Math.sqrt(scale / fitted), 14);
  };
  const isNear = (i) => state.task === i || (state.task !== null && neighbours[state.task].some((entry) => entry[0] === i));
  const drawEdges = () => {
    const rgb = tint("--edge"), accent = tint("--accent");
    const crowd = Math.min(1, 1.6 * n / Math.max(shownEdges.length, 1)) ** 0.5;
    const focus = state.task !== null;
    context.lineCap = "round";
    for (const edge of shownEdges) {
      const [i, j, weight] = edge;
      const own = focus && (i === state.task || j === state.task);
      const strong = edge === state.edge || edge === state.hoverEdge;
      context.strokeStyle = strong ? accent : `rgba(${rgb}, ${own ? 0.75 : (0.08 + 0.42 * weight) * crowd * (focus ? 0.35 : 1)})`;
      context.lineWidth = strong ? 3 : (0.5 + 2.2 * weight) * (n > 300 ? 0.5 : 1) * (own ? 1 : crowd);
      context.beginPath(); context.moveTo(...points[i]); context.lineTo(...points[j]); context.stroke();
    }
  };
  const mark = (x, y, kind) => {
    const r = radius;
    context.beginPath();
    if (kind === 1) context.rect(x - 0.85 * r, y - 0.85 * r, 1.7 * r, 1.7 * r);
    else if (kind === 2) { context.moveTo(x, y - 1.15 * r); context.lineTo(x + 1.05 * r, y + 0.8 * r); context.lineTo(x - 1.05 * r, y + 0.8 * r); context.closePath(); }
    else if (kind === 3) { context.moveTo(x, y - 1.25 * r); context.lineTo(x + 1.1 * r, y); context.lineTo(x, y + 1.25 * r); context.lineTo(x - 1.1 * r, y); context.closePath(); }
    else context.arc(x, y, r, 0, 6.2832);
  };
  const drawTasks = () => {
    const focus = (state.task !== null && neighbours[state.task].length > 0) || state.edge !== null;
    const inEdge = (i) => state.edge !== null && (state.edge[0] === i || state.edge[1] === i);
    const card = tint("--card");
    context.lineWidth = n > 300 ? 0.6 : 1.4;
    for (let i = 0; i < n; i++) {
      const [x, y] = points[i];
      if (x < -20 || y < -20 || x > width + 20 || y > height + 20) continue;
      context.strokeStyle = context.fillStyle = card; context.globalAlpha = 1;
      mark(x, y, state.colour === "gain" || sizesNow[stop().clusters[i]] < 2 ? 0 : markOf(stop().clusters[i])); context.fill();
      context.globalAlpha = focus && !isNear(i) && !inEdge(i) ? 0.4 : 1;
      context.fillStyle = colourOf(i); context.fill(); context.globalAlpha = 1; context.stroke();
    }
    context.globalAlpha = 1;
    for (const i of [state.hover, state.task]) {
      if (i === null) continue;
      context.strokeStyle = tint("--ink"); context.lineWidth = 2;
      context.beginPath(); context.arc(...points[i], radius + 3, 0, 6.2832); context.stroke();
    }
  };
  const cut = (text, most = 26) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const drawLabels = () => {
    context.font = '12px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
    context.textAlign = "center"; context.textBaseline = "middle"; context.lineJoin = "round";
    const first = [state.task, state.hover, ...(state.edge ? state.edge.slice(0, 2) : []), ...(state.task === null ? [] : neighbours[state.task].map((e) => e[0]))].filter((i) => i !== null);
    const far = state.view.scale < (n > 800 ? 2.5 : 1.8) * state.view.fitted;
    const rest = n > 150 && far && (n > 800 || sizesNow.some((size) => size > 2)) ? [] : tasks.map((_, i) => i).sort((a, b) => neighbours[b].length - neighbours[a].length);
    const taken = new Map(), cell = 26;
    const boxes = points.map(([x, y]) => [x - radius, y - radius, x + radius, y + radius]);
    const put = (box) => { for (let a = Math.floor(box[0] / cell); a <= box[2] / cell; a++) for (let b = Math.floor(box[1] / cell); b <= box[3] / cell; b++) { const key = a * 4096 + b; if (!taken.has(key)) taken.set(key, []); taken.get(key).push(box); } };
    const free = (box) => { for (let a = Math.floor(box[0] / cell); a <= box[2] / cell; a++) for (let b = Math.floor(box[1] / cell); b <= box[3] / cell; b++) for (const other of taken.get(a * 4096 + b) || []) if (box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1]) return false; return true; };
    boxes.forEach(put);
    const done = new Set();
    const write = (text, x, y, half, ink) => {
      put([x - half, y - 7, x + half, y + 7]);
      context.strokeStyle = tint("--card"); context.lineWidth = 3.5; context.strokeText(text, x, y);
      context.fillStyle = ink; context.fillText(text, x, y);
    };
    // From afar the names of clusters say more than those of a few of their members.
    const nameClusters = () => sizesNow.forEach((size, c) => {
      if (size < 3) return;
      const members = tasks.map((_, i) => i).filter((i) => stop().clusters[i] === c), text = `Cluster ${c + 1}`, half = context.measureText(text).width / 2 + 1;
      const xs = members.map((i) => points[i][0]), ys = members.map((i) => points[i][1]), x = (Math.min(...xs) + Math.max(...xs)) / 2;
      // Below only where no name of a chosen task pushes it there: it would read as that of the next cluster.
      const y = [Math.min(...ys) - radius - 9, ...(first.length ? [] : [Math.max(...ys) + radius + 9])].find((b) => x - half > 2 && x + half < width - 2 && b > 8 && b < height - 8 && free([x - half, b - 7, x + half, b + 7]));
      if (y !== undefined) write(text, x, y, half, tint("--soft"));
    });
    for (const [forced, list] of [[true, first], [false, rest]]) for (const i of list) {
      if (done.has(i)) continue;
      const text = cut(tasks[i].label), half = context.measureText(text).width / 2 + 1, [x, y] = points[i];
      // Away from the links first, so that lines do not run through the names.
      const away = neighbours[i].reduce(([a, b], [j]) => [a + x - points[j][0], b + y - points[j][1]], [0, 0]);
      const spots = [[x, y - radius - 9], [x, y + radius + 9], [x + radius + 4 + half, y], [x - radius - 4 - half, y]]
        .map((spot, k) => [...spot, [-away[1], away[1], away[0], -away[0]][k]]).sort((a, b) => b[2] - a[2]);
      const spot = spots.find(([a, b]) => a - half > 2 && a + half < width - 2 && b > 8 && b < height - 8 && free([a - half, b - 7, a + half, b + 7])) || (forced && i === first[0] ? spots[0] : null);
      if (!spot) continue;
      write(text, spot[0], spot[1], half, forced ? tint("--ink") : tint("--soft")); done.add(i);
    }
    if (!rest.length) nameClusters();
  };
  // What grows to the right and upwards on the map of the models.
  const axisWords = (words) => words.map(([name, up]) => `${up ? "higher" : "lower"} ${cut(name, 18)}`).join(", ");
  const drawAxes = () => {
    if (!data.axes.length) return;
    context.font = '12px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
    context.fillStyle = tint("--faint"); context.textBaseline = "middle"; context.textAlign = "right";
    if (data.axes[0].length) context.fillText(`${axisWords(data.axes[0])} →`, width - 12, height - 13);
    if (data.axes[1].length) { context.save(); context.translate(13, 12); context.rotate(-Math.PI / 2); context.fillText(`${axisWords(data.axes[1])} →`, 0, 0); context.restore(); }
  };
  let asked = false;
  const draw = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; paint(); });
  };
  const paint = () => {
    const ratio = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
    if (!box.width) return;
    if (canvas.width !== Math.round(box.width * ratio) || canvas.height !== Math.round(box.height * ratio)) {
      canvas.width = Math.round(box.width * ratio); canvas.height = Math.round(box.height * ratio);
      width = box.width; height = box.height; fit();
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    sizesNow = clusterSizes(); project(); drawAxes(); drawEdges(); drawTasks(); drawLabels();
  };
  const taskAt = (x, y) => {
    let best = null, distance = (radius + 6) ** 2;
    points.forEach(([a, b], i) => { const d = (a - x) ** 2 + (b - y) ** 2; if (d < distance) { distance = d; best = i; } });
    return best;
  };
  const edgeAt = (x, y) => {
    let best = null, distance = 25;
    for (const edge of shownEdges) {
      const [a, b] = [points[edge[0]], points[edge[1]]], dx = b[0] - a[0], dy = b[1] - a[1];
      const t = Math.max(0, Math.min(1, ((x - a[0]) * dx + (y - a[1]) * dy) / (dx * dx + dy * dy || 1)));
      const d = (a[0] + t * dx - x) ** 2 + (a[1] + t * dy - y) ** 2;
      if (d < distance) { distance = d; best = edge; }
    }
    return best;
  };
  const showTip = (text, x, y) => {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.min(x + 14, width - tip.offsetWidth - 6)}px`;
    tip.style.top = `${Math.max(6, Math.min(y + 14, height - tip.offsetHeight - 6))}px`;
  };
  const taskTip = (i) => {
    const task = tasks[i], lines = [task.label, count(neighbours[i].length, "link")];
    if (task.rows !== null) lines[1] += ` · ${count(task.rows, "row")}`;
    if (task.gain !== null) lines.push(`gain ${percent(task.gain)}`);
    return lines.join("\n");
  };
  let drag = null;
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); drag = { from: at(event), view: { ...state.view }, moved: false }; });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (drag) {
      if (Math.hypot(x - drag.from[0], y - drag.from[1]) > 4) drag.moved = true;
      if (drag.moved) { state.view.x = drag.view.x + x - drag.from[0]; state.view.y = drag.view.y + y - drag.from[1]; showTip(""); draw(); }
      return;
    }
    const task = taskAt(x, y), edge = task === null ? edgeAt(x, y) : null;
    canvas.style.cursor = task !== null || edge ? "pointer" : "grab";
    if (task !== state.hover || edge !== state.hoverEdge) { state.hover = task; state.hoverEdge = edge; draw(); }
    showTip(task !== null ? taskTip(task) : edge ? `${tasks[edge[0]].label} – ${tasks[edge[1]].label}\nweight ${number(edge[2], 2)}` : "", x, y);
  });
  canvas.addEventListener("pointerup", (event) => {
    const moved = drag && drag.moved, [x, y] = at(event);
    drag = null;
    if (moved) return;
    const task = taskAt(x, y);
    if (task !== null) selectTask(task); else { const edge = edgeAt(x, y); if (edge) selectEdge(edge); else clear(); }
  });
  canvas.addEventListener("pointerleave", () => { state.hover = state.hoverEdge = null; showTip(""); draw(); });
  const zoom = (factor, x = width / 2, y = height / 2) => {
    const view = state.view, scale = Math.max(view.fitted * 0.5, Math.min(view.fitted * 40, view.scale * factor)), real = scale / view.scale;
    view.x = x + (view.x - x) * real; view.y = y + (view.y - y) * real; view.scale = scale; draw();
  };
  canvas.addEventListener("wheel", (event) => { if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return; event.preventDefault(); zoom(Math.exp(-event.deltaY * 0.0015), ...at(event)); }, { passive: false });
  byId("zoom-in").addEventListener("click", () => zoom(1.5)); byId("zoom-out").addEventListener("click", () => zoom(1 / 1.5)); byId("zoom-fit").addEventListener("click", () => { fit(); draw(); });
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { clear(); state.hover = null; draw(); return; }
    if (event.key === "Enter" && state.hover !== null) { selectTask(state.hover); return; }
    if (event.key === "+" || event.key === "=") zoom(1.3); else if (event.key === "-") zoom(1 / 1.3);
    const way = arrows[event.key];
    if (!way) return;
    event.preventDefault();
    const from = state.hover ?? state.task;
    if (from === null) { state.hover = 0; draw(); return; }
    let best = null, cost = Infinity;
    points.forEach(([x, y], i) => {
      const along = (x - points[from][0]) * way[0] + (y - points[from][1]) * way[1], aside = Math.abs((x - points[from][0]) * way[1]) + Math.abs((y - points[from][1]) * way[0]);
      if (along > 1 && along + 2 * aside < cost) { cost = along + 2 * aside; best = i; }
    });
    if (best !== null) { state.hover = best; draw(); }
  });

  // ------------------------------------------------------------------ the side panel

  const panel = byId("panel");
  const swatch = (i) => element("span", { class: "swatch", style: `background:${colourOf(i)}` });
  const linkButton = (i, weight, action, text) => element("button", { type: "button", onclick: action }, swatch(i), element("span", { class: "label" }, text ?? tasks[i].label),
    element("span", { class: "meter" }, element("i", { style: `width:${Math.round(100 * weight)}%` })), element("span", { class: "value" }, weight.toFixed(2)));
  const listOf = (buttons, most, rest) => {
    const list = element("ul", { class: "links" });
    buttons.slice(0, most).forEach((button) => list.append(element("li", {}, button)));
    if (buttons.length > most) list.append(element("li", { class: "quiet" }, `and ${buttons.length - most} ${rest}`));
    return list;
  };
  const tableOf = (head, rows) => element("table", {}, element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((text, k) => (k ? element("td", {}, text) : element("th", { scope: "row", title: text }, text)))))));
  const levelTitle = (level) => ({ pooled: "One model for all", hub: "Common model", intercepts: "Common slopes", independent: "Separate models" }[level.name] || `Graph, ${links(level.n_edges)}`);
  const showPanel = () => {
    panel.replaceChildren(...(state.task !== null ? taskPanel(state.task) : state.edge ? edgePanel(state.edge) : overview()));
  };
  const gainList = (list) => listOf(list.map((i) => {
    const button = linkButton(i, Math.min(Math.abs(tasks[i].gain) / gainBound, 1), () => selectTask(i));
    button.querySelector(".value").textContent = percent(tasks[i].gain); return button;
  }), list.length, "more");
  const membersOf = (c) => tasks.map((_, i) => i).filter((i) => stop().clusters[i] === c).sort((a, b) => rank[a] - rank[b]);
  const namesOf = (members) => members.slice(0, 4).map((i) => cut(tasks[i].label, 16)).join(", ") + (members.length > 4 ? ` and ${members.length - 4} more` : "");
  // Coefficients whose mean over a cluster is far from the mean over all tasks; first those that change the target most.
  const traitsOf = (members) => features.map((_, k) => [k, members.reduce((sum, i) => sum + tasks[i].coefficients[k], 0) / members.length - means[k]])
    .filter(([k, gap]) => Math.abs(gap) > 0.7 * spreads[k]).sort((a, b) => Math.abs(b[1]) * sharing[b[0]].unit - Math.abs(a[1]) * sharing[a[0]].unit)
    .slice(0, 2).map(([k, gap]) => `${gap > 0 ? "higher" : "lower"} ${cut(features[k], 16)}`).join(", ");
  const clusterButton = (c, size, largest) => {
    const members = membersOf(c), button = linkButton(members[0], size / largest, () => selectTask(members[0]), `Cluster ${c + 1}`), traits = traitsOf(members);
    button.querySelector(".value").textContent = size;
    if (state.colour === "cluster") button.querySelector(".swatch").style.cssText = `background:${clusterColour(c)};border-radius:${radii[markOf(c)]}`;
    button.append(element("span", { class: "about" }, `${namesOf(members)}${traits ? ` · ${traits}` : ""}`));
    return button;
  };
  const weightsVary = (edges) => edges.some((edge) => edge[2] < edges[0][2] - 1e-6 || edge[2] > edges[0][2] + 1e-6);
  const overview = () => {
    const linked = shownEdges.length > 0;
    const parts = [element("h3", { class: "name" }, "Overview"), element("p", {}, linked ? "Choose a task or a link to see what is behind it." : "Choose a task to see its model and its errors.")];
    if (!linked) parts.push(element("p", {}, emptyWords()));
    if (state.colour === "gain" && gains.length) {
      parts.push(element("h4", {}, `Error against ${{ pooled: "one model for all", hub: "the common model", intercepts: "common slopes", independent: "separate models" }[data.verdict.against] || "the best simple model"}`), element("div", { class: "scale" }), element("div", { class: "ends" }, element("span", {}, `${percent(gainBound).slice(1)} worse`), element("span", {}, `${percent(gainBound).slice(1)} better`)));
      const sorted = tasks.map((_, i) => i).filter((i) => tasks[i].gain !== null).sort((a, b) => tasks[b].gain - tasks[a].gain);
      parts.push(element("h4", {}, "Tasks that gain most"), gainList(sorted.slice(0, 6)), element("h4", {}, "Tasks that gain least"), gainList(sorted.slice(-6).reverse()));
      return parts;
    }
    if (!shownEdges.length) return parts;
    const found = clusterSizes().map((size, c) => [c, size]).filter(([, size]) => size > 1);
    if (found.length > 1) {
      parts.push(element("h4", {}, "Clusters"), listOf(found.slice(0, 8).map(([c, size]) => clusterButton(c, size, found[0][1])), 8, "more"));
      if (found.length > 8) parts.push(element("p", { class: "quiet" }, `and ${found.length - 8} smaller`));
    }
    if (!weightsVary(shownEdges)) return parts;
    const heaviest = [...shownEdges].sort((a, b) => b[2] - a[2]).slice(0, 8);
    parts.push(element("h4", {}, "Strongest links"), listOf(heaviest.map((edge) => linkButton(edge[0], edge[2], () => selectEdge(edge), `${cut(tasks[edge[0]].label, 14)} – ${cut(tasks[edge[1]].label, 14)}`)), 8, "more"));
    return parts;
  };
  const featureOrder = (distance) => features.map((_, k) => k).sort((a, b) => distance(b) - distance(a));
  const taskPanel = (i) => {
    const task = tasks[i], facts = [];
    if (task.rows !== null) facts.push(count(task.rows, "row"));
    facts.push(sizesNow[stop().clusters[i]] > 1 ? `cluster ${stop().clusters[i] + 1}` : "in no cluster");
    if (task.gain !== null) facts.push(`gain ${percent(task.gain)}`);
    const parts = [element("h3", { class: "name" }, task.label), element("p", {}, facts.join(" · "))];
    const far = featureOrder((k) => Math.abs(task.coefficients[k] - sharing[k].common) / sizes[k]);
    if (neighbours[i].length) parts.push(element("h4", {}, `Linked to ${count(neighbours[i].length, "task")}`), listOf(neighbours[i].map(([j, weight, edge]) => linkButton(j, weight, () => selectEdge(edge))), 10, "more"));
    else parts.push(element("p", {}, shownEdges.length ? "Linked to no other task at this level: it follows the common model and its own rows." : "No links at this level."));
    parts.push(element("h4", {}, "Model, most particular first"), tableOf(["", "here", "common"], far.slice(0, 14).map((k) => [features[k], fixed(task.coefficients[k], sizes[k]), fixed(sharing[k].common, sizes[k])])));
    if (task.errors) parts.push(element("h4", {}, "Error on rows not seen"), tableOf(["", "error"], levels.map((level, k) => [levelTitle(level) + (level.chosen ? " ✓" : ""), number(task.errors[k])])));
    return parts;
  };
  const edgePanel = (edge) => {
    const [i, j, weight] = edge, [a, b] = [tasks[i], tasks[j]];
    const gap = (k) => Math.abs(a.coefficients[k] - b.coefficients[k]) / sizes[k];
    const varying = featureOrder(gap).filter((k) => spreads[k] > 0);
    const parts = [element("h3", { class: "name" }, `${a.label} – ${b.label}`), element("p", {}, `Weight ${weight.toFixed(2)} on a scale from 0 to 1, set by the strongest links of both.`)];
    const common = neighbours[i].map((e) => e[0]).filter((t) => neighbours[j].some((e) => e[0] === t));
    if (varying.length > 1) {
      const alike = varying.slice(-Math.min(2, Math.floor(varying.length / 2))).reverse().map((k) => features[k]).join(" and ");
      parts.push(element("p", {}, `Closest in ${alike}; furthest apart in ${features[varying[0]]} (${number(gap(varying[0]), 2)} times the spread over all tasks). ${common.length ? `They share ${count(common.length, "neighbour")}.` : "They share no neighbour."}`));
    }
    parts.push(element("h4", {}, "Both models"), tableOf(["", cut(a.label, 9), cut(b.label, 9), "Δ"], featureOrder(gap).slice(0, 16).map((k) => [features[k], fixed(a.coefficients[k], sizes[k]), fixed(b.coefficients[k], sizes[k]), fixed(a.coefficients[k] - b.coefficients[k], sizes[k])])));
    parts.push(element("h4", {}, "Go to"), listOf([i, j].map((t) => linkButton(t, weight, () => selectTask(t))), 2, ""));
    return parts;
  };
  const emptyWords = () => {
    if (n === 1) return "There is one task, so there is nothing to link.";
    if (data.edges.length) return "No links at this level. Move the slider to see denser graphs.";
    const reason = data.verdict.kind === "independent" ? "No links: the tasks do best each by itself." : "No links: beyond the common model, links did not help.";
    return ordered.length > 1 ? `${reason} The slider shows the graphs that were tried.` : reason;
  };

  // ------------------------------------------------------------------ choosing

  const refresh = () => { showPanel(); markRow(); drawStrips(); draw(); };
  const selectTask = (i) => { state.task = i; state.edge = null; state.hover = null; refresh(); panel.scrollTop = 0; };
  const selectEdge = (edge) => { state.edge = edge; state.task = null; refresh(); panel.scrollTop = 0; };
  const clear = () => { state.task = state.edge = null; refresh(); };

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

  const level = byId("level"), weight = byId("weight");
  const setStop = (k) => {
    state.stop = k; level.value = k;
    if (state.edge) state.edge = null;
    collect(); sizesNow = clusterSizes();
    const now = stop();
    const text = `${links(shownEdges.length)}${now.index === chosenLevel ? " · chosen" : ""}`;
    byId("level-text").textContent = text;
    level.setAttribute("aria-valuetext", text);
    byId("weight-text").textContent = number(state.least, 2);
    byId("weight-row").style.visibility = now.edges.length && weightsVary(now.edges) ? "" : "hidden";
    canvas.dataset.edges = shownEdges.length;
    const outside = onMap ? places.filter((p) => p[0] < low[0] || p[1] < low[1] || p[0] > high[0] || p[1] > high[1]).length : 0;
    byId("hint").textContent = onMap ? `Each task is drawn where it lies.${outside ? ` Zoom out for ${count(outside, "task")} farther away.` : ""} Drag to move, Ctrl and wheel to zoom.` : shownEdges.length ? "Drag to move, Ctrl and wheel to zoom; arrow keys go from task to task." : data.edges.length ? emptyWords() : `No links. ${data.axes.length ? "Near means alike: the map shows the two directions in which the models differ most." : "Arrow keys go from task to task."}`;
    refresh();
  };
  level.max = ordered.length - 1;
  level.addEventListener("input", () => setStop(Number(level.value)));
  weight.addEventListener("input", () => { state.least = Number(weight.value); setStop(state.stop); });
  if (ordered.length < 2) byId("level-row").style.display = "none";
  if (!ordered.some((stop) => stop.edges.length && weightsVary(stop.edges))) byId("weight-row").style.display = "none";
  if (!ordered.some((stop) => stop.edges.length)) document.querySelector(".sliders").style.display = "none";
  if (gains.length && data.placed_by === "models") { state.colour = "gain"; document.querySelector('#colour input[value="gain"]').checked = true; }
  byId("colour").addEventListener("change", (event) => { state.colour = event.target.value; refresh(); });
  if (!gains.length) byId("colour").style.display = "none";

  // ------------------------------------------------------------------ accuracy along the path

  // On a narrow page: a row per level, errors from left to right.
  const pathRows = (known, W) => {
    const left = Math.min(150, 0.42 * W), right = 66, step = 30, H = step * known.length;
    const ends = known.flatMap(([entry]) => [entry.error - (entry.standard_error || 0), entry.error + (entry.standard_error || 0)]);
    const [least, most] = [Math.min(...ends), Math.max(...ends)], x = (value) => left + 8 + (W - left - right - 16) * (value - least) / (most - least || 1);
    const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Error of every level" });
    const finest = Math.min(...known.map(([entry]) => entry.standard_error || entry.error)) || 1;
    known.forEach(([entry, k], place) => {
      const y = step * (place + 0.5), spread = entry.standard_error || 0, chosen = k === chosenLevel;
      const simple = ["pooled", "intercepts", "hub", "independent"].includes(entry.name);
      svg.append(drawn("line", { class: "grid", x1: left, x2: W - right, y1: y, y2: y }), drawn("line", { class: "bar-line", x1: x(entry.error - spread), x2: x(entry.error + spread), y1: y, y2: y }),
        drawn("circle", { class: `dot${simple ? "" : " graph"}`, cx: x(entry.error), cy: y, r: 5 }), drawn("text", { class: chosen ? "strong" : "", x: 0, y: y + 4 }, levelTitle(entry).replace(" for all", "") + (chosen ? " ✓" : "")),
        drawn("text", { class: chosen ? "strong" : "", x: W, y: y + 4, "text-anchor": "end" }, fixed(entry.error, finest)));
      if (chosen) svg.append(drawn("circle", { class: "ring", cx: x(entry.error), cy: y, r: 9 }));
    });
    return svg;
  };
  const drawPath = () => {
    const box = byId("path-chart"), known = levels.map((entry, k) => [entry, k]).filter(([entry]) => entry.error !== null && entry.error !== undefined);
    if (!known.length) { byId("path").style.display = "none"; return; }
    const W = Math.max(260, box.clientWidth - 40);
    if (W < 105 * known.length) { box.replaceChildren(pathRows(known, W)); return; }
    const H = 250, left = 66, right = 20, top = 16, bottom = 46;
    const ends = known.flatMap(([entry]) => [entry.error - (entry.standard_error || 0), entry.error + (entry.standard_error || 0)]);
    let [least, most] = [Math.min(...ends), Math.max(...ends)];
    const pad = 0.1 * (most - least || most || 1); least -= pad; most += pad;
    const x = (k) => left + (W - left - right) * (k + 0.5) / known.length, y = (value) => top + (H - top - bottom) * (most - value) / (most - least);
    const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Error of every level" });
    const rough = (most - least) / 4, unit = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough);
    for (let value = Math.ceil(least / step) * step; value <= most; value += step) {
      svg.append(drawn("line", { class: "grid", x1: left, x2: W - right, y1: y(value), y2: y(value) }), drawn("text", { x: left - 12, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(Math.max(0, -Math.floor(Math.log10(step))))));
    }
    const finest = Math.min(...known.map(([entry]) => entry.standard_error || entry.error)) || 1;
    const best = known.find(([, k]) => k === chosenLevel);
    if (best) svg.append(drawn("line", { class: "base", x1: left, x2: W - right, y1: y(best[0].error), y2: y(best[0].error) }));
    known.forEach(([entry, k], place) => {
      const simple = ["pooled", "intercepts", "hub", "independent"].includes(entry.name), chosen = k === chosenLevel, spread = entry.standard_error || 0;
      const group = drawn("g", { tabindex: 0, role: "button", "aria-label": `${levelTitle(entry)}: error ${number(entry.error, 4)} ± ${number(spread, 2)}${chosen ? ", chosen" : ""}` });
      group.append(drawn("title", {}, `${levelTitle(entry)}\nerror ${number(entry.error, 4)} ± ${number(spread, 2)}`), drawn("rect", { x: x(place) - 30, y: top, width: 60, height: H - top - bottom, fill: "transparent" }),
        drawn("line", { class: "bar-line", x1: x(place), x2: x(place), y1: y(entry.error - spread), y2: y(entry.error + spread) }), drawn("circle", { class: `dot${simple ? "" : " graph"}`, cx: x(place), cy: y(entry.error), r: 5 }));
      if (chosen) group.append(drawn("circle", { class: "ring", cx: x(place), cy: y(entry.error), r: 10 }));
      group.append(drawn("text", { class: chosen ? "strong" : "", x: x(place), y: H - bottom + 22, "text-anchor": "middle" }, simple ? { pooled: "One model", intercepts: "Common slopes", hub: "Common model", independent: "Separate models" }[entry.name] : `${W < 140 * known.length ? "" : "Graph, "}${links(entry.n_edges)}`));
      group.append(drawn("text", { class: chosen ? "strong" : "", x: x(place), y: H - bottom + 39, "text-anchor": "middle" }, fixed(entry.error, finest) + (chosen ? " · chosen" : "")));
      const open = () => { const place = ordered.findIndex((other) => other.index === k); if (place >= 0) setStop(place); };
      group.addEventListener("click", open); group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } });
      svg.append(group);
    });
    box.replaceChildren(svg);
  };

  // ------------------------------------------------------------------ what is shared

  const strips = [];
  const buildSharing = () => {
    const list = features.map((_, k) => k).sort((a, b) => (sharing[b].share ?? -1) - (sharing[a].share ?? -1));
    byId("sharing-chart").replaceChildren(...list.map((k) => {
      const entry = sharing[k], strip = element("canvas", { role: "img", "aria-label": `Coefficients of ${features[k]}: common ${number(entry.common)}, spread ${number(entry.spread)}` });
      strips.push([k, strip]);
      const gauge = element("span", { class: "gauge" });
      if (entry.share !== null) gauge.append(element("i", {}, element("b", { style: `width:${Math.round(100 * entry.share)}%` })), element("span", {}, `${entry.word}, ${Math.round(100 * entry.share)} %`));
      return element("div", { class: "share-row" }, element("span", { class: "label", title: features[k] }, features[k]), gauge, strip, element("span", { class: "value", title: "common model ± standard deviation over tasks" }, `${fixed(entry.common, sizes[k])} ± ${fixed(entry.spread, sizes[k])}`));
    }));
  };
  const drawStrips = () => {
    const dot = tint("--accent"), ink = tint("--ink"), rule = tint("--rule"), ratio = devicePixelRatio || 1;
    const chosen = state.task !== null ? [state.task] : state.edge ? state.edge.slice(0, 2) : [];
    for (const [k, strip] of strips) {
      const wide = strip.clientWidth, tall = 30;
      if (!wide) continue;
      strip.width = wide * ratio; strip.height = tall * ratio;
      const pen = strip.getContext("2d"); pen.scale(ratio, ratio);
      const values = column(k), all = [...values, sharing[k].common];
      const middle = sharing[k].common, reach = Math.max(...all.map((value) => Math.abs(value - middle))) || 1;
      const x = (value) => wide / 2 + (value - middle) / reach * (wide / 2 - 8);
      pen.fillStyle = rule; pen.fillRect(0, tall / 2 - 0.5, wide, 1);
      pen.fillStyle = dot; pen.globalAlpha = Math.max(0.1, Math.min(0.55, 22 / n + 0.12));
      values.forEach((value, i) => { pen.beginPath(); pen.arc(x(value), tall / 2 + ((i * 0.618) % 1 - 0.5) * 12, n > 400 ? 2 : 3.2, 0, 6.2832); pen.fill(); });
      pen.globalAlpha = 1; pen.fillStyle = ink; pen.fillRect(x(middle) - 0.75, 3, 1.5, tall - 6);
      pen.fillStyle = tint("--bad"); chosen.forEach((i) => { pen.beginPath(); pen.arc(x(values[i]), tall / 2, 5, 0, 6.2832); pen.fill(); });
    }
  };

  // ------------------------------------------------------------------ the table

  const columns = [{ name: "Task", get: (i) => tasks[i].label }];
  if (tasks.some((task) => task.rows !== null)) columns.push({ name: "Rows", get: (i) => tasks[i].rows, show: (v) => number(v, 6) });
  if (data.edges.length) columns.push({ name: "Cluster", get: (i) => tasks[i].cluster + 1, show: (v, i) => v, swatch: true }, { name: "Links", get: (i) => tasks[i].links, show: (v) => String(v) });
  if (tasks.some((task) => task.errors) && chosenLevel !== null) columns.push({ name: "Error", get: (i) => tasks[i].errors?.[chosenLevel] ?? null, show: (v) => fixed(v, (levels[chosenLevel].error || 1) / 30) });
  if (gains.length) columns.push({ name: "Gain", get: (i) => tasks[i].gain, show: percent, gain: true });
  features.forEach((name, k) => columns.push({ name, get: (i) => tasks[i].coefficients[k], show: (v) => fixed(v, sizes[k]), feature: k }));
  const table = { sort: 0, down: false, limit: 100 };
  const head = document.querySelector("#table thead"), body = document.querySelector("#table tbody");
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
  };
  const finalSizes = data.graph.cluster_sizes;
  const cellOf = (spec, i) => {
    const value = spec.get(i), cell = element("td", {});
    if (spec.swatch) { const c = tasks[i].cluster, big = c < finalSizes.length; cell.append(element("span", { class: "swatch", style: `background:${big ? palette[c % palette.length] : "#a3abb3"};border-radius:${big ? radii[markOf(c)] : "50%"}` }), big ? String(value) : "–"); return cell; }
    cell.textContent = spec.show ? spec.show(value, i) : value;
    if (spec === columns[0]) cell.title = value;
    if (spec.gain && value !== null && !isZero(value)) cell.className = value > 0 ? "gain-up" : "gain-down";
    if (spec.feature !== undefined && spreads[spec.feature] > 0) {
      const z = (value - sharing[spec.feature].common) / spreads[spec.feature], strength = Math.min(Math.abs(z) / 3, 1) * 34;
      if (strength > 3) cell.style.background = `color-mix(in srgb, var(${z > 0 ? "--good" : "--bad"}) ${strength.toFixed(0)}%, transparent)`;
    }
    return cell;
  };
  let rowOf = new Map();
  const showRows = (limit = table.limit) => {
    const wanted = byId("filter").value.trim().toLowerCase();
    const list = tasks.map((_, i) => i).filter((i) => !wanted || tasks[i].label.toLowerCase().includes(wanted));
    const { get } = columns[table.sort], sign = table.down ? -1 : 1;
    list.sort((a, b) => { const [u, v] = [get(a), get(b)]; return u === null || v === null ? compare(u, v) : sign * compare(u, v) || a - b; });
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
  const openRow = (event) => { const row = event.target.closest("tr[data-task]"); if (!row) return; const i = Number(row.dataset.task); bringIntoView(i); selectTask(i); };
  body.addEventListener("click", (event) => { openRow(event); });
  body.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { openRow(event); byId("graph").scrollIntoView(); }
    const row = event.target.closest("tr");
    if (event.key === "ArrowDown" && row.nextElementSibling) { event.preventDefault(); row.nextElementSibling.focus(); }
    if (event.key === "ArrowUp" && row.previousElementSibling) { event.preventDefault(); row.previousElementSibling.focus(); }
  });
  byId("filter").addEventListener("input", () => showRows());
  byId("more").addEventListener("click", () => { table.limit += 400; showRows(); });

  // ------------------------------------------------------------------ start

  function redrawAll() { showPanel(); drawStrips(); paint(); }
  root.dataset.theme = currentTheme();
  buildHead(); buildSharing(); drawPath(); collect(); sizesNow = clusterSizes(); showRows(); paint(); setStop(state.stop);
  new ResizeObserver(() => { draw(); drawStrips(); }).observe(canvas);
  let pathWidth = byId("path-chart").clientWidth;
  new ResizeObserver(() => { const now = byId("path-chart").clientWidth; if (now !== pathWidth) { pathWidth = now; drawPath(); } }).observe(byId("path-chart"));
  document.body.dataset.ready = "yes";
  // For tests and for those who look under the hood: where tasks are drawn, in pixels of the canvas.
  window.ggmtlReport = { pointOf: (i) => { project(); return points[i]; }, edges: () => shownEdges, state };
})();
