"use strict";
// A profile report: one JSON object in #data, four views of it, one selection shared by all.
const data = JSON.parse(document.getElementById("data").textContent);
const ops = data.ops, run = data.run, blocks = run.arena;
const ofPlan = run.subject === "plan";  // else of an executor, whose ops are submissions to lanes
const ran = ops.filter((op) => op.spans.length);
const t0 = Math.min(...ran.map((op) => op.start_ns), Infinity);
const t1 = Math.max(...ran.map((op) => op.end_ns), -Infinity);
const whole = ran.length ? [t0, Math.max(t1, t0 + 1)] : [0, 1];
const MANY = 200;  // rows that are shown before somebody asks for all
const state = {
  selected: -1, view: whole.slice(), tab: 0, sort: ops.length > MANY ? ["time", -1] : ["start", 1],
  all: ops.length <= MANY, arena: [0, Math.max(ops.length, 1)],
};
const byId = (id) => document.getElementById(id);

// ------------------------------------------------------------------ small things

function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function time(ns) {
  if (ns >= 1e9) return (ns / 1e9).toPrecision(4) + " s";
  if (ns >= 1e6) return (ns / 1e6).toPrecision(4) + " ms";
  if (ns >= 1e3) return (ns / 1e3).toPrecision(4) + " us";
  return Math.round(ns) + " ns";
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
  return (unit ? bytes.toPrecision(3) : bytes) + " " + units[unit];
}

// A share of a limit: what is faster than memory comes from a cache.
const limitText = (op) => op.share_of_limit !== null && op.share_of_limit > 1 &&
  op.limited_by === "bytes" ? "cache" : percent(op.share_of_limit);
const wasPreempted = (op) => op.preempted.includes(run.shown);
const percent = (x) => (x === null ? "-" : (100 * x).toFixed(x < 0.1 ? 1 : 0) + " %");
const fixed = (x) => x.toFixed(2);

function style(op) {
  if (!ofPlan) return { plan: "flops", kernel: "bytes", copy: "copy", function: "host" }[op.kind];
  if (op.kind === "kernel") return op.limited_by === "flops" ? "flops" : "bytes";
  return { copy: "copy", view: "view", "host call": "host", "native call": "host" }[op.kind];
}

function hint(op) {
  const share = limitText(op);
  const limit = op.share_of_limit === null ? "" :
    share === "cache" ? ", from a cache" : `, ${share} of the limit`;
  const spread = run.runs > 1 ? `, median of ${run.runs - op.preempted.length} runs ` +
    `+- ${percent(op.spread)}` : "";
  const disturbed = wasPreempted(op) ? "\npreempted in the run that is shown" : "";
  const where = ofPlan ? `step ${op.step}` : `${op.device}/${op.lane} ${op.op_id}`;
  return `${op.name}\n${op.kind}, op ${op.op_index}, ${where}, ` +
    `${time(op.elapsed * 1e9)}${spread}${disturbed}\n` +
    `${fixed(op.gb_per_s)} GB/s, ${fixed(op.gflop_per_s)} GFLOP/s${limit}`;
}

function explain(node, text) {
  const tip = byId("tip");
  node.addEventListener("pointermove", (event) => {
    tip.textContent = text;
    tip.hidden = false;
    const width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = Math.min(event.clientX + 12, innerWidth - width - 8) + "px";
    const below = event.clientY + 16;
    tip.style.top = (below + height > innerHeight ? event.clientY - height - 8 : below) + "px";
  });
  node.addEventListener("pointerleave", () => { tip.hidden = true; });
}

function hit(node, index, text) {
  node.classList.add("hit");
  node.dataset.op = index;
  node.addEventListener("click", () => select(index));
  explain(node, text);
  return node;
}

function frame(id, height) {
  const node = byId(id), width = Math.max(node.clientWidth, 320);
  node.replaceChildren();
  node.setAttribute("viewBox", `0 0 ${width} ${height}`);
  node.style.height = height + "px";
  return [node, width];
}

function grid(root, x1, y1, x2, y2) {
  root.append(svg("line", { class: "grid", x1, y1, x2, y2 }));
}

function label(root, x, y, text, anchor = "start") {
  root.append(svg("text", { x, y, "text-anchor": anchor }, text));
}

// Round numbers that cut [low, high] into about `count` parts.
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || raw;
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high; x += step) found.push(x);
  return found;
}

