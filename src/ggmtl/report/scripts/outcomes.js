// ------------------------------------------------------------------ classes and counts: calibration, sums of the tasks

const rateText = (value) => (value === null ? "–" : data.target.classes ? `${number(100 * value)} %` : number(value));
const outcomeWords = (task) => {
  const [ratio, low, high] = task.ratio, own = `${data.target.classes ? `Share of “${data.target.classes[1]}”` : "Rate"}: ${rateText(task.rate)}.`;
  return ratio === null ? own : `${own} On held-out rows ${number(task.observed)} observed, ${number(task.expected)} expected: ratio ${number(ratio)} (${number(low)}–${number(high)}).`;
};

// Round values for the ends of a scale: powers of ten and their halves and fifths.
const roundValues = (low, high, log) => {
  if (log) {
    const list = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) for (const part of [1, 2, 5]) list.push(part * 10 ** power);
    const inside = list.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    return inside.length > 7 ? inside.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9) : inside;
  }
  const step = [1, 2, 5].map((part) => part * 10 ** Math.floor(Math.log10((high - low) / 4 || 1))).find((size) => (high - low) / size <= 6) || (high - low) / 4;
  const list = [];
  for (let value = Math.ceil(low / step) * step; value <= high + 1e-9 * step; value += step) list.push(Math.abs(value) < 1e-12 ? 0 : value);
  return list;
};

const drawReliability = () => {
  const box = byId("reliability"), groups = data.target.groups, isClass = Boolean(data.target.classes);
  if (!groups.length) { box.replaceChildren(element("p", { class: "quiet" }, "Too few held-out rows for groups.")); return; }
  const W = Math.max(260, box.clientWidth), H = Math.min(320, W), [left, right, top, bottom] = [60, 14, 10, 44];
  const positive = groups.flat().filter((value) => value > 0), log = !isClass || Math.max(...positive) < 0.2;
  const high = Math.max(...positive) * (log ? 1.1 : 1.02), low = log ? Math.max(Math.min(...groups.map((group) => group[0]), ...positive.filter((value) => value > 0)) / 1.1, high / 1e4) : 0;
  const place = (value) => (log ? (Math.log(Math.max(value, low)) - Math.log(low)) / (Math.log(high) - Math.log(low)) : value / high);
  const x = (value) => left + (W - left - right) * place(value), y = (value) => H - bottom - (H - top - bottom) * place(value);
  const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Predicted and observed" });
  for (const value of roundValues(log ? low : 0, high, log)) {
    const text = isClass ? `${number(100 * value)} %` : number(value);
    svg.append(drawn("line", { class: "grid", x1: left, x2: W - right, y1: y(value), y2: y(value) }), drawn("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, text), drawn("text", { class: "tick", x: x(value), y: H - bottom + 20, "text-anchor": "middle" }, text));
  }
  svg.append(drawn("line", { class: "base", x1: x(low), y1: y(low), x2: x(high), y2: y(high) }));
  for (const [predicted, observed, least, most] of groups) {
    svg.append(drawn("line", { class: "bar-line", x1: x(predicted), x2: x(predicted), y1: y(least), y2: y(most) }));
    const dot = drawn("circle", { class: "dot", cx: x(predicted), cy: y(observed), r: 4.5 });
    dot.append(drawn("title", {}, `predicted ${number(predicted)}, observed ${number(observed)} (${number(least)}–${number(most)})`));
    svg.append(dot);
  }
  svg.append(drawn("text", { class: "tick", x: (left + W - right) / 2, y: H - 6, "text-anchor": "middle" }, "predicted"), drawn("text", { class: "tick", x: 12, y: (top + H - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + H - bottom) / 2})` }, "observed"));
  box.replaceChildren(svg);
};

// One thin line per task, sorted; the names are in the titles and in the table.
const drawBalance = () => {
  const box = byId("balance"), list = tasks.map((_, i) => i).filter((i) => tasks[i].ratio[0] !== null).sort((a, b) => tasks[a].ratio[0] - tasks[b].ratio[0]);
  if (!list.length) { box.replaceChildren(element("p", { class: "quiet" }, "No task has held-out rows in which an event is expected.")); return; }
  const W = Math.max(260, box.clientWidth), H = Math.min(320, W), [left, right, top, bottom] = [44, 10, 10, 40];
  const ends = list.flatMap((i) => tasks[i].ratio).filter((value) => value > 0);
  const high = Math.min(Math.max(...ends, 2), 20), low = Math.max(Math.min(...ends, 0.5), 0.05);
  const inside = (value) => Math.min(Math.max(value, low), high);
  const y = (value) => H - bottom - (H - top - bottom) * (Math.log(inside(value)) - Math.log(low)) / (Math.log(high) - Math.log(low)), step = (W - left - right) / list.length;
  const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Observed over expected of every task" });
  for (const value of roundValues(low, high, true)) svg.append(drawn("line", { class: "grid", x1: left, x2: W - right, y1: y(value), y2: y(value) }), drawn("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  svg.append(drawn("line", { class: "base", x1: left, x2: W - right, y1: y(1), y2: y(1) }));
  list.forEach((i, k) => {
    const [ratio, least, most] = tasks[i].ratio, at = left + step * (k + 0.5), apart = least > 1 || most < 1;
    const group = drawn("g", { class: apart ? "apart" : "", style: "cursor:pointer" });
    group.append(drawn("title", {}, `${tasks[i].label}: ${number(ratio)} (${number(least)}–${number(most)})`), drawn("line", { class: "bar-line", x1: at, x2: at, y1: y(least), y2: y(most), style: `stroke-width:${Math.min(3, Math.max(0.7, step / 3))};opacity:${list.length > 60 ? 0.5 : 1}` }), drawn("circle", { class: "dot", cx: at, cy: y(ratio), r: Math.min(4.5, Math.max(1.4, step / 2.5)) }));
    group.addEventListener("click", () => { selectTask(i); byId("graph").scrollIntoView(); });
    svg.append(group);
  });
  svg.append(drawn("text", { class: "tick", x: (left + W - right) / 2, y: H - 10, "text-anchor": "middle" }, `${count(list.length, "task")}, ordered`));
  box.replaceChildren(svg);
};
const drawOutcome = () => { if (data.target) { drawReliability(); drawBalance(); } };
