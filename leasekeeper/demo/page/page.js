import { colour, Ring, Timeline } from "/drawing.js";

const token = location.hash.slice(1);
const headers = { "X-Leasekeeper-Token": token };
const find = (id) => document.getElementById(id);
const ring = new Ring(find("ring"));
const timeline = new Timeline(find("timeline"));
const rows = new Map();
let state, kinds = [], chosen = "";

// -- what is said ------------------------------------------------------------------------------

function say(text, kind) {
  find("sentence").className = kind;
  find("sentence").textContent = text;
}

function tell(event) {
  if (event.event !== "started") say(event.sentence, event.event);
  if (event.event === "fault") timeline.fault(event);
  log(event);
}

function log({ at, event, sentence }) {
  const line = document.createElement("li");
  line.className = event;
  const time = document.createElement("time");
  time.textContent = `${at.toFixed(1)} s`;
  const text = document.createElement("span");
  text.textContent = sentence;
  line.append(time, text);
  find("log").prepend(line);
  while (find("log").children.length > 200) find("log").lastChild.remove();
}

// Also to the log: what happens next is said over it at once.
function complain(sentence) {
  say(sentence, "complaint");
  log({ at: state?.at ?? 0, event: "complaint", sentence });
}

// -- what is done ------------------------------------------------------------------------------

async function act(what, target = "") {
  try {
    const answer = await fetch("/api/do", {
      method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify({ what, target }),
    });
    const { complaint } = await answer.json();
    if (complaint) complain(complaint);
  } catch {
    say("The demo has ended. Start it again, and open the address that it prints.", "complaint");
  }
}

function button(what, target, label, spoken) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.dataset.what = what;
  made.dataset.target = target;
  made.setAttribute("aria-label", spoken);
  return made;
}

document.addEventListener("click", (event) => {
  const pressed = event.target.closest("button[data-what]");
  if (pressed) act(pressed.dataset.what, pressed.dataset.target);
});

document.addEventListener("keydown", (event) => {
  // A key that is held down is one wish, and not thirty a second.
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || !state || !find("keys-on").checked) return;
  const kind = kinds.find((kind) => kind.key === event.key);
  if (event.key === "x") act("chaos");
  else if (/^[0-9]$/.test(event.key)) choose(Number(event.key));
  else if (kind) act(kind.name, kind.target === "candidate" ? chosen : "");
});

function choose(number) {
  chosen = state.candidates[number - 1]?.name ?? "";
  for (const [name, row] of rows) row.item.classList.toggle("chosen", name === chosen);
}

// -- what is shown -----------------------------------------------------------------------------

function row(list, key, name, deeds) {
  const item = document.createElement("li");
  const title = document.createElement("span");
  title.className = "name";
  title.textContent = name;
  const what = document.createElement("span");
  what.className = "what";
  const buttons = document.createElement("span");
  buttons.className = "deeds";
  buttons.append(...deeds);
  item.append(title, what, buttons);
  list.append(item);
  rows.set(key, { item, title, what, deeds });
}

function build() {
  for (const { name } of state.candidates) {
    row(find("candidates"), name, name, [
      button("kill", name, "Kill", `Kill ${name}`),
      button("freeze", name, "Freeze", `Freeze ${name}`),
      button("cut", name, "Cut off", `Cut off ${name}`),
      button("step-down", name, "Step down", `Ask ${name} to step down`),
    ]);
    rows.get(name).title.style.color = colour(name);
  }
  for (const { name } of state.nodes) {
    const deeds = [button("kill-node", name, "Kill", `Kill node ${name}`)];
    if (state.clocks) deeds.push(button("clock", name, "Step clock", `Step the wall clock of node ${name}`));
    row(find("nodes"), `node ${name}`, `node ${name}`, deeds);
  }
  find("quorum").textContent = `${state.quorum} votes of ${state.nodes.length} are a lease of ${state.lease} s`;
  ring.build(state);
  timeline.build(state);
  const keys = [...kinds.filter((kind) => kind.name !== "clock" || state.clocks).map((kind) => [kind.key, kind.label]),
    ["x", "chaos on or off"], ["1–9", "choose a candidate (0: the leader)"]];
  for (const [key, label] of keys) {
    const item = document.createElement("span"), cap = document.createElement("kbd");
    cap.textContent = key;
    item.append(cap, label);
    find("keys").append(item);
  }
}

function put(element, text, tone) {
  if (element.textContent !== text) element.textContent = text;
  const name = `what ${tone}`;
  if (element.className !== name) element.className = name;
}

function toggle(made, on, [offName, offLabel], [onName, onLabel], target) {
  const [what, label] = on ? [onName, onLabel] : [offName, offLabel];
  if (made.dataset.what === what) return;
  made.dataset.what = what;
  made.textContent = label;
  made.setAttribute("aria-label", `${label} ${target}`);
}

function showCandidate(candidate) {
  const { what, deeds: [kill, freeze, cut, down] } = rows.get(candidate.name);
  const wrong = [!candidate.running && "killed", candidate.frozen && "frozen", candidate.cut && "cut off"].filter(Boolean);
  const leads = candidate.leads && `leads, ${candidate.left.toFixed(1)} s left`;
  put(what, [...wrong, leads].filter(Boolean).join("; ") || "stands by", wrong.length ? "bad" : leads ? "good" : "");
  toggle(freeze, candidate.frozen, ["freeze", "Freeze"], ["thaw", "Thaw"], candidate.name);
  toggle(cut, candidate.cut, ["cut", "Cut off"], ["heal", "Heal"], candidate.name);
  for (const made of [kill, freeze]) made.setAttribute("aria-disabled", String(!candidate.running));
  down.setAttribute("aria-disabled", String(!candidate.leads));
}

function showNode(node) {
  const { what } = rows.get(`node ${node.name}`);
  const clock = node.ahead ? ", its wall clock an hour ahead" : "";
  const vote = node.holder ? `votes for ${node.holder}` : "open, no vote given";
  const tone = { open: "", down: "bad" }[node.state] ?? "warn";
  const text = node.state === "open" ? vote : node.rests ? `quarantine: no vote for ${node.rests.toFixed(1)} s` : node.state;
  put(what, text + clock, tone);
}

function show(piece) {
  const first = !state;
  state = piece.state;
  if (first) build();
  piece.events.forEach(tell);
  for (const [candidate, node, , given] of piece.votes) ring.message(candidate, node, given);
  state.candidates.forEach(showCandidate);
  state.nodes.forEach(showNode);
  ring.show(state);
  timeline.show(state);
  for (const [name, number] of Object.entries(state.counts)) {
    find(`count-${name}`).textContent = number;
  }
  for (const name of ["overlaps", "regressions"]) {
    find(`count-${name}`).parentElement.classList.toggle("wrong", state.counts[name] > 0);
  }
  const chaos = document.querySelector("[data-what=chaos]");
  chaos.setAttribute("aria-pressed", String(state.chaos));
  chaos.textContent = state.chaos ? "Chaos is on: stop it" : "Chaos: break things at random";
}

// -- the stream --------------------------------------------------------------------------------

async function listen() {
  const answer = await fetch("/api/stream", { headers });
  if (!answer.ok) throw new Error((await answer.json()).complaint);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The demo has ended. Start it again, and open the address that it prints.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const piece of lines.map((line) => JSON.parse(line))) {
      if (piece.kinds) kinds = piece.kinds;
      else show(piece);
    }
  }
}

if (!token) say("Open the whole address that the demo printed, with what is behind the #.", "complaint");
else listen().catch((wrong) => say(wrong instanceof TypeError ? "The demo has ended." : wrong.message, "complaint"));