// ------------------------------------------------------------------ head

function drawHead() {
  const values = Object.entries(run.variables).map(([name, value]) => `${name}=${value}`);
  byId("summary").textContent = [
    ...(ofPlan ? [`${run.threads} thread${run.threads === 1 ? "" : "s"} on ${run.device}`] :
      [`submissions of an executor to ${tracks.length} lanes`]), ...values,
    ...(run.runs > 1 ? [`medians of ${run.runs} runs of ` +
      `${time(Math.min(...run.makespans) * 1e9)} to ${time(Math.max(...run.makespans) * 1e9)}`] : []),
    run.limits === null ? "limits not measured" :
      `limits: ${(run.limits.flops_per_s / 1e9).toFixed(0)} GFLOP/s, ` +
      `${(run.limits.bytes_per_s / 1e9).toFixed(1)} GB/s`,
  ].join(" · ");
  const figures = {
    "makespan": time(data.makespan_seconds * 1e9), "sum over ops": time(data.sum_seconds * 1e9),
    "ops": ops.length, ...(ofPlan ? {
      "steps": run.num_steps, "shared steps": run.num_shared_steps,
      "barriers": run.num_barriers, "arena": size(run.arena_bytes),
    } : {}),
  };
  for (const [name, value] of Object.entries(figures))
    byId("figures").append(html("div", {}, html("dt", {}, name), html("dd", {}, String(value))));
  for (const lane of tracks.length ? data.lanes : []) {
    const beside = lane.busy_ns ? `, ${percent(lane.beside_ns / lane.busy_ns)} beside others` : "";
    const moved = lane.num_copies ? `, moves ${size(lane.moved_bytes)}` : "";
    const text = `${time(lane.busy_ns)}${beside}${moved}, waits ${time(lane.waited_ns)}`;
    byId("figures").append(
      html("div", {}, html("dt", {}, lane.name + " busy"), html("dd", {}, text)));
  }
  const legend = ofPlan ? {
    flops: "kernel nearer to the arithmetic limit", bytes: "kernel nearer to the bandwidth limit",
    copy: "copy", host: "custom function", wait: "waits for another lane",
  } : {
    flops: "run of a plan", bytes: "kernel", copy: "transfer", host: "function of Python",
    wait: "waits for another lane",
  };
  const used = new Set(ops.map(style));
  if (ops.some(wasPreempted)) legend.preempted = "preempted: another program had the core";
  for (const [name, text] of Object.entries(legend))
    if (name === "preempted" || used.has(name) || (name === "wait" && run.waits.length)) byId("legend").append(html("li", {}, html("i", { class: name }), text));
}

// ------------------------------------------------------------------ timeline

const tracks = run.tracks, ROW = 30;
const LEFT = tracks.length ? 168 : 84;

function laneName(lane) {
  const name = lane < tracks.length ? tracks[lane] : "";
  if (!name) return lane === 0 ? "lane 0 (caller)" : `lane ${lane}`;
  const short = name.length > 24 ? "…" + name.slice(-23) : name;
  return lane === 0 && ofPlan ? `${short} (caller)` : short;
}

function waitsOf(lane) {
  return run.waits.filter((wait) => wait.span.lane === lane);
}

function laneSpans() {
  const lanes = new Map();
  ops.forEach((op, index) => op.spans.forEach(([lane, start, end]) => {
    if (!lanes.has(lane)) lanes.set(lane, []);
    lanes.get(lane).push({ index, start, end });
  }));
  for (const spans of lanes.values()) spans.sort((a, b) => a.start - b.start);
  return [...lanes.entries()].sort((a, b) => a[0] - b[0]);
}

function stepSpans() {
  const steps = new Map();
  ran.forEach((op) => {
    const seen = steps.get(op.step) || { step: op.step, start: Infinity, end: -Infinity, ops: 0 };
    seen.start = Math.min(seen.start, op.start_ns);
    seen.end = Math.max(seen.end, op.end_ns);
    seen.ops += 1;
    steps.set(op.step, seen);
  });
  return [...steps.values()];
}

const lanes = laneSpans(), steps = stepSpans();

