// The page of weft-trace, with @DATA@ where its data go.
#ifndef WEFT_TOOLS_OBSERVE_PAGE_H_
#define WEFT_TOOLS_OBSERVE_PAGE_H_

namespace weft::observe {

inline constexpr char kPage[] = R"PAGE(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Weft trace</title>
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<style>
body{font:13px/1.4 system-ui,sans-serif;margin:0;color:#222;background:#fff}
header{padding:8px 14px;background:#1f2a37;color:#fff}
header b{margin-right:14px} main{padding:10px 14px}
section{margin-bottom:18px} h2{font-size:14px;margin:0 0 6px}
#wrap{display:flex;gap:14px;align-items:flex-start}
#side{width:330px;flex:none;white-space:pre-wrap;border-left:2px solid #ddd;padding-left:12px}
canvas{border:1px solid #ccc;cursor:crosshair;display:block}
table{border-collapse:collapse} td,th{padding:2px 7px;text-align:right;border:1px solid #eee}
th{background:#f5f6f8} td.rank{cursor:pointer;text-decoration:underline}
pre.finding{background:#fff3f0;border-left:4px solid #d33;padding:8px;margin:0 0 6px}
select,button{font:inherit;margin-right:8px}
.hint{color:#777}
</style></head><body>
<header><b id="title"></b><span id="facts"></span></header>
<main>
<section id="findings"></section>
<section><h2>Timeline</h2>
<p><label>Order <select id="order"></select></label>
<button id="reset">whole</button>
<span class="hint">wheel: zoom, drag: move, click a call: the same call on every rank</span></p>
<div id="wrap"><canvas id="lines"></canvas><div id="side">Click a call or a rank.</div></div></section>
<section><h2>Mesh</h2>
<p class="hint" id="legend"></p>
<canvas id="space"></canvas></section>
<section><h2>Ranks and phases, ms a step</h2><div id="heat"></div></section>
</main>
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const add = (parent, tag, text) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  parent.appendChild(e);
  return e;
};
// Coordinates of a rank: the first axis of the mesh is the innermost.
const axes = (D.mesh || "").split(/[ ,]+/).map(t => /^([a-z]+)(\d+)$/.exec(t)).filter(m => m)
    .map(m => ({name: m[1], size: +m[2]}));
const place = rank => { const at = {}; let left = rank;
  for (const axis of axes) { at[axis.name] = left % axis.size; left = Math.floor(left / axis.size); }
  return at; };
const placeText = rank => axes.map(a => a.name + " " + place(rank)[a.name]).join(", ");
$("title").textContent = "Weft: job " + D.job;
$("facts").textContent = D.ranks.length + " of " + D.world + " ranks" +
  (D.mesh ? ", mesh " + D.mesh : "") +
  (D.clocks.length > 1 ? ", clocks within " + Math.max(...D.clocks.map(c => c.within_us)) + " us" : "");
for (const finding of D.findings) { add($("findings"), "pre", finding.text).className = "finding"; }

let end = 1;
for (const r of D.ranks) for (const s of r.spans) end = Math.max(end, s[2] + s[3]);
let from = 0, to = end, picked = null, chosen = null;
const ROW = 34, LEFT = 120, canvas = $("lines"), g = canvas.getContext("2d");
const orders = [["rank", r => [r.rank]]].concat(axes.map(axis => [axis.name.toUpperCase() + " groups",
  r => axes.filter(a => a !== axis).map(a => place(r.rank)[a.name]).reverse().concat(place(r.rank)[axis.name])]));
orders.forEach(([name], i) => { const o = add($("order"), "option", name); o.value = i; });
let rows = D.ranks.slice();
const sortRows = () => { const key = orders[+$("order").value][1];
  rows.sort((a, b) => { const x = key(a), y = key(b);
    for (let i = 0; i < x.length; i++) if (x[i] !== y[i]) return x[i] - y[i];
    return 0; }); };
const color = s => { const name = D.names[s[0]];
  if (name.startsWith("wait")) return "#f2b8b5";
  let hash = 7; for (const c of name) hash = (hash * 31 + c.charCodeAt(0)) % 360;
  return s[1] === 0 ? "hsl(" + hash + ",45%,72%)" : "hsl(" + hash + ",70%,45%)"; };
const same = (a, b) => a && a[1] !== 0 && a[1] === b[1] && a[4] === b[4] && (a[6] < 0) === (b[6] < 0);
const x = t => LEFT + (t - from) / (to - from) * (canvas.width - LEFT);
function draw() {
  canvas.width = Math.max(500, document.body.clientWidth - 400);
  canvas.height = rows.length * ROW + 20;
  g.font = "11px system-ui"; g.textBaseline = "middle";
  const marks = [];
  rows.forEach((r, row) => {
    const y = row * ROW;
    g.fillStyle = row % 2 ? "#fafafa" : "#fff"; g.fillRect(0, y, canvas.width, ROW);
    const blamed = D.findings.some(f => f.culprits.includes(r.rank));
    g.fillStyle = blamed ? "#d33" : "#222";
    g.fillText("rank " + r.rank + " " + placeText(r.rank).replace(/ /g, ""), 4, y + ROW / 2);
    for (const s of r.spans) {
      if (s[2] + s[3] < from || s[2] > to) continue;
      const a = Math.max(x(s[2]), LEFT), b = Math.max(x(s[2] + s[3]), a + 1), phase = s[1] === 0;
      const marked = picked && same(picked, s);
      g.fillStyle = color(s);
      g.fillRect(a, y + (phase ? 2 : 18), b - a, phase ? 14 : 13);
      if (!s[7]) { g.strokeStyle = "#d33"; g.lineWidth = 2; g.strokeRect(a, y + 18, b - a, 13); }
      if (marked) { g.strokeStyle = "#000"; g.lineWidth = 2; g.strokeRect(a, y + 17, b - a, 15);
        marks.push([a, y + 24]); }
      if (b - a > 45) { g.fillStyle = "#000"; g.fillText(D.names[s[0]].slice(0, (b - a) / 7), a + 2, y + (phase ? 9 : 25)); }
    }
  });
  g.strokeStyle = "#000"; g.lineWidth = 1; g.beginPath();
  marks.forEach(([a, y], i) => i ? g.lineTo(a, y) : g.moveTo(a, y)); g.stroke();
  g.fillStyle = "#555";
  for (let i = 0; i <= 6; i++) { const t = from + (to - from) * i / 6;
    g.fillText((t / 1000).toFixed(2) + " ms", x(t) - (i === 6 ? 60 : 0), rows.length * ROW + 10); }
  drawSpace();
}
// The ranks in space: the mesh's first axis goes to the right, the second to the back, the third
// up; a further one begins again at the right, with a gap. Without a mesh: a square.
const space = $("space"), h = space.getContext("2d"), AXIS_COLORS = ["#4a7fc1", "#3f9c62", "#a06bc0", "#b98a2d"];
const byRank = new Map(D.ranks.map(r => [r.rank, r]));
const side = Math.ceil(Math.sqrt(Math.max(1, D.world)));
const cell = rank => {
  if (!axes.length) return [rank % side, Math.floor(rank / side), 0];
  const at = place(rank), c = [0, 0, 0], reach = [1, 1, 1];
  axes.forEach((a, i) => { c[i % 3] += at[a.name] * reach[i % 3]; reach[i % 3] *= a.size + 0.5; });
  return c; };
const ownTime = r => Object.entries(r.heat).reduce((sum, [name, ms]) => name.startsWith("wait") ? sum : sum + ms, 0);
const times = D.ranks.map(ownTime).sort((a, b) => a - b), usual = times[(times.length - 1) >> 1] || 0;
const blames = r => D.findings.some(f => f.culprits.includes(r.rank));
const waits = r => r.spans.some(s => !s[7]);
const STILL_MS = 1000;
const still = f => f.outstanding > 0 && f.stuck_ms >= STILL_MS;
const touchesBlamed = (r, f) => blames(r) || (byRank.has(f.peer) && blames(byRank.get(f.peer)));
const fill = r => { if (blames(r)) return "#d33";
  if (waits(r)) return "#f5b942";
  const over = usual > 0 ? Math.max(0, Math.min(1, (ownTime(r) / usual - 1.05) * 2)) : 0;
  return "hsl(" + (210 - 190 * over) + ",55%,75%)"; };
let turned = 0.45, spots = [];
function drawSpace() {
  const flat = D.ranks.map(r => { const [u, v, w] = cell(r.rank), c = Math.cos(turned), n = Math.sin(turned);
    return {r, x: u * c - v * n, y: (u * n + v * c) * 0.45 - w * 1.1, depth: u * n + v * c}; });
  const low = (key) => Math.min(...flat.map(s => s[key])), high = (key) => Math.max(...flat.map(s => s[key]));
  if (!flat.length) return;
  const wide = high("x") - low("x") || 1, tall = high("y") - low("y");
  space.width = Math.max(500, document.body.clientWidth - 400);
  const scale = Math.min((space.width - 120) / wide, 110, tall > 0 ? 420 / tall : 110);
  space.height = tall * scale + 80;
  const round = Math.max(3, Math.min(15, scale * 0.22)), left = low("x"), top = low("y");
  spots = flat.map(s => ({r: s.r, x: 60 + (s.x - left) * scale, y: 40 + (s.y - top) * scale, depth: s.depth}));
  const at = new Map(spots.map(s => [s.r.rank, s]));
  const line = (a, b, style, width) => { if (!a || !b) return;
    h.strokeStyle = style; h.lineWidth = width; h.beginPath(); h.moveTo(a.x, a.y); h.lineTo(b.x, b.y); h.stroke(); };
  let stride = 1;
  axes.forEach((a, i) => { for (const s of spots) {
    if (place(s.r.rank)[a.name] + 1 < a.size) line(s, at.get(s.r.rank + stride), AXIS_COLORS[i % 4], 1); }
    stride *= a.size; });
  for (const s of spots) for (const f of s.r.flows) {
    if (still(f)) line(s, at.get(f.peer), "#d33", touchesBlamed(s.r, f) ? 3 : 1);
    else if (s.r === chosen) line(s, at.get(f.peer), "#000", 2); }
  spots.sort((a, b) => b.depth - a.depth);
  h.font = "11px system-ui"; h.textBaseline = "middle"; h.textAlign = "center";
  for (const s of spots) {
    h.beginPath(); h.arc(s.x, s.y, round, 0, 2 * Math.PI); h.fillStyle = fill(s.r); h.fill();
    const called = picked && s.r.spans.some(t => same(picked, t));
    h.lineWidth = s.r === chosen || called ? 3 : 1;
    h.strokeStyle = s.r === chosen || called ? "#000" : "#888"; h.stroke();
    if (round >= 7) { h.fillStyle = blames(s.r) ? "#fff" : "#222"; h.fillText(String(s.r.rank), s.x, s.y); }
  }
}
$("legend").textContent = "click a rank; drag to turn. red: blamed, amber: waits in a call, the more orange the slower than " +
  "others. Thick black lines: the chosen rank's flows, red: flows that stand still, thick where they touch a blamed rank; thick rims: in the chosen call" +
  (axes.length ? ". Thin lines: neighbours by " + axes.map(a => a.name.toUpperCase()).join(", ") : "");
let grip = null;
space.addEventListener("mousedown", e => { grip = [e.offsetX, turned, false]; });
space.addEventListener("mousemove", e => { if (!grip) return;
  if (Math.abs(e.offsetX - grip[0]) > 3) grip[2] = true;
  if (grip[2]) { turned = grip[1] + (e.offsetX - grip[0]) * 0.01; drawSpace(); } });
window.addEventListener("mouseup", e => { const turnedIt = grip && grip[2], held = grip; grip = null;
  if (!held || turnedIt || e.target !== space) return;
  const near = spots.map(s => [Math.hypot(s.x - e.offsetX, s.y - e.offsetY), s.r]).sort((a, b) => a[0] - b[0])[0];
  if (near && near[0] < 25) { showRank(near[1]); draw(); } });
function showRank(r) {
  chosen = r;
  const lines = ["rank " + r.rank + " on " + r.host + ", pid " + r.pid];
  if (axes.length) lines.push("place: " + placeText(r.rank));
  lines.push("step " + r.step + (r.phase ? ", in phase " + r.phase : ""));
  for (const [name, ranks] of Object.entries(D.members)) {
    if (!ranks.includes(r.rank)) continue;
    const at = ranks.indexOf(r.rank), n = ranks.length;
    lines.push("group " + name + ": " + n + " ranks, neighbours " + ranks[(at + n - 1) % n] + " and " + ranks[(at + 1) % n]);
  }
  for (const s of r.spans) if (!s[7]) lines.push("under way: " + D.names[s[0]] + " #" + s[4] + " in " + D.groups[s[1]]);
  for (const f of r.flows) lines.push((f.sends ? "to " : "from ") + f.peer + " over " + f.transport + ": " + f.bytes +
    " bytes" + (f.outstanding ? ", " + f.outstanding + " outstanding, still for " + f.stuck_ms + " ms" : "") +
    (f.repeats ? ", " + f.repeats + " repeats" : ""));
  if (r.lost) lines.push(r.lost + " older records were overwritten");
  for (const f of D.findings) if (f.culprits.includes(r.rank)) lines.push("\n" + f.text);
  $("side").textContent = lines.join("\n");
}
function showSpan(r, s) {
  const lines = [D.names[s[0]] + (s[7] ? "" : " (under way)")];
  if (s[1] !== 0) lines.push("group " + D.groups[s[1]] + (s[6] < 0 ? ", sequence " : ", tag ") + s[4]);
  else lines.push("step " + s[4]);
  if (s[5] >= 0) lines.push(s[5] + " bytes");
  if (s[6] >= 0) lines.push("other end: rank " + s[6]);
  lines.push("on rank " + r.rank + ": " + (s[3] / 1000).toFixed(3) + " ms");
  if (s[1] !== 0) {
    const all = [];
    for (const o of D.ranks) for (const t of o.spans) if (same(s, t)) all.push([t[2], o.rank, t]);
    all.sort((a, b) => a[0] - b[0]);
    if (all.length) lines.push("\nin the order in which ranks called it:");
    for (const [at, rank, t] of all) lines.push("  rank " + rank + ": +" + ((at - all[0][0]) / 1000).toFixed(3) + " ms, took " + (t[3] / 1000).toFixed(3) + " ms");
    const members = D.members[D.groups[s[1]]] || [];
    const absent = s[6] < 0 ? members.filter(m => !all.some(a => a[1] === m)) : [];
    if (absent.length) lines.push("not called by ranks " + absent.join(", "));
  }
  $("side").textContent = lines.join("\n");
}
canvas.addEventListener("wheel", e => { e.preventDefault();
  const at = from + (e.offsetX - LEFT) / (canvas.width - LEFT) * (to - from), by = e.deltaY > 0 ? 1.25 : 0.8;
  from = Math.max(0, at - (at - from) * by); to = Math.min(end, at + (to - at) * by); draw(); }, {passive: false});
let drag = null;
canvas.addEventListener("mousedown", e => { drag = [e.offsetX, from, to, false]; });
canvas.addEventListener("mousemove", e => { if (!drag) return;
  const by = (drag[0] - e.offsetX) / (canvas.width - LEFT) * (drag[2] - drag[1]);
  if (Math.abs(drag[0] - e.offsetX) > 3) drag[3] = true;
  if (drag[3]) { from = Math.max(0, drag[1] + by); to = Math.min(end, drag[2] + by); draw(); } });
window.addEventListener("mouseup", e => { const moved = drag && drag[3]; drag = null;
  if (moved || e.target !== canvas) return;
  const r = rows[Math.floor(e.offsetY / ROW)]; if (!r) return;
  if (e.offsetX < LEFT) { showRank(r); draw(); return; }
  const t = from + (e.offsetX - LEFT) / (canvas.width - LEFT) * (to - from), slack = (to - from) / 400;
  const phase = e.offsetY % ROW < 17;
  const hit = r.spans.filter(s => (s[1] === 0) === phase && s[2] - slack <= t && t <= s[2] + s[3] + slack).pop();
  picked = hit || null; if (hit) showSpan(r, hit); else showRank(r); draw(); });
$("order").addEventListener("change", () => { sortRows(); draw(); });
$("reset").addEventListener("click", () => { from = 0; to = end; draw(); });
window.addEventListener("resize", draw);

const phases = [...new Set(D.ranks.flatMap(r => Object.keys(r.heat)))];
if (phases.length) {
  const table = add($("heat"), "table"), head = add(table, "tr");
  add(head, "th", "rank"); for (const p of phases) add(head, "th", p);
  const median = {};
  for (const p of phases) { const v = D.ranks.map(r => r.heat[p] || 0).sort((a, b) => a - b); median[p] = v[(v.length - 1) >> 1]; }
  for (const r of D.ranks) {
    const line = add(table, "tr"), first = add(line, "td", r.rank); first.className = "rank";
    first.addEventListener("click", () => { showRank(r); draw(); });
    for (const p of phases) { const v = r.heat[p] || 0, cell = add(line, "td", v.toFixed(2));
      const ratio = median[p] > 0 ? v / median[p] : 1;
      if (ratio > 1.05) cell.style.background = "rgba(220,50,30," + Math.min(0.85, (ratio - 1) * 0.8) + ")";
      else if (ratio < 0.95) cell.style.background = "rgba(30,90,200," + Math.min(0.5, (1 - ratio) * 0.6) + ")"; }
  }
} else { add($("heat"), "p", "This job records no phases."); }
// A link's #rank=N chooses a rank; else the first that is blamed is chosen.
const linked = /#rank=(\d+)/.exec((window.location || {}).hash || "");
const first = linked ? +linked[1] : D.findings.flatMap(f => f.culprits)[0];
if (byRank.has(first)) showRank(byRank.get(first));
sortRows(); draw();
</script></body></html>
)PAGE";

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_PAGE_H_
