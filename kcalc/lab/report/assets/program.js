"use strict";
// The program of the network, run in the page: with the rules of the kernel calculus and local maps from tables.

function unpacked(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Float64Array(bytes.buffer);
}

function clenshaw(c, n, t) {
  let a = 0, b = 0;
  for (let k = n - 1; k > 0; k--) { const next = 2 * t * a - b + c[k]; b = a; a = next; }
  return t * a - b + c[0];
}

const angleOf = (gap) => 2 * Math.asin(Math.sqrt(Math.min(Math.max(gap, 0), 2) / 2));
const gapOf = (theta) => { const s = Math.sin(theta / 2); return 2 * s * s; };

class OutOfTable extends Error {}

class LocalTable {
  constructor(json) {
    Object.assign(this, json);
    this.data = unpacked(json.c);
    this.rows = new Map();
  }
  level(value) {
    if (this.hi === this.lo) return 0;
    if (this.flat && value < this.lo && value > -600) return -1;
    const t = (2 * value - this.lo - this.hi) / (this.hi - this.lo);
    if (!(Math.abs(t) <= 1 + 1e-9)) throw new OutOfTable(this.name);
    return Math.min(Math.max(t, -1), 1);
  }
  row(value) {
    let row = this.rows.get(value);
    if (row) return row;
    const t = this.level(value);
    row = new Float64Array(this.n);
    for (let i = 0; i < this.n; i++) row[i] = clenshaw(this.data.subarray(i * this.m, (i + 1) * this.m), this.m, t);
    if (this.rows.size > 3000) this.rows.clear();
    this.rows.set(value, row);
    return row;
  }
  at(row, theta) { return clenshaw(row, this.n, 2 * theta / Math.PI - 1); }
  series(name, value) { const c = this[name]; return clenshaw(c, c.length, this.level(value)); }
}

// Local maps: (number of the activation, group) -> group. A group: share f, q, gaps u, mean m, slope s of the gap at 0.

function mapped(group, q, mean, row, table, ratio) {
  const u = new Float64Array(group.u.length);
  for (let i = 0; i < u.length; i++) u[i] = group.u[i] * ratio(table.at(row, angleOf(group.u[i])));
  return { f: group.f, q, u, m: mean, s: group.s * ratio(table.at(row, 0)) };
}

function rawLocal(tables) {
  return (number, group) => {
    const table = tables[number];
    if (table.deg !== undefined) {
      const q = table.q[0] * Math.pow(group.q, table.deg);
      return mapped(group, q, table.mu[0] * Math.sqrt(q), table.data, table, (x) => x);
    }
    const level = Math.log(group.q);
    let q;
    try { q = group.q * Math.exp(table.series("q", level)); } catch (e) {
      throw new OutOfTable(`a layer reaches q = ${short(group.q)}, and the table of ${table.name} goes from ` +
        `${short(Math.exp(table.lo))} to ${short(Math.exp(table.hi))}`);
    }
    const mean = table.series("mu", level) * Math.sqrt(q);
    if (!group.u.length) return { f: group.f, q, u: group.u, m: mean, s: NaN };
    return mapped(group, q, mean, table.row(level), table, (x) => x);
  };
}

function shapedLocal(family, table, setting) {
  return (number, group) => {
    if (Math.abs(group.q - 1) > 1e-6) throw new OutOfTable("a layer of the shaped network does not keep q = 1");
    if (family.kind === "table") {
      const excess = setting.psi - 1;
      let row;
      try { row = table.row(Math.log(excess)); } catch (e) {
        throw new OutOfTable(`the local slope ${setting.psi.toPrecision(6)} lies outside the table of ${family.label}, ` +
          `1 + ${short(Math.exp(table.lo))} to 1 + ${short(Math.exp(table.hi))}`);
      }
      return mapped(group, 1, 0, row, table, (x) => setting.psi + excess * x);
    }
    if (family.kind === "fixed") throw new OutOfTable("constants that were computed once do not follow the sliders");
    const k = setting.k, centre = setting.centred ? k / Math.PI : 0;
    return mapped(group, 1, Math.sqrt(k / Math.PI - centre), table.data, table, (x) => ((1 - k) + k * x) / (1 - centre));
  };
}

function whole(groups) {
  if (groups.length === 1) return groups[0];
  const q = groups.reduce((t, g) => t + g.f * g.q, 0), out = { f: 1, q, u: new Float64Array(groups[0].u.length), m: 0, s: 0 };
  for (const g of groups) {
    const w = g.f * g.q / q;
    for (let i = 0; i < out.u.length; i++) out.u[i] += w * g.u[i];
    out.m += g.f * g.m; out.s += w * g.s;
  }
  return out;
}