// Where each turn of a layer that repeats begins and ends.
function layerSpans() {
  const found = [];
  data.layers.filter((layer) => layer.count > 1).forEach((layer) => {
    for (let turn = 0; turn < layer.count; turn++) {
      const first = layer.first + turn * layer.length;
      const own = ops.slice(first, first + layer.length).filter((op) => op.spans.length);
      if (!own.length) continue;
      found.push({
        layer, turn, start: Math.min(...own.map((op) => op.start_ns)),
        end: Math.max(...own.map((op) => op.end_ns)),
      });
    }
  });
  return found;
}

const turns = layerSpans(), TOP = turns.length ? 38 : 20;

function drawTurns(root, x) {
  if (turns.length) label(root, 0, 32, "layers");
  const [low, high] = state.view;
  let drawnTo = -Infinity;
  for (const { layer, turn, start, end } of turns) {
    const from = x(Math.max(start, low)), to = x(Math.min(end, high));
    if (end <= low || start >= high || to - drawnTo < 0.5) continue;
    drawnTo = to;
    const box = svg("rect", {
      class: "layer", x: from, y: 21, width: Math.max(to - from - 1, 0.7), height: 14, rx: 2,
    });
    explain(box, `${turn + 1} of ${layer.label}\n${time(end - start)}`);
    box.addEventListener("click", () => setView(start, end));
    root.append(box);
    const text = `${turn + 1} of ${layer.count}`;
    const fits = [text, String(turn + 1)].find((t) => t.length * 6.2 + 6 < to - from);
    if (fits) root.append(svg("text", { class: "dark", x: from + 4, y: 32 }, fits));
  }
}

function drawTimeline() {
  const height = TOP + 4 + 18 + lanes.length * ROW;
  const [root, width] = frame("timeline", height);
  const [low, high] = state.view;
  const scale = (width - LEFT - 8) / (high - low);
  const x = (ns) => LEFT + (ns - low) * scale;
  for (const tick of ticks(low - t0, high - t0, Math.max(2, width / 140))) {
    grid(root, x(tick + t0), 16, x(tick + t0), height);
    label(root, x(tick + t0) + 3, 11, time(tick));
  }
  drawTurns(root, x);
  if (ofPlan) label(root, 0, TOP + 12, "steps");
  for (const step of ofPlan ? steps : []) {
    const from = Math.max(step.start, low), to = Math.min(step.end, high);
    if (to <= from) continue;
    const box = svg("rect", {
      class: "step", x: x(from), y: TOP + 2, width: Math.max((to - from) * scale - 1, 0.7), height: 12,
    });
    explain(box, `step ${step.step}: ${step.ops} ops, ${time(step.end - step.start)}`);
    root.append(box);
  }
  lanes.forEach(([lane, spans], row) => {
    const y = TOP + 22 + row * ROW;
    label(root, 0, y + 16, laneName(lane));
    drawWaits(root, waitsOf(lane), y, x);
    drawLane(root, spans, y, x, scale);
  });
}

function drawWaits(root, waits, y, x) {
  const [low, high] = state.view;
  for (const { span, signal } of waits) {
    const from = Math.max(span.start_ns, low), to = Math.min(span.end_ns, high);
    if (to <= from) continue;
    const box = svg("rect", {
      class: "wait", x: x(from), y: y + (ROW - 6) / 3, width: Math.max(x(to) - x(from), 0.7),
      height: (ROW - 6) / 3,
    });
    explain(box, `waits for ${signal}\n${time(span.end_ns - span.start_ns)}`);
    root.append(box);
  }
}

function drawLane(root, spans, y, x, scale) {
  const [low, high] = state.view;
  let drawnTo = -Infinity;
  for (const { index, start, end, pieces } of joined(spans, 2 / scale)) {
    if (end < low || start > high) continue;
    const from = x(Math.max(start, low)), to = x(Math.min(end, high));
    // What is narrower than half a pixel hides behind what is drawn there already.
    if (to - drawnTo < 0.5 && index !== state.selected) continue;
    drawnTo = to;
    const width = Math.max(to - from - 1, 0.7), op = ops[index];
    const selected = index === state.selected ? " selected" : wasPreempted(op) ? " preempted" : "";
    const box = svg("rect", {
      class: style(op) + selected, x: from, y, width, height: ROW - 6, rx: Math.min(2, width / 2),
    });
    root.append(hit(box, index, `${hint(op)}\n${pieces > 1 ? `${pieces} pieces` : "this piece"}: ${time(end - start)}`));
    const letters = Math.floor((width - 8) / 6.2);
    if (letters >= 4) {
      const text = op.name.length > letters ? op.name.slice(0, letters - 1) + "…" : op.name;
      root.append(svg("text", { class: "label", x: from + 4, y: y + 16 }, text));
    }
  }
}

