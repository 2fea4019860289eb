// ------------------------------------------------------------------ downloads, made here without a network

const save = (text, type, name) => {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  document.body.append(link); link.click(); link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
const cellText = (value) => { const text = value === null || value === undefined ? "" : String(value); return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
const csvOf = (rows) => rows.map((row) => `${row.map(cellText).join(",")}\r\n`).join("");
const coefficientRows = () => {
  const errors = data.standard_errors, heads = errors ? features.map((name) => `${name} (standard error)`) : [];
  return [["task", "rows", ...features, ...heads], ...tasks.map((task, i) => [task.label, task.rows, ...task.coefficients, ...(errors ? errors[i] : [])])];
};
const linkRows = () => [["task", "other_task", "weight", "support"], ...stop().edges.map(([i, j, weight, support]) => [tasks[i].label, tasks[j].label, weight, support])];
const outcomeHead = data.target ? ["rate", "observed", "expected", "observed_over_expected", "low", "high"] : [];
const outcomeCells = (task) => (data.target ? [task.rate, task.observed, task.expected, ...task.ratio] : []);
const errorRows = () => [["task", "rows", ...levels.map((level) => level.title), "gain", "gain_standard_error", ...outcomeHead], ...tasks.map((task) => [task.label, task.rows, ...levels.map((_, k) => task.errors?.[k]), task.gain, task.gain_error, ...outcomeCells(task)])];

// The few calls that the drawing makes of a canvas, kept as SVG.
const svgPen = (wide, tall) => {
  const svg = drawn("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${wide} ${tall}`, width: wide, height: tall });
  svg.append(drawn("rect", { width: wide, height: tall, fill: tint("--card") }));
  const at = (value) => Math.round(100 * value) / 100;
  const ink = (name, colour, alpha) => { const parts = /^rgba\((.+), ([\d.e-]+)\)$/.exec(colour); return { [name]: parts ? `rgb(${parts[1]})` : colour, [`${name}-opacity`]: at(alpha * (parts ? Number(parts[2]) : 1)) }; };
  let path = "", moves = "", kept = "";
  const pen = {
    svg, globalAlpha: 1, lineWidth: 1, fillStyle: "#000", strokeStyle: "#000", textAlign: "center",
    beginPath: () => { path = ""; }, closePath: () => { path += "Z"; },
    moveTo: (x, y) => { path += `M${at(x)} ${at(y)}`; }, lineTo: (x, y) => { path += `L${at(x)} ${at(y)}`; },
    rect: (x, y, a, b) => { path += `M${at(x)} ${at(y)}h${at(a)}v${at(b)}h${at(-a)}Z`; },
    arc: (x, y, r) => { path += `M${at(x - r)} ${at(y)}a${at(r)} ${at(r)} 0 1 0 ${at(2 * r)} 0a${at(r)} ${at(r)} 0 1 0 ${at(-2 * r)} 0Z`; },
    fill: () => svg.append(drawn("path", { d: path, ...ink("fill", pen.fillStyle, pen.globalAlpha) })),
    stroke: () => svg.append(drawn("path", { d: path, fill: "none", "stroke-width": pen.lineWidth, "stroke-linecap": "round", ...ink("stroke", pen.strokeStyle, pen.globalAlpha) })),
    write: (text, x, y, look) => svg.append(drawn("text", { x: at(x), y: at(y), "font-family": "sans-serif", "font-size": 12, "dominant-baseline": "central", "text-anchor": pen.textAlign === "right" ? "end" : "middle", ...(moves ? { transform: moves } : {}), ...look }, text)),
    fillText: (text, x, y) => pen.write(text, x, y, { fill: pen.fillStyle }),
    strokeText: (text, x, y) => pen.write(text, x, y, { fill: "none", stroke: pen.strokeStyle, "stroke-width": pen.lineWidth, "stroke-linejoin": "round" }),
    measureText: (text) => { screenPen.font = pen.font; return screenPen.measureText(text); },
    save: () => { kept = moves; }, restore: () => { moves = kept; },
    translate: (x, y) => { moves += `translate(${at(x)} ${at(y)})`; }, rotate: (angle) => { moves += `rotate(${at(angle * 180 / Math.PI)})`; },
  };
  return pen;
};
const pictureText = () => {
  const pen = svgPen(width, height);
  context = pen;
  try { drawPicture(); } finally { context = screenPen; }
  return new XMLSerializer().serializeToString(pen.svg);
};
// What is on the screen, on the ground of the page: the canvas itself is transparent.
const savePixels = () => {
  const copy = element("canvas", { width: canvas.width, height: canvas.height }), pen = copy.getContext("2d");
  pen.fillStyle = tint("--card"); pen.fillRect(0, 0, copy.width, copy.height); pen.drawImage(canvas, 0, 0);
  copy.toBlob((blob) => save(blob, "image/png", "graph.png"));
};
const hasErrors = tasks.some((task) => task.errors), CSV = "CSV file", NOW = "the graph as it is drawn now";
const saves = [
  ["Coefficients", CSV, () => save(csvOf(coefficientRows()), "text/csv", "coefficients.csv"), true],
  ["Links", CSV, () => save(csvOf(linkRows()), "text/csv", "links.csv"), anyLinks],
  ["Errors", CSV, () => save(csvOf(errorRows()), "text/csv", "errors.csv"), hasErrors],
];
const pictures = [
  ["SVG", `SVG file: ${NOW}`, () => save(pictureText(), "image/svg+xml", "graph.svg"), true],
  ["PNG", `PNG file: ${NOW}`, savePixels, true],
];
const offer = (place, list) => byId(place).append("Save ", ...list.filter(([, , , there]) => there).map(([name, title, action]) => element("button", { type: "button", onclick: action, title }, name)));
offer("saves", saves); offer("picture-saves", pictures);
