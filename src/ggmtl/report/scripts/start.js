// ------------------------------------------------------------------ start

function redrawAll() { showPanel(); drawStrips(); drawCurves(); paint(); }
root.dataset.theme = currentTheme();
buildHead(); buildSharing(); buildCurves(); drawPath(); drawOutcome(); collect(); sizesNow = clusterSizes(); showRows(); paint(); setStop(state.stop);
new ResizeObserver(() => { draw(); drawStrips(); drawCurves(); }).observe(canvas);
let pathWidth = byId("path-chart").clientWidth;
new ResizeObserver(() => { const now = byId("path-chart").clientWidth; if (now !== pathWidth) { pathWidth = now; drawPath(); drawOutcome(); } }).observe(byId("path-chart"));
document.body.dataset.ready = "yes";
// For tests and for those who look under the hood: where tasks are drawn, in pixels of the canvas.
window.ggmtlReport = { pointOf: (i) => { project(); return points[i]; }, edges: () => shownEdges, state };