// Pieces of one op that lie so near to each other that nobody could tell them apart are one bar.
function joined(spans, gap) {
  const found = [];
  for (const { index, start, end } of spans) {
    const last = found[found.length - 1];
    if (last && last.index === index && start - last.end < gap) {
      last.end = Math.max(last.end, end);
      last.pieces += 1;
    } else found.push({ index, start, end, pieces: 1 });
  }
  return found;
}

function setView(low, high) {
  const span = Math.min(Math.max(high - low, 20), whole[1] - whole[0]);
  const start = Math.min(Math.max(low, whole[0]), whole[1] - span);
  state.view = [start, start + span];
  drawTimeline();
}

function armTimeline() {
  const root = byId("timeline");
  const share = (event) => {
    const box = root.getBoundingClientRect();
    return (event.clientX - box.left - LEFT) / Math.max(box.width - LEFT - 8, 1);
  };
  root.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [low, high] = state.view;
    const at = low + (high - low) * Math.min(Math.max(share(event), 0), 1);
    const factor = Math.exp(Math.sign(event.deltaY) * 0.25);
    setView(at - (at - low) * factor, at + (high - at) * factor);
  }, { passive: false });
  let from = null;
  root.addEventListener("pointerdown", (event) => { from = [share(event), ...state.view]; });
  addEventListener("pointermove", (event) => {
    if (from === null || Math.abs(share(event) - from[0]) < 0.004) return;
    const shift = (from[0] - share(event)) * (from[2] - from[1]);
    setView(from[1] + shift, from[2] + shift);
  });
  addEventListener("pointerup", () => { from = null; });
  byId("reset").addEventListener("click", () => {
    state.arena = [0, Math.max(ops.length, 1)];
    setView(...whole);
    drawArena();
  });
}

// ------------------------------------------------------------------ memory

const KINDS = {
  param: "params", constant: "constants", state: "states", input: "inputs", output: "outputs", kept: "kept",
  buffer: "buffers",
};

function drawMemory() {
  const kinds = new Set([...Object.keys(KINDS), ...run.places.map((place) => place.kind)]);
  const groups = [...kinds].map((kind) => [kind, KINDS[kind] || kind])
    .map(([kind, name]) => [kind, name, run.places.filter((place) => place.kind === kind)])
    .filter(([, , places]) => places.length);
  const total = run.places.reduce((sum, place) => sum + place.bytes, run.arena_bytes);
  byId("memory-note").textContent = `${size(total)} in all, ${size(run.arena_bytes)} of it the ` +
    "arena, which values share. Each row is as wide as all of its kind.";
  const tall = 24, [root, width] = frame("memory", groups.length * tall);
  const left = 210;
  groups.forEach(([kind, name, places], row) => {
    const sum = places.reduce((all, place) => all + place.bytes, 0), y = row * tall;
    const noun = places.length === 1 ? name.replace(/s$/, "") : name;
    label(root, 0, y + 15, `${places.length} ${noun}: ${size(sum)}`);
    let at = left, rest = 0;
    for (const place of places) {
      const wide = (place.bytes / Math.max(sum, 1)) * (width - left - 8);
      if (wide < 1) { rest += wide; continue; }
      const box = svg("rect", {
        class: `${wide < 4 ? "" : "place "}place-${kind}`, x: at, y: y + 2, width: wide, height: tall - 5,
      });
      explain(box, `${place.name}\n${size(place.bytes)}, ${percent(place.bytes / total)} of all`);
      root.append(box);
      fitLabel(root, at, y + 15, wide, place.name);
      at += wide;
    }
    if (rest >= 0.5) {
      const box = svg("rect", { class: `place place-${kind}`, x: at, y: y + 2, width: rest, height: tall - 5 });
      explain(box, `small ${name}`);
      root.append(box);
    }
  });
}

// A text in a bar, if enough of it has room.
function fitLabel(root, x, y, width, text, kind = "label") {
  const letters = Math.floor((width - 8) / 6.2);
  if (letters < 4) return;
  const shown = text.length > letters ? text.slice(0, letters - 1) + "…" : text;
  root.append(svg("text", { class: kind, x: x + 4, y }, shown));
}

