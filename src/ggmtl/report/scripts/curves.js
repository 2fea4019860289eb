// ------------------------------------------------------------------ effects that bend

const curves = data.curves, charts = [];
const BAND = 1.96;
// A curve as points [x, y]; that of a task only where most of its rows lie.
const lineOf = (curve, at) => {
  const { grid } = curve, [from, to] = curve.ranges[at];
  const line = curve.basis.map((row) => row.reduce((sum, value, k) => sum + value * curve.coefficients[at][k], 0));
  const between = (x) => { const k = Math.max(1, grid.findIndex((value) => value >= x)), t = (x - grid[k - 1]) / (grid[k] - grid[k - 1] || 1); return [x, line[k - 1] + t * (line[k] - line[k - 1])]; };
  return [between(from), ...grid.map((x, k) => [x, line[k]]).filter(([x]) => x > from && x < to), between(to)];
};
const tickText = (value, step) => {
  if (Math.abs(value) >= 1e5) return minus(value.toLocaleString("en", { notation: "compact" }));
  return step < 1e-4 && value ? number(value) : minus(value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))).replace(/^-(0(\.0*)?)$/, "$1"));
};
// Round numbers between two ends, about so many.
const ticksOf = (least, most, wanted) => {
  const raw = (most - least) / wanted || 1, size = 10 ** Math.floor(Math.log10(raw)), step = size * [1, 2, 5, 10].find((factor) => factor * size >= 0.7 * raw);
  const found = [];
  for (let k = Math.ceil(least / step); k * step <= most + 1e-9 * step; k++) found.push(k * step);
  return [found, step];
};
// Most lines and the band are inside; a few far lines may leave the frame, so that the rest can be seen.
const rangeOf = (curve, lines, whole) => {
  const ends = lines.flat().map((point) => point[1]).sort((a, b) => a - b), cutoff = whole ? 0 : Math.floor(0.005 * ends.length);
  return [Math.min(ends[cutoff], ...curve.common), Math.max(ends[ends.length - 1 - cutoff], ...curve.common)];
};
const addChart = (curve, lines, own, box) => charts.push({ curve, lines, own, box, range: rangeOf(curve, own ? [own] : lines, own !== null) });
const drawChart = ({ curve, lines, own, box, range }) => {
  const ratio = devicePixelRatio || 1, wide = box.clientWidth, tall = box.clientHeight, ink = tint("--accent");
  if (!wide) return;
  box.width = wide * ratio; box.height = tall * ratio;
  const pen = box.getContext("2d"), [low, high] = range, { grid } = curve, first = grid[0], end = grid[grid.length - 1];
  pen.scale(ratio, ratio);
  pen.font = '11px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'; pen.textBaseline = "middle";
  const [rows, up] = ticksOf(low, high, own ? 2 : 4), left = Math.max(...rows.map((value) => pen.measureText(tickText(value, up)).width)) + 8, foot = tall - 18;
  const x = (value) => left + (wide - left - 4) * (value - first) / (end - first || 1), y = (value) => foot - 4 - (foot - 10) * (value - low) / (high - low || 1);
  pen.fillStyle = tint("--faint"); pen.strokeStyle = tint("--rule"); pen.lineWidth = 1;
  pen.textAlign = "right";
  rows.forEach((value) => { pen.fillText(tickText(value, up), left - 6, y(value)); pen.beginPath(); pen.moveTo(left, y(value)); pen.lineTo(wide - 4, y(value)); pen.stroke(); });
  const [columns, across] = ticksOf(first, end, Math.max(2, Math.floor(wide / 90)));
  columns.forEach((value) => { const text = tickText(value, across), half = pen.measureText(text).width / 2; pen.textAlign = "center"; pen.fillText(text, Math.max(left + half, Math.min(x(value), wide - 4 - half)), tall - 8); });
  pen.save(); pen.beginPath(); pen.rect(left, 2, wide - left - 3, foot - 2); pen.clip();
  const trace = (line) => { pen.beginPath(); line.forEach(([across, up], k) => pen[k ? "lineTo" : "moveTo"](x(across), y(up))); pen.stroke(); };
  if (!own) {
    pen.strokeStyle = tint("--faint"); pen.lineWidth = 0.7; pen.globalAlpha = Math.max(0.12, Math.min(0.7, 12 / lines.length));
    lines.forEach(trace);
    pen.globalAlpha = 0.22; pen.fillStyle = ink;
    if (curve.error) { pen.beginPath(); curve.common.forEach((value, k) => pen.lineTo(x(grid[k]), y(value + BAND * curve.error[k]))); for (let k = grid.length - 1; k >= 0; k--) pen.lineTo(x(grid[k]), y(curve.common[k] - BAND * curve.error[k])); pen.fill(); }
    pen.globalAlpha = 1;
  }
  pen.strokeStyle = ink; pen.lineWidth = own ? 1.4 : 2.4; trace(curve.common.map((value, k) => [grid[k], value]));
  const strong = own ? [own] : [state.task, ...(state.edge || []).slice(0, 2)].map((i) => lines[curves.tasks.indexOf(i)]).filter(Boolean);
  pen.strokeStyle = tint("--bad"); pen.lineWidth = 2.2; strong.forEach(trace);
  pen.restore();
};
const drawCurves = () => charts.forEach(drawChart);
const buildCurves = () => {
  if (!curves) return;
  byId("curve-charts").replaceChildren(...curves.features.map((curve) => {
    const ends = `${number(curve.common[0])} at ${number(curve.grid[0])} to ${number(curve.common[curve.common.length - 1])} at ${number(curve.grid[curve.grid.length - 1])}`;
    const box = element("canvas", { role: "img", "aria-label": `Shared effect of ${curve.feature}: from ${ends}` });
    addChart(curve, curves.tasks.map((_, at) => lineOf(curve, at)), null, box);
    return element("figure", {}, element("span", { class: "name", title: curve.feature }, curve.feature), box);
  }));
  byId("unusual-charts")?.replaceChildren(...curves.unusual.map((entry) => {
    const box = element("canvas", { "aria-hidden": "true" });
    addChart(entry, [], entry.own.map((value, k) => [entry.grid[k], value]), box);
    return element("button", { type: "button", title: "Show this task", onclick: () => { selectTask(entry.task); byId("graph").scrollIntoView(); } }, element("span", { class: "name" }, tasks[entry.task].label), element("span", { class: "quiet" }, entry.feature), box);
  }));
};
