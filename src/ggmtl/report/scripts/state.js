// ------------------------------------------------------------------ state

const chosenLevel = data.chosen, { levels, stops } = data;
const state = {
  stop: Math.max(0, stops.findIndex((stop) => stop.chosen)),
  least: 0, colour: "cluster", task: null, edge: null, cluster: null, hover: null, hoverEdge: null, view: null,
};
const stop = () => stops[state.stop];
const anyLinks = stops.some((entry) => entry.edges.length > 0);

// An edge is [task, task, weight, share of the folds that found it, where that is known].
const WEIGHT = 2, SUPPORT = 3;
const varies = (edges, place) => edges.some((edge) => edge[place] !== undefined && Math.abs(edge[place] - edges[0][place]) > 1e-6);
// What tells links apart: their support, else their weight; nothing where all are equal.
const rankOf = (edges) => (varies(edges, SUPPORT) ? SUPPORT : varies(edges, WEIGHT) ? WEIGHT : null);
const strongerFirst = (a, b) => (b[SUPPORT] ?? 0) - (a[SUPPORT] ?? 0) || b[WEIGHT] - a[WEIGHT];
const strengthText = (edge, place) => (place === SUPPORT ? `${Math.round(100 * edge[SUPPORT])} %` : edge[WEIGHT].toFixed(2));
const edgeWords = (edge) => [
  edge[SUPPORT] === undefined ? null : `Found in ${Math.round(100 * edge[SUPPORT])} % of the folds.`,
  varies(stop().edges, WEIGHT) ? `Weight ${edge[WEIGHT].toFixed(2)} on a scale from 0 to 1.` : "Weight 1, as all links have.",
].filter(Boolean).join(" ");

let shownEdges = [], neighbours = [], ranking = null, bestSupport = 1;
const collect = () => {
  const { edges } = stop();
  ranking = rankOf(edges);
  bestSupport = edges.reduce((best, edge) => Math.max(best, edge[SUPPORT] ?? 1), 0) || 1;
  shownEdges = ranking === null ? edges : edges.filter((edge) => edge[ranking] >= state.least);
  neighbours = tasks.map(() => []);
  shownEdges.forEach((edge) => { neighbours[edge[0]].push([edge[1], edge]); neighbours[edge[1]].push([edge[0], edge]); });
  neighbours.forEach((list) => list.sort((a, b) => strongerFirst(a[1], b[1]) || rank[a[0]] - rank[b[0]]));
};

// ------------------------------------------------------------------ colours

// Okabe and Ito without yellow, which is lost on white; then six more, drawn as squares. No colour stands for two clusters:
// where there are more, all have one colour and the chosen one stands out.
const palette = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8566B8", "#8A8A2B", "#B0455A", "#44AA99", "#A6611A", "#7A8CA3"];
const isSquare = (cluster) => cluster >= palette.length / 2 && cluster < palette.length && !isCrowded();
let sizesNow = [];
const clusterSizes = () => { const found = []; stop().clusters.forEach((c) => { found[c] = (found[c] || 0) + 1; }); return found; };
const isCrowded = () => (sizesNow[palette.length] || 0) > 1;
const grey = () => (root.dataset.theme === "dark" ? "#7b858e" : "#a3abb3");
const clusterInFocus = () => (state.cluster !== null ? state.cluster : state.task !== null ? stop().clusters[state.task] : null);
const clusterColour = (cluster) => {
  if (!(sizesNow[cluster] > 1)) return grey();
  if (!isCrowded()) return palette[cluster];
  return clusterInFocus() === cluster ? tint("--bad") : tint("--accent");
};
const gains = tasks.map((task) => task.gain).filter((gain) => gain !== null);
// The scale ends where 95 % of the tasks do, so that a few extreme ones do not make all others pale.
const gainSizes = gains.map(Math.abs).sort((a, b) => a - b);
const gainBound = Math.max(0.001, Math.min(1, gainSizes[Math.floor(0.95 * (gainSizes.length - 1))] ?? 0));
const parse = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
// From −1 over nothing to 1.
const shade = (share) => {
  const middle = parse(root.dataset.theme === "dark" ? "#3a4148" : "#d3d8dc");
  if (share === null) return `rgb(${middle})`;
  const end = parse(tint(share >= 0 ? "--good" : "--bad")), size = Math.min(Math.abs(share), 1);
  return `rgb(${middle.map((m, k) => Math.round(m + (end[k] - m) * size))})`;
};
// Most tasks lie within; a few far ones have the colour of the end, as the legend says.
const reachOf = (k) => values[k].map((value) => Math.abs(value - common[k])).sort((a, b) => a - b)[Math.floor(0.95 * (n - 1))] || 1;
const reaches = features.map((_, k) => reachOf(k));
const colourOf = (i) => {
  if (state.colour === "gain") return shade(tasks[i].gain === null ? null : tasks[i].gain / gainBound);
  if (state.colour !== "cluster") { const k = Number(state.colour); return shade((common[k] - values[k][i]) / reaches[k]); }
  return clusterColour(stop().clusters[i]);
};