// ------------------------------------------------------------------ arena

function drawArena() {
  const peak = Math.max(...data.live_bytes, 0);
  byId("arena-note").textContent = blocks.length === 0 ? "No intermediate values." :
    `${blocks.length} value${blocks.length === 1 ? "" : "s"} in ${size(run.arena_bytes)}; ` +
    `at most ${size(peak)} live at once. ` +
    "Pale: reserved; strong: in use at these variables. The wheel zooms.";
  if (blocks.length === 0) return void frame("arena", 0);
  const height = 300, bottom = 34, left = 64;
  const [root, width] = frame("arena", height);
  const [low, high] = state.arena;
  const x = (op) => left + ((Math.min(Math.max(op, low), high) - low) / (high - low)) * (width - left - 8);
  const y = (bytes) => height - bottom - (bytes / run.arena_bytes) * (height - bottom - 8);
  for (const tick of [0, 0.25, 0.5, 0.75, 1].map((part) => part * run.arena_bytes)) {
    grid(root, left, y(tick), width - 8, y(tick));
    label(root, left - 6, y(tick) + 4, size(tick), "end");
  }
  blocks.forEach((block) => {
    if (block.last + 1 <= low || block.first >= high) return;
    const wide = x(block.last + 1) - x(block.first);
    const base = y(block.offset_bytes);
    const tall = base - y(block.offset_bytes + block.reserved_bytes);
    const used = base - y(block.offset_bytes + block.used_bytes);
    const box = svg("rect", {
      class: wide < 4 ? "block narrow" : "block", x: x(block.first), y: base - tall, width: wide,
      height: tall,
    });
    root.append(hit(box, block.first,
      `${block.name}\n${size(block.used_bytes)} of ${size(block.reserved_bytes)} at ` +
      `${block.offset_bytes}\nalive from op ${block.first} to op ${block.last}`));
    root.append(svg("rect", {
      class: "used", x: x(block.first), y: base - used, height: used,
      width: wide < 4 ? wide : Math.max(wide - 1, 0.5),
    }));
    if (tall >= 14) fitLabel(root, x(block.first), base - Math.max(used / 2, 7) + 4, wide, block.name, "dark");
  });
  const points = data.live_bytes.flatMap((bytes, i) =>
    i + 1 < low || i > high ? [] : [[x(i), y(bytes)], [x(i + 1), y(bytes)]]);
  root.append(svg("polyline", { class: "live", points: points.map((p) => p.join()).join(" ") }));
  label(root, left, height - 18, `op ${Math.floor(low)}`);
  label(root, width - 8, height - 18, `op ${Math.ceil(high) - 1}`, "end");
  label(root, left, height - 4, "order of execution; the line is the sum of live bytes");
  if (state.selected >= low && state.selected < high) {
    root.append(svg("rect", {
      class: "band", x: x(state.selected), y: 8, height: height - bottom - 8,
      width: Math.max(x(state.selected + 1) - x(state.selected), 2),
    }));
  }
}

function armArena() {
  const root = byId("arena");
  root.addEventListener("wheel", (event) => {
    if (!blocks.length) return;
    event.preventDefault();
    const box = root.getBoundingClientRect();
    const part = (event.clientX - box.left - 64) / Math.max(box.width - 72, 1);
    const [low, high] = state.arena, share = Math.min(Math.max(part, 0), 1);
    const span = (high - low) * Math.exp(Math.sign(event.deltaY) * 0.25);
    const wide = Math.min(Math.max(span, Math.min(8, ops.length)), ops.length);
    const first = low + (high - low) * share - wide * share;
    const start = Math.min(Math.max(first, 0), ops.length - wide);
    state.arena = [start, start + wide];
    drawArena();
  }, { passive: false });
}

// ------------------------------------------------------------------ roofline