function scaledGaps(u, factor) { return factor === 1 ? u : u.map((x) => x * factor); }

function added(weights, inputs) {
  return inputs[0].map((_, j) => {
    const row = inputs.map((groups) => groups[j]);
    let q = 0, mean = 0, squares = 0;
    row.forEach((g, i) => { const w = weights[i], m = w * g.m; q += w * w * g.q; mean += m; squares += m * m; });
    q += mean * mean - squares;
    const u = new Float64Array(row[0].u.length);
    let s = 0;
    row.forEach((g, i) => {
      const w = weights[i] * weights[i] * g.q / q;
      s += w * g.s;
      for (let n = 0; n < u.length; n++) u[n] += w * g.u[n];
    });
    return { f: row[0].f, q, u, m: mean, s };
  });
}

// Independent factors: q values, c values and means multiply.
function multiplied(inputs) {
  return inputs[0].map((first, j) => {
    const out = { f: first.f, q: first.q, u: Float64Array.from(first.u), m: first.m, s: first.s };
    for (const groups of inputs.slice(1)) {
      const g = groups[j];
      out.q *= g.q; out.m *= g.m; out.s += g.s;
      for (let n = 0; n < out.u.length; n++) out.u[n] += g.u[n] - out.u[n] * g.u[n];
    }
    return out;
  });
}

function weightsOf(step, shortcut) {
  if (step.shortcut === undefined || shortcut === null) return step.numbers;
  const other = Math.sqrt((1 - shortcut) * (1 + shortcut));
  return step.shortcut === 0 ? [shortcut, other] : [other, shortcut];
}

function applied(step, inputs, activated, shortcut) {
  const first = inputs[0];
  switch (step.kind) {
    case "aff": {
      const all = whole(first), w = step.numbers[0] * step.numbers[0];
      const q = w * (step.standardised ? all.q - all.m * all.m : all.q) + step.numbers[1] * step.numbers[1], factor = w * all.q / q;
      return [{ f: 1, q, u: scaledGaps(all.u, factor), m: 0, s: all.s * factor }];
    }
    case "phi": return first.map((g) => activated(step.activation, g));
    case "sum": return added(weightsOf(step, shortcut), inputs);
    case "prd": return multiplied(inputs);
    case "cat": return inputs.flatMap((groups, i) => groups.map((g) => ({ ...g, f: g.f * step.numbers[i], root: g.root || g })));
    case "scl": return first.map((g) => ({ ...g, q: g.q * step.numbers[0] * step.numbers[0], m: g.m * step.numbers[0], root: undefined }));
    case "ln": case "rms": {
      const all = whole(first), middle = step.kind === "ln" ? all.m : 0, variance = all.q - middle * middle;
      return first.map((g) => {
        const q = (g.q - 2 * middle * g.m + middle * middle) / variance, factor = g.q / variance / q;
        return { f: g.f, q, u: scaledGaps(g.u, factor), m: (g.m - middle) / Math.sqrt(variance), s: g.s * factor };
      });
    }
  }
  return first;
}

// setting: {q, gaps, counts, shortcut, local}; returns the groups of every step of the last repetition of every piece.
function runProgram(program, setting, from) {
  const start = { f: 1, q: setting.q, u: Float64Array.from(setting.gaps), m: 0, s: 1 }, done = new Map();
  const activated = (number, group) => {
    const key = group.root || group;
    let table = done.get(key);
    if (!table) done.set(key, table = new Map());
    if (!table.has(number)) table.set(number, setting.local(number, group));
    const out = table.get(number);
    return group.root || out.f !== group.f ? { ...out, f: group.f, root: out } : out;
  };
  const kept = [];
  let entry = from ? [start] : null;
  program.pieces.forEach((piece, i) => {
    kept.push([]);
    if (from && i < from[0]) return;
    const count = setting.counts[i];
    for (let n = 0; n < count; n++) {
      const states = [];
      for (const step of piece.steps) {
        const inputs = step.reads.map((r) => (r < 0 ? entry : states[r]));
        states.push(step.kind === "in" ? [start] : applied(step, inputs, activated, setting.shortcut));
      }
      entry = states[states.length - 1];
      kept[i] = states;
    }
  });
  return kept;
}

