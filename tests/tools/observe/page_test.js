// Runs the script of weft-trace's page against a small stand-in for a browser's document: draws,
// orders, clicks. Prints what the page says, as JSON. node page_test.js PAGE
"use strict";
const fs = require("fs");
const page = fs.readFileSync(process.argv[2], "utf8");
const data = /<script type="application\/json" id="data">([\s\S]*?)<\/script>/.exec(page)[1];
const script = /<script>([\s\S]*?)<\/script>/.exec(page)[1];

const texts = [];
const nodes = {};  // of the mesh, by the rank that is written into the circle
let circle = null;
let strokes = [];  // colour and width of each line
class Element {
  constructor(tag) {
    Object.assign(this, {tag, children: [], listeners: {}, style: {}, textContent: "", value: "0",
      width: 0, height: 0});
  }
  appendChild(child) { this.children.push(child); return child; }
  addEventListener(name, call) {
    const before = this.listeners[name];
    this.listeners[name] = before ? event => { before(event); call(event); } : call;
  }
  getContext() {
    return new Proxy({}, {get: (target, name) => name in target ? target[name] : (...words) => {
      if (name === "fillText") texts.push(words[0]);
      if (name === "arc") circle = words;
      if (name === "stroke") strokes.push([target.strokeStyle, target.lineWidth]);
      if (name === "fillText" && /^\d+$/.test(words[0]) && circle) nodes[words[0]] = circle.slice(0, 2);
      if (words.some(word => typeof word === "number" && !Number.isFinite(word))) {
        throw new Error(`${String(name)}(${words}) draws nowhere`);
      }
    }, set: (target, name, value) => { target[name] = value; return true; }});
  }
  all() { return [this, ...this.children.flatMap(child => child.all())]; }
}
const elements = {};
for (const id of page.matchAll(/id="(\w+)"/g)) elements[id[1]] = new Element(id[1]);
elements.data.textContent = data;
const window = new Element("window");
const document = {getElementById: id => elements[id], createElement: tag => new Element(tag),
  body: {clientWidth: 1400}};
new Function("document", "window", script)(document, window);

const opened = elements.side.textContent;
const spaceOf = strokes.filter(stroke => stroke[0] !== "#888");

const click = (x, y) => {
  elements.lines.listeners.mousedown({offsetX: x, offsetY: y});
  window.listeners.mouseup({target: elements.lines, offsetX: x, offsetY: y});
  return elements.side.textContent;
};
const D = JSON.parse(data);
let end = 1;
for (const rank of D.ranks) for (const span of rank.spans) end = Math.max(end, span[2] + span[3]);
const open = D.ranks[0].spans.filter(span => !span[7] && span[1] !== 0).pop();
const width = elements.lines.width - 120;
const at = open ? 120 + (open[2] + open[3] / 2) / end * width : 200;
const call = click(at, 24);
const rank = click(10, 5 + 34 * (D.ranks.length - 1));
const [nodeX, nodeY] = nodes["1"];
elements.space.listeners.mousedown({offsetX: nodeX, offsetY: nodeY});
window.listeners.mouseup({target: elements.space, offsetX: nodeX, offsetY: nodeY});
const node = elements.side.textContent;
elements.space.listeners.mousedown({offsetX: nodeX, offsetY: nodeY});
elements.space.listeners.mousemove({offsetX: nodeX + 60, offsetY: nodeY});
window.listeners.mouseup({target: elements.space, offsetX: nodeX + 60, offsetY: nodeY});
const turned = nodes["1"][0] !== nodeX && elements.side.textContent === node;
for (let order = 0; order < elements.order.children.length; ++order) {
  elements.order.value = String(order);
  elements.order.listeners.change();
}
elements.lines.listeners.wheel({preventDefault() {}, offsetX: 600, deltaY: -1});
elements.reset.listeners.click();
console.log(JSON.stringify({title: elements.title.textContent, facts: elements.facts.textContent,
  findings: elements.findings.children.map(child => child.textContent), call, rank, opened,
  node, turned, nodes: Object.keys(nodes).length, strokes: spaceOf,
  flows: D.ranks.flatMap(r => r.flows.map(f => [r.rank, f.peer, f.outstanding > 0 && f.stuck_ms >= 1000])),
  culprits: D.findings.flatMap(f => f.culprits),
  orders: elements.order.children.map(child => child.textContent),
  heat: elements.heat.all().map(element => element.textContent), drawn: texts.length}));