function drawRoofline() {
  const shown = ops.map((op, index) => ({ op, index }))
    .filter(({ op }) => op.flops > 0 && op.bytes > 0 && op.elapsed > 0);
  const hidden = ran.length - shown.length;
  byId("roofline-note").textContent = shown.length === 0 ? "No op with arithmetic ran." :
    "A larger dot took longer. Above the slope: from a cache. Above the top: the machine was busier " +
    "while its limits were measured." +
    (hidden ? ` ${hidden} ops without arithmetic are not shown.` : "");
  if (shown.length === 0) return void frame("roofline", 0);
  const height = 300, bottom = 34, left = 48;
  const [root, width] = frame("roofline", height);
  const limits = run.limits, ridge = limits ? limits.flops_per_s / limits.bytes_per_s : 1;
  const xs = shown.map(({ op }) => op.flops / op.bytes).concat(ridge);
  const ys = shown.map(({ op }) => op.gflop_per_s).concat(limits ? limits.flops_per_s / 1e9 : []);
  const range = (values) => [
    Math.floor(Math.log10(Math.min(...values)) - 0.1),
    Math.ceil(Math.log10(Math.max(...values)) + 0.1),
  ];
  const [xl, xh] = range(xs), [yl, yh] = range(ys);
  const x = (v) => left + ((Math.log10(v) - xl) / (xh - xl)) * (width - left - 8);
  const y = (v) => height - bottom - ((Math.log10(v) - yl) / (yh - yl)) * (height - bottom - 8);
  for (let power = xl; power <= xh; power++) {
    const at = x(10 ** power), anchor = power === xl ? "start" : power === xh ? "end" : "middle";
    grid(root, at, 8, at, y(10 ** yl));
    label(root, at, height - 18, String(10 ** power), anchor);
  }
  for (let power = yl; power <= yh; power++) {
    const at = y(10 ** power);
    grid(root, left, at, width - 8, at);
    label(root, left - 6, at + 4, String(10 ** power), "end");
  }
  label(root, left, height - 4, "flops per byte; upwards: GFLOP/s");
  if (limits) {
    const at = (v) => [x(v), y(Math.min(limits.flops_per_s, v * limits.bytes_per_s) / 1e9)];
    const lowest = Math.max(10 ** xl, (10 ** yl * 1e9) / limits.bytes_per_s);
    const roof = [at(lowest), at(ridge), at(10 ** xh)];
    root.append(svg("polyline", { class: "roof", points: roof.map((p) => p.join()).join(" ") }));
  }
  const longest = Math.max(...shown.map(({ op }) => op.elapsed));
  shown.sort((a, b) => b.op.elapsed - a.op.elapsed).forEach(({ op, index }) => {
    const dot = svg("circle", {
      class: `dot ${style(op)}${index === state.selected ? " selected" : ""}`,
      cx: x(op.flops / op.bytes), cy: y(op.gflop_per_s), r: 4 + 8 * Math.sqrt(op.elapsed / longest),
    });
    root.append(hit(dot, index, `${hint(op)}\n${fixed(op.flops / op.bytes)} flops per byte`));
  });
}

// ------------------------------------------------------------------ ops and selection

const COLUMNS = [
  ["op", "", (op) => op.op_index, String], ["kind", "text", (op) => op.kind, String],
  ["name", "text", (op) => op.name, String],
  ["lanes", "", (op) => op.lanes.length, (_, op) => op.lanes.join(",") || "-"],
  ["start", "", (op) => op.start_ns, (v) => (ran.length ? time(Math.max(v - t0, 0)) : "-")],
  ["time", "", (op) => op.elapsed, (v) => time(v * 1e9)],
  ["of all", "", (op) => op.elapsed, (v) => percent(data.sum_seconds ? v / data.sum_seconds : 0)],
  ["GB/s", "", (op) => op.gb_per_s, fixed], ["GFLOP/s", "", (op) => op.gflop_per_s, fixed],
  ["+-", "", (op) => op.spread, (v, op) => (op.samples.length > 1 ? percent(v) : "")],
  ["preempted", "", (op) => op.preempted.length, (v) => (v ? `${v} of ${run.runs}` : "")],
  ["limit", "", (op) => op.share_of_limit ?? -1, (_, op) => limitText(op)],
  ["origin", "text", (op) => op.origins[0] || "", String],
].filter(([name]) => run.runs > 1 || !["+-", "preempted"].includes(name));

function meter(share) {
  return html("td", { class: "bar-cell" },
    html("span", { class: "meter", style: `width: ${(100 * share).toFixed(2)}%` }));
}

function foldedRow(share, cells, text, action, op) {
  const row = html("tr", { tabindex: 0, ...(op === undefined ? {} : { "data-op": op }) },
    html("td", {}, percent(share)), meter(share), ...cells.map((cell) => html("td", {}, cell)),
    html("td", { class: "text wide" }, text));
  row.addEventListener("click", action);
  row.addEventListener("keydown", (event) => { if (event.key === "Enter") action(); });
  return row;
}

