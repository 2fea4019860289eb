// ------------------------------------------------------------------ the drawing

const canvas = byId("drawing"), screenPen = canvas.getContext("2d"), tip = byId("tip");
let context = screenPen;
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
const isNear = (i) => state.task === i || (state.cluster !== null && stop().clusters[i] === state.cluster) || (state.task !== null && neighbours[state.task].some((entry) => entry[0] === i));
const drawOutlines = () => {
  const { scale, wide, tall, x, y } = state.view;
  context.strokeStyle = tint("--coast"); context.lineWidth = 0.8; context.globalAlpha = 1;
  for (const line of data.outlines) {
    context.beginPath();
    for (let k = 0; k < line.length; k += 2) context[k ? "lineTo" : "moveTo"](x + scale * wide * line[k], y - scale * tall * line[k + 1]);
    context.stroke();
  }
};
const drawEdges = () => {
  const rgb = tint("--edge"), accent = tint("--accent");
  const crowd = Math.min(1, 1.6 * n / Math.max(shownEdges.length, 1)) ** 0.5;
  const focus = state.task !== null;
  context.lineCap = "round";
  for (const edge of shownEdges) {
    const [i, j, weight] = edge, seen = (edge[SUPPORT] ?? 1) / bestSupport;
    const own = focus && (i === state.task || j === state.task);
    const strong = edge === state.edge || edge === state.hoverEdge;
    context.strokeStyle = strong ? accent : `rgba(${rgb}, ${(0.3 + 0.7 * seen) * (own ? 0.75 : (0.12 + 0.42 * weight) * crowd * (focus ? 0.35 : 1))})`;
    context.lineWidth = strong ? 3 : (0.5 + 2.2 * weight) * (n > 300 ? 0.5 : 1) * (own ? 1 : crowd);
    context.beginPath(); context.moveTo(...points[i]); context.lineTo(...points[j]); context.stroke();
  }
};
const mark = (x, y, square) => {
  const r = radius;
  context.beginPath();
  if (square) context.rect(x - 0.85 * r, y - 0.85 * r, 1.7 * r, 1.7 * r);
  else context.arc(x, y, r, 0, 6.2832);
};
const drawTasks = () => {
  const focus = (state.task !== null && neighbours[state.task].length > 0) || state.edge !== null || state.cluster !== null;
  const inEdge = (i) => state.edge !== null && (state.edge[0] === i || state.edge[1] === i);
  const card = tint("--card");
  context.lineWidth = n > 300 ? 0.6 : 1.4;
  for (let i = 0; i < n; i++) {
    const [x, y] = points[i];
    if (x < -20 || y < -20 || x > width + 20 || y > height + 20) continue;
    context.strokeStyle = context.fillStyle = card; context.globalAlpha = 1;
    mark(x, y, state.colour === "cluster" && sizesNow[stop().clusters[i]] > 1 && isSquare(stop().clusters[i])); context.fill();
    context.globalAlpha = focus && !isNear(i) && !inEdge(i) ? 0.4 : 1;
    context.fillStyle = colourOf(i); context.fill(); context.globalAlpha = 1;
    // A ring: not ranked, because too few of its rows were held out.
    if (state.colour === "gain" && tasks[i].gain === null) { context.fillStyle = card; mark(x, y, false); context.fill(); context.strokeStyle = tint("--faint"); }
    context.stroke();
  }
  context.globalAlpha = 1;
  for (const i of [state.hover, state.task]) {
    if (i === null) continue;
    context.strokeStyle = tint("--ink"); context.lineWidth = 2;
    context.beginPath(); context.arc(...points[i], radius + 3, 0, 6.2832); context.stroke();
  }
};
const drawLabels = () => {
  context.font = '12px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
  context.textAlign = "center"; context.textBaseline = "middle"; context.lineJoin = "round";
  const first = [state.task, state.hover, ...(state.edge ? state.edge.slice(0, 2) : []), ...(state.task === null ? [] : neighbours[state.task].map((e) => e[0]))].filter((i) => i !== null);
  const far = state.view.scale < (n > 800 ? 2.5 : 1.8) * state.view.fitted;
  const rest = n > 150 && far && (n > 800 || sizesNow.some((size) => size > 2)) ? [] : tasks.map((_, i) => i).sort((a, b) => neighbours[b].length - neighbours[a].length);
  // The words of the axes stand at the left and below.
  const leftmost = data.axes.length ? 24 : 2, lowest = height - (data.axes.length ? 26 : 8);
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
    const spot = spots.find(([a, b]) => a - half > leftmost && a + half < width - 2 && b > 8 && b < lowest && free([a - half, b - 7, a + half, b + 7])) || (forced && i === first[0] ? [Math.max(half + 2, Math.min(spots[0][0], width - half - 2)), spots[0][1]] : null);
    if (!spot) continue;
    write(text, spot[0], spot[1], half, forced ? tint("--ink") : tint("--soft")); done.add(i);
  }
  if (!rest.length && !onMap) nameClusters();
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
  sizesNow = clusterSizes(); project(); drawPicture();
};
const drawPicture = () => { drawOutlines(); drawAxes(); drawEdges(); drawTasks(); drawLabels(); };
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
  const task = tasks[i], lines = [task.label, links(neighbours[i].length)];
  if (task.rows !== null) lines[1] += ` · ${count(task.rows, "row")}`;
  if (task.gain !== null) lines.push(`gain ${gainText(i)}`);
  if (state.colour !== "gain" && state.colour !== "cluster") { const k = Number(state.colour); lines.push(`${names[k]} ${fixed(values[k][i], sizes[k])}`); }
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
  showTip(task !== null ? taskTip(task) : edge ? `${tasks[edge[0]].label} – ${tasks[edge[1]].label}\n${edgeWords(edge)}` : "", x, y);
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
