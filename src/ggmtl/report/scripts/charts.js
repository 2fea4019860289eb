// ------------------------------------------------------------------ errors and shares of the levels

const drawPath = () => {
  const box = byId("path-chart"), known = levels.map((entry, k) => [entry, k]).filter(([entry]) => entry.error !== null && entry.error !== undefined);
  if (!known.length) { byId("path").style.display = "none"; return; }
  const averaged = known.filter(([entry, k]) => entry.weight > 0 && k !== chosenLevel).length > 1;
  const ends = known.flatMap(([entry]) => [entry.error - (entry.standard_error || 0), entry.error + (entry.standard_error || 0)]);
  const [least, most] = [Math.min(...ends), Math.max(...ends)];
  const head = element("div", { class: `level-row head${averaged ? "" : " single"}` }, element("span", {}, "level"), element("span", {}), element("span", { class: "value" }, `held-out ${data.error}`), ...(averaged ? [element("span", {}, "share")] : []));
  const spots = [];
  const rows = known.map(([entry, k]) => {
    const chosen = k === chosenLevel, place = stops.findIndex((other) => other.level === k || (chosen && other.chosen));
    const spot = element("span", { class: "spot" });
    spots.push([spot, entry, chosen]);
    const share = element("span", { class: "gauge" });
    if (averaged && chosen) share.textContent = "the model";
    else if (averaged && entry.weight > 0) share.append(element("i", {}, element("b", { style: `width:${Math.round(100 * entry.weight)}%` })), element("span", {}, `${Math.round(100 * entry.weight)} %`));
    const parts = [element("span", { class: "label" }, entry.title + (chosen && !averaged ? " ✓" : "")), spot, element("span", { class: "value" }, entry.text), ...(averaged ? [share] : [])];
    const look = `level-row${chosen ? " chosen" : ""}${averaged ? "" : " single"}`;
    if (place < 0 || !anyLinks) return element("div", { class: look }, ...parts);
    return element("button", { type: "button", class: look, title: "Show this graph", onclick: () => { setStop(place); byId("graph").scrollIntoView(); } }, ...parts);
  });
  box.replaceChildren(head, ...rows);
  const best = known.find(([, k]) => k === chosenLevel);
  spots.forEach(([spot, entry, chosen]) => {
    const W = Math.max(80, spot.clientWidth), H = 26, x = (value) => 10 + (W - 20) * (value - least) / (most - least || 1), spread = entry.standard_error || 0;
    const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, "aria-hidden": "true" });
    svg.append(drawn("line", { class: "grid", x1: 0, x2: W, y1: H / 2, y2: H / 2 }));
    if (best) svg.append(drawn("line", { class: "base", x1: x(best[0].error), x2: x(best[0].error), y1: 0, y2: H }));
    svg.append(drawn("line", { class: "bar-line", x1: x(entry.error - spread), x2: x(entry.error + spread), y1: H / 2, y2: H / 2 }), drawn("circle", { class: `dot${entry.simple ? "" : " graph"}`, cx: x(entry.error), cy: H / 2, r: 5 }));
    if (chosen) svg.append(drawn("circle", { class: "ring", cx: x(entry.error), cy: H / 2, r: 9 }));
    spot.replaceChildren(svg);
  });
};

// ------------------------------------------------------------------ what is shared

// One scale for all rows: by how much a standard deviation of the feature moves the target.
const effectOf = (k, value) => (value - common[k]) * sharing[k].unit;
const widest = Math.max(...features.map((_, k) => Math.max(...values[k].map((value) => Math.abs(effectOf(k, value)))))) || 1;
// By what one unit more multiplies odds or rate; the intercept is no ratio.
const ratioText = ([value, low, high], k) => {
  const digits = Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(Math.max(high - low, 1e-9)))));
  return hasIntercept && k === last ? "" : `× ${value.toFixed(digits)} (${low.toFixed(digits)}–${high.toFixed(digits)})`;
};
const strips = [];
const buildSharing = () => {
  const list = features.map((_, k) => k).sort((a, b) => (sharing[b].share ?? -1) - (sharing[a].share ?? -1));
  const rows = list.map((k) => {
    const entry = sharing[k], strip = element("canvas", { role: "img", "aria-label": `Coefficients of ${names[k]}: shared model ${number(common[k])}, spread ${number(spreads[k])}` });
    strips.push([k, strip]);
    const gauge = element("span", { class: "gauge" });
    if (entry.share !== null) gauge.append(element("i", {}, element("b", { style: `width:${Math.round(100 * entry.share)}%` })), element("span", {}, `${entry.word === "own" ? "differs" : entry.word}, ${Math.round(100 * entry.share)} %`));
    const value = entry.ratio ? element("span", { class: "value" }, ratioText(entry.ratio, k)) : element("span", { class: "value", title: "shared model ± standard deviation over tasks" }, `${fixed(common[k], sizes[k])} ± ${fixed(spreads[k], sizes[k])}`);
    return element("div", { class: "share-row" }, element("span", { class: "label", title: names[k] }, names[k].replaceAll("_", "_\u200b")), gauge, strip, value);
  });
  const ends = element("span", { class: "ends" }, element("span", {}, minus(`-${number(widest, 2)}`)), element("span", {}, "shared model"), element("span", {}, `+${number(widest, 2)}`));
  byId("sharing-chart").replaceChildren(...rows, element("div", { class: "share-row axis" }, element("span", { class: "label" }, data.target ? `in the log of the ${data.target.ratio}` : "in the target’s units"), element("span", {}), ends, element("span", { class: "value" })));
};
const drawStrips = () => {
  const dot = tint("--accent"), ink = tint("--ink"), rule = tint("--rule"), ratio = devicePixelRatio || 1;
  const chosen = state.task !== null ? [state.task] : state.edge ? state.edge.slice(0, 2) : [];
  for (const [k, strip] of strips) {
    const wide = strip.clientWidth, tall = 30;
    if (!wide) continue;
    strip.width = wide * ratio; strip.height = tall * ratio;
    const pen = strip.getContext("2d"); pen.scale(ratio, ratio);
    const x = (value) => wide / 2 + effectOf(k, value) / widest * (wide / 2 - 8);
    pen.fillStyle = rule; pen.fillRect(0, tall / 2 - 0.5, wide, 1);
    pen.fillStyle = dot; pen.globalAlpha = Math.max(0.1, Math.min(0.55, 22 / n + 0.12));
    values[k].forEach((value, i) => { pen.beginPath(); pen.arc(x(value), tall / 2 + ((i * 0.618) % 1 - 0.5) * 12, n > 400 ? 2 : 3.2, 0, 6.2832); pen.fill(); });
    pen.globalAlpha = 1; pen.fillStyle = ink; pen.fillRect(wide / 2 - 0.75, 3, 1.5, tall - 6);
    pen.fillStyle = tint("--bad"); chosen.forEach((i) => { pen.beginPath(); pen.arc(x(values[k][i]), tall / 2, 5, 0, 6.2832); pen.fill(); });
  }
};