function drawFolded() {
  const total = data.sum_seconds || 1;
  byId("layers").tBodies[0].append(...data.layers.map((layer) => {
    const each = layer.count > 1 ? `${time((layer.elapsed / layer.count) * 1e9)} each` : "";
    const own = ops.slice(layer.first, layer.first + layer.length * layer.count)
      .filter((op) => op.spans.length);
    const cells = [time(layer.elapsed * 1e9), each];
    const text = layer.where ? `${layer.label}  (${layer.where})` : layer.label;
    return foldedRow(layer.elapsed / total, cells, text, () => {
      if (own.length) setView(Math.min(...own.map((op) => op.start_ns)), Math.max(...own.map((op) => op.end_ns)));
      const last = layer.first + layer.length * layer.count;
      state.arena = [layer.first, Math.max(last, layer.first + 1)];
      drawArena();
    });
  }));
  byId("names").tBodies[0].append(...data.names.map((name) => {
    const longest = ops.reduce((best, op, i) =>
      op.name === name.name && op.kind === name.kind &&
      (best < 0 || op.elapsed > ops[best].elapsed) ? i : best, -1);
    const disturbed = name.preempted ? `, ${name.preempted} preempted` : "";
    const cells = [time(name.elapsed * 1e9), `${name.count} x`, limitText({
      share_of_limit: name.best_share, limited_by: name.limited_by,
    })];
    return foldedRow(name.elapsed / total, cells, name.name + disturbed, () => select(longest), longest);
  }));
}

function drawTable() {
  const table = byId("ops");
  const head = html("tr");
  COLUMNS.forEach(([name, kind]) => {
    const arrow = state.sort[0] === name ? (state.sort[1] > 0 ? " ↑" : " ↓") : "";
    const button = html("button", { type: "button" }, name + arrow);
    button.addEventListener("click", () => {
      state.sort = [name, state.sort[0] === name ? -state.sort[1] : name === "op" ? 1 : -1];
      drawTable();
    });
    head.append(html("th", { class: kind, scope: "col" }, button));
  });
  table.tHead.replaceChildren(head);
  const key = COLUMNS.find(([name]) => name === state.sort[0])[2];
  const order = ops.map((op, index) => [key(op), index]);
  order.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : a[1] - b[1]) * state.sort[1]);
  const shown = state.all ? order : order.slice(0, MANY);
  table.tBodies[0].replaceChildren(...shown.map(([, index]) => tableRow(index)));
  byId("all-ops").hidden = state.all;
  byId("all-ops").textContent = `the first ${shown.length} are shown: show all ${ops.length}`;
}

byId("all-ops").addEventListener("click", () => { state.all = true; drawTable(); });

function tableRow(index) {
  const op = ops[index];
  const cells = COLUMNS.map(([, kind, value, show]) =>
    html("td", { class: kind, ...(kind ? { title: value(op) } : {}) }, show(value(op), op)));
  const chosen = index === state.selected;
  const row = html("tr", { "data-op": index, "aria-selected": chosen, tabindex: 0 }, ...cells);
  row.addEventListener("click", () => select(index));
  row.addEventListener("keydown", (event) => { if (event.key === "Enter") select(index); });
  return row;
}

function drawDetail() {
  const op = ops[state.selected];
  byId("detail-title").textContent = op ? op.name : "Select an op to see its source";
  byId("facts").replaceChildren();
  byId("origins").replaceChildren();
  byId("tabs").replaceChildren();
  byId("source").textContent = "";
  if (!op) return;
  const facts = {
    "kind": op.kind, "op": op.op_index,
    ...(ofPlan ? { "step": op.step } : { "timeline value": op.op_id }), "time": time(op.elapsed * 1e9),
    "lanes": op.lanes.join(", ") || "none", "pieces": op.spans.length,
    "lane time": time(op.busy_ns), "tiles": op.tiles, "moves": size(op.bytes),
    "computes": op.flops.toLocaleString("en") + " flops",
    "GB/s": fixed(op.gb_per_s), "GFLOP/s": fixed(op.gflop_per_s),
    "share of the limit": limitText(op), "buffers": op.num_buffers,
    ...(run.runs > 1 ? {
      "runs": op.samples.map((s, i) => time(s * 1e9) + (op.preempted.includes(i) ? " (preempted)" : ""))
        .join(", "),
    } : {}),
  };
  for (const [name, value] of Object.entries(facts))
    byId("facts").append(html("div", {}, html("dt", {}, name), html("dd", {}, String(value))));
  byId("origins").append(...op.origins.map((line) => html("li", {}, line)));
  drawSource(data.sources[op.source]);
}