function outputOf(program, setting, which) {
  const [i, k] = program.outputs[which || 0];
  return whole(runProgram(program, setting)[i][k]);
}

// Run a subnetwork inside one piece, from a step (-1: the input of the piece) to another, starting with the given gaps.
function runInside(piece, from, to, setting) {
  const start = [{ f: 1, q: 1, u: Float64Array.from(setting.gaps), m: 0, s: 1 }], states = [], activated = (n, g) => setting.local(n, g);
  if (from >= 0) states[from] = start;
  for (let k = Math.max(from + 1, 0); k <= to; k++) {
    const step = piece.steps[k], inputs = step.reads.map((r) => (r < 0 ? (from < 0 ? start : undefined) : states[r]));
    if (inputs.length && inputs.every(Boolean)) states[k] = applied(step, inputs, activated, setting.shortcut);
  }
  return whole(states[to]);
}

// -- slopes: log V of every step, V being the product and mix of local slopes psi -----------------------------------------------------

function mixedLogs(shares, logs) {
  const top = Math.max(...logs), total = shares.reduce((a, b) => a + b, 0);
  return top + Math.log(logs.reduce((sum, x, i) => sum + shares[i] / total * Math.exp(x - top), 0));
}

function stepSlope(step, logs, logPsi, shortcut) {
  if (step.kind === "in") return 0;
  if (step.kind === "phi") return logs[0] + logPsi;
  if (step.kind === "sum") return mixedLogs(weightsOf(step, shortcut).map((w) => w * w), logs);
  if (step.kind === "cat") return mixedLogs(step.numbers, logs);
  if (step.kind === "prd") return Math.log(logs.length) + mixedLogs(logs.map(() => 1), logs); // slopes of factors add up
  return logs[0];
}

function pieceSlopes(piece, logPsi, shortcut) {
  const logs = [];
  for (const step of piece.steps) logs.push(stepSlope(step, step.reads.map((r) => (r < 0 ? 0 : logs[r])), logPsi, shortcut));
  return logs;
}

// log of the maximal slope over the maximal subnetworks; pairs are [piece, step, piece, step].
function logMaximalSlope(program, pairs, logPsi, counts, shortcut) {
  const logs = program.pieces.map((piece) => pieceSlopes(piece, logPsi, shortcut));
  let best = 0;
  for (const [i, a, j, b] of pairs) {
    let value;
    if (i === j && !(a === -1 && b === program.pieces[i].steps.length - 1)) value = logs[j][b] - (a < 0 ? 0 : logs[i][a]);
    else {
      value = 0;
      for (let n = a < 0 ? i : i + 1; n < j; n++) value += counts[n] * logs[n][logs[n].length - 1];
      value += (counts[j] - 1) * logs[j][logs[j].length - 1] + logs[j][b];
    }
    best = Math.max(best, value);
  }
  return best;
}

function bisected(increasing, target, low, high) {
  for (let n = 0; n < 200; n++) {
    const middle = (low + high) / 2;
    if (middle <= low || middle >= high) break;
    if (increasing(middle) < target) low = middle; else high = middle;
  }
  return (low + high) / 2;
}

function slopeFor(program, pairs, zeta, counts, shortcut) {
  const goal = Math.log(zeta), of = (x) => logMaximalSlope(program, pairs, x, counts, shortcut);
  if (of(goal) <= 0) return null;
  if (of(0) >= goal) throw new OutOfTable(`zeta must exceed ${short(Math.exp(of(0)))} in this network, whose products add up slopes`);
  return Math.exp(bisected(of, goal, 0, goal));
}

// The largest c value that a subnetwork gives to orthogonal inputs.
function maximalCosine(program, pairs, setting) {
  let best = 0;
  for (const [i, a, j, b] of pairs) {
    const piece = program.pieces[i], last = program.pieces[j].steps.length - 1;
    let end;
    if (i === j && !(a === -1 && b === last)) end = runInside(piece, a, b, { ...setting, gaps: [1] });
    else end = whole(runProgram(program, { ...setting, gaps: [1], q: 1 }, [a < 0 ? i : i + 1])[j][b]);
    best = Math.max(best, 1 - end.u[0]);
  }
  return best;
}

function short(x) {
  if (x === Infinity) return "infinite";
  if (!Number.isFinite(x)) return "not a number";
  if (x === 0) return "0";
  const size = Math.abs(x);
  return size >= 1e-3 && size < 1e5 ? String(Number(x.toPrecision(4))) : x.toExponential(2).replace("e+", "e");
}
