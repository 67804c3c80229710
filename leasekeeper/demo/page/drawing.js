// The ring and the timeline. Positions are computed once; afterwards only what changed is touched.

const SVG = "http://www.w3.org/2000/svg";
const MIDDLE = 300, CANDIDATES_AT = 225, NODES_AT = 118, CANDIDATE_SIZE = 34, NODE_SIZE = 22;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export const colour = (name) => `var(--c${(Number(name.split("-").pop()) - 1) % 7 + 1})`;

function make(kind, parent, attributes = {}, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function onCircle(index, count, radius, turn) {
  const angle = (index / count + turn) * 2 * Math.PI - Math.PI / 2;
  return { x: MIDDLE + radius * Math.cos(angle), y: MIDDLE + radius * Math.sin(angle) };
}

export class Ring {
  constructor(root) {
    this.root = root;
    this.places = new Map();
    this.things = new Map();
    this.votes = new Map();
  }

  build(state) {
    const group = this.root.querySelector("#things");
    make("circle", group, { cx: MIDDLE, cy: MIDDLE, r: NODES_AT, fill: "none", stroke: "var(--line)" });
    state.candidates.forEach((candidate, i) => {
      const at = onCircle(i, state.candidates.length, CANDIDATES_AT, 0);
      this.places.set(candidate.name, at);
      const thing = make("g", group, { class: "candidate" });
      thing.style.color = colour(candidate.name);
      make("circle", thing, { class: "body", cx: at.x, cy: at.y, r: CANDIDATE_SIZE });
      make("circle", thing, {
        class: "deadline", cx: at.x, cy: at.y, r: CANDIDATE_SIZE + 7, pathLength: 100,
        transform: `rotate(-90 ${at.x} ${at.y})`, "stroke-dasharray": "0 100", visibility: "hidden",
      });
      make("text", thing, { class: "initial", x: at.x, y: at.y }, candidate.name.split("-").pop());
      make("text", thing, { class: "small", x: at.x, y: at.y + CANDIDATE_SIZE + 20 });
      this.things.set(candidate.name, thing);
    });
    state.nodes.forEach((node, i) => {
      const at = onCircle(i, state.nodes.length, NODES_AT, 0.5 / state.nodes.length);
      this.places.set(`node ${node.name}`, at);
      this.votes.set(node.name, make("line", this.root.querySelector("#votes"), { class: "vote" }));
      const thing = make("g", group, { class: "node" });
      const corner = { x: at.x - NODE_SIZE, y: at.y - NODE_SIZE };
      make("rect", thing, { class: "body", ...corner, width: 2 * NODE_SIZE, height: 2 * NODE_SIZE, rx: 7 });
      make("text", thing, { x: at.x, y: at.y }, node.name);
      make("text", thing, { class: "small", x: at.x, y: at.y + NODE_SIZE + 14 });
      this.things.set(`node ${node.name}`, thing);
    });
    const middle = make("g", group, { class: "middle" });
    this.heart = make("text", middle, { class: "heart", x: MIDDLE, y: MIDDLE - 12 });
    this.under = make("text", middle, { class: "small", x: MIDDLE, y: MIDDLE + 14 });
  }

  show(state) {
    for (const candidate of state.candidates) {
      const thing = this.things.get(candidate.name);
      const words = ["leads", "frozen", "cut"].filter((word) => candidate[word]);
      thing.setAttribute("class", ["candidate", ...words, candidate.running ? "" : "killed"].join(" "));
      const arc = thing.querySelector(".deadline");
      arc.setAttribute("visibility", candidate.leads ? "visible" : "hidden");
      arc.setAttribute("stroke-dasharray", `${Math.min(100, 150 * candidate.left / state.lease)} 100`);
      thing.querySelector(".small").textContent =
        !candidate.running ? "killed" : candidate.frozen ? "frozen" : candidate.cut ? "cut off"
          : candidate.leads ? `leads, ${candidate.left.toFixed(1)} s` : "";
    }
    for (const node of state.nodes) {
      const thing = this.things.get(`node ${node.name}`);
      thing.setAttribute("class", `node ${node.state}`);
      thing.querySelector(".small").textContent =
        node.rests ? `rests ${node.rests.toFixed(1)} s` : node.state === "open" ? (node.ahead ? "+1 h" : "") : node.state;
      this.showVote(node);
    }
    const leader = state.candidates.find((candidate) => candidate.leads);
    this.heart.textContent = leader ? leader.name : "nobody leads";
    this.under.textContent = leader ? `token ${leader.token}` : "";
    const title = leader ? `${leader.name} leads with token ${leader.token}` : "Nobody leads";
    const heading = this.root.querySelector("title");
    if (heading.textContent !== title) heading.textContent = title;
  }

  showVote(node) {
    const line = this.votes.get(node.name);
    const from = this.places.get(`node ${node.name}`), to = this.places.get(node.holder);
    line.setAttribute("visibility", to ? "visible" : "hidden");
    if (!to) return;
    for (const [name, value] of [["x1", from.x], ["y1", from.y], ["x2", to.x], ["y2", to.y]]) line.setAttribute(name, value);
    line.style.stroke = colour(node.holder);
  }

  // The answer of a node travels back to whoever asked.
  message(candidate, node, given) {
    const from = this.places.get(`node ${node}`), to = this.places.get(candidate);
    if (!from || !to || document.hidden || still.matches) return;
    const dot = make("circle", this.root.querySelector("#messages"), { class: given ? "yes" : "no", r: given ? 5 : 6 });
    const way = (at) => ({ transform: `translate(${at.x}px, ${at.y}px)` });
    dot.animate([way(to), way(from), way(to)], { duration: 650, easing: "ease-in-out" }).onfinish = () => dot.remove();
  }
}

const ROW = 20, LEFT = 92, SECOND = 12, TOP = 6;

export class Timeline {
  constructor(frame) {
    this.frame = frame;
    this.svg = frame.querySelector("svg");
    this.tenures = new Map();
    this.follow = true;
    frame.addEventListener("scroll", () => {
      this.follow = frame.scrollLeft + frame.clientWidth >= frame.scrollWidth - 24;
    });
  }

  build(state) {
    this.rows = new Map(state.candidates.map((candidate, i) => [candidate.name, TOP + i * ROW]));
    this.bottom = TOP + state.candidates.length * ROW;
    this.svg.setAttribute("height", this.bottom + 20);
    this.back = make("g", this.svg);
    this.marks = make("g", this.svg);
    this.bars = make("g", this.svg);
    this.labels = make("g", this.svg);
    make("rect", this.labels, { x: 0, y: 0, width: LEFT - 6, height: this.bottom, fill: "var(--panel)" });
    for (const [name, y] of this.rows) {
      make("line", this.back, { class: "grid", x1: LEFT, x2: 1e5, y1: y + ROW - 2, y2: y + ROW - 2 });
      make("text", this.labels, { x: 0, y: y + 13 }, name).style.fill = colour(name);
    }
    this.ticks = 0;
  }

  fault(event) {
    const x = LEFT + event.at * SECOND;
    const mark = make("line", this.marks, { class: "fault", x1: x, x2: x, y1: TOP - 4, y2: this.bottom });
    make("title", mark, {}, event.sentence);
  }

  show(state) {
    for (const tenure of state.tenures) {
      const key = `${tenure.holder} ${tenure.token}`;
      let bar = this.tenures.get(key);
      if (!bar) {
        const y = this.rows.get(tenure.holder);
        bar = make("rect", this.bars, { x: LEFT + tenure.from * SECOND, y, height: ROW - 5, rx: 3 });
        bar.style.fill = colour(tenure.holder);
        make("title", bar, {}, `${tenure.holder}, token ${tenure.token}`);
        this.tenures.set(key, bar);
      }
      bar.setAttribute("width", Math.max(2, (tenure.to - tenure.from) * SECOND));
    }
    for (; this.ticks <= state.at + 10; this.ticks += 10) {
      make("text", this.back, { x: LEFT + this.ticks * SECOND, y: this.bottom + 14 }, `${this.ticks} s`);
    }
    const width = Math.max(this.frame.clientWidth, LEFT + (state.at + 3) * SECOND);
    this.svg.setAttribute("width", width);
    if (this.follow) this.frame.scrollLeft = this.frame.scrollWidth;
    this.labels.setAttribute("transform", `translate(${this.frame.scrollLeft} 0)`);
  }
}