function drawSource(source) {
  const tabs = Object.entries(source || {}).filter(([, text]) => text);
  if (tabs.length === 0) return;
  const chosen = Math.min(state.tab, tabs.length - 1);
  tabs.forEach(([name], index) => {
    const role = { type: "button", role: "tab", "aria-selected": index === chosen };
    const tab = html("button", role, name);
    tab.addEventListener("click", () => { state.tab = index; drawDetail(); });
    byId("tabs").append(tab);
  });
  byId("source").textContent = tabs[chosen][1];
}

function select(index) {
  state.selected = index;
  drawDetail();
  drawTimeline();
  drawArena();
  drawRoofline();
  document.querySelectorAll("#ops tbody tr").forEach((row) =>
    row.setAttribute("aria-selected", Number(row.dataset.op) === index));
}

function drawAll() {
  drawTimeline();
  drawMemory();
  drawArena();
  drawRoofline();
}

// ------------------------------------------------------------------ self-test

// With ?selftest the page clicks through itself and says how that went, in #selftest.
const problems = [];
addEventListener("error", (event) => problems.push(event.message));

function selftest() {
  let clicks = 0;
  const expect = (holds, what) => { if (!holds) problems.push(what); };
  const click = (node, what) => {
    if (node === null || node === undefined) return void problems.push(`${what} is missing`);
    clicks += 1;
    node.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  };
  const selects = (selector) => {
    const node = document.querySelector(selector);
    click(node, selector);
    const op = node && ops[Number(node.dataset.op)];
    expect(op && byId("detail-title").textContent === op.name, `${selector} must select its op`);
  };
  if (ran.length) selects("#timeline .hit");
  if (blocks.length) selects("#arena .hit");
  if (document.querySelector("#roofline .dot")) selects("#roofline .dot");
  if (ops.length) selects("#ops tbody tr:last-child");
  if (ops.length) selects("#names tbody tr");
  if (data.layers.length) click(document.querySelector("#layers tbody tr"), "a layer");
  const withSource = ops.findIndex((op) => op.source >= 0);
  if (withSource >= 0) {
    click(document.querySelector(`#ops tr[data-op="${withSource}"]`), "the row of a kernel");
    expect(byId("source").textContent.length > 0, "a kernel must show its source");
    click(byId("tabs").lastElementChild, "the last tab");
    const chosen = byId("tabs").lastElementChild.getAttribute("aria-selected");
    expect(chosen === "true", "tabs must switch");
  }
  const shownRows = Math.min(ops.length, MANY);
  document.querySelectorAll("#ops th button").forEach((button, i) => {
    click(document.querySelectorAll("#ops th button")[i], "a column head");
    expect(document.querySelectorAll("#ops tbody tr").length === shownRows, "sorting keeps rows");
  });
  if (blocks.length) {
    const wide = state.arena[1] - state.arena[0];
    byId("arena").dispatchEvent(new WheelEvent("wheel", { deltaY: -1, cancelable: true }));
    expect(wide <= 8 || state.arena[1] - state.arena[0] < wide, "the wheel must zoom the arena");
  }
  byId("all-ops").click();
  expect(document.querySelectorAll("#ops tbody tr").length === ops.length, "all ops can be shown");
  const before = state.view[1] - state.view[0];
  byId("timeline").dispatchEvent(new WheelEvent("wheel", { deltaY: -1, cancelable: true }));
  expect(before <= 20 || state.view[1] - state.view[0] < before, "the wheel must zoom");
  click(byId("reset"), "the reset button");
  expect(state.view[0] === whole[0] && state.view[1] === whole[1], "reset shows the whole run");
  const verdict = problems.length ? `failed: ${problems.join("; ")}` : `passed: ${clicks} clicks`;
  document.body.append(html("p", { id: "selftest" }, `selftest ${verdict}`));
}

drawHead();
drawFolded();
drawTable();
drawDetail();
armTimeline();
armArena();
drawAll();
addEventListener("resize", drawAll);
if (new URLSearchParams(location.search).has("selftest")) selftest();
