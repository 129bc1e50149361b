// The sliders: settings, the maps for these settings, and values of the maps.

class MapsPanel {
  constructor(data) {
    this.json = data.explorer;
    this.outputs = data.outputs;
    this.tables = this.json.tables.map((t) => new LocalTable(t));
    const own = this.json.families.findIndex((f) => f.own && f.kind !== "none");
    this.fixed = this.json.families.findIndex((f) => f.kind === "fixed");
    // The activations of the network are never replaced silently: if they have no tables, the reader chooses others (-1 if none is chosen yet).
    this.state = {
      choice: this.json.choices.length && !this.json.choices[0].reason ? 0 : -1, family: own, output: this.outputs.length - 1,
      method: own >= 0 && own === this.fixed ? "fixed" : data.method === "tat" ? "tat" : "dks", zeta: data.setting.zeta || Math.max(1.5, this.json.zeta[0]), eta: data.setting.eta || 0.9, q: 1, c: 0.5,
      counts: this.json.depths.map((d) => d.count), shortcut: null,
    };
    this.fields = new Map();
    this.grid = Array.from({ length: 121 }, (_, i) => Math.PI * (1 - i / 120));
  }

  // -- controls -----------------------------------------------------------------------------------------------------------------------

  build(place) {
    const raw = this.json.program, shaped = this.json.shaped && this.json.families.length;
    if (raw && this.json.choices.length) this.select(place, "choice", "Activation before shaping", this.json.choices.map((c) => [c.label, Boolean(c.reason)]));
    this.json.depths.forEach((d, i) => this.slider(place, `depth-${i}`, d.label, 1, d.most, 1, d.count, String,
      (v) => { this.state.counts[i] = Math.round(v); }, `${d.layers} nonlinear layer${d.layers > 1 ? "s" : ""} each, first at ${d.first}`));
    if (this.json.shortcut) {
      const s = this.json.shortcut;
      this.slider(place, "shortcut", "Shortcut weight", 0, 0.99, 0.001, s.value, (v) => (this.state.shortcut === null && !s.common ? "as built" : v.toFixed(4)),
        (v) => { this.state.shortcut = v; }, s.hint);
    }
    if (raw) this.slider(place, "q", "q of the input", Math.log10(0.5), Math.log10(2), 0.001, 0, (v) => short(Math.pow(10, v)),
      (v) => { this.state.q = Math.pow(10, v); }, "mean square of the inputs, before shaping");
    if (shaped) {
      this.select(place, "family", "Shaped activation", this.json.families.map((f) => [f.label, f.kind === "none"]));
      const slides = this.sliding() >= 0, methods = [["DKS (zeta)", !slides], ["TAT (eta)", !this.json.families.some((f) => f.kind === "leaky")]];
      if (this.fixed >= 0) methods.unshift(["as computed, without sliders", false]);
      this.select(place, "method", "Method of shaping", methods, this.fixed >= 0 ? ["fixed", "dks", "tat"] : ["dks", "tat"]);
      this.slider(place, "zeta", "zeta", Math.log(this.json.zeta[0] - 1), Math.log(this.json.zeta[1] - 1), 0.001, Math.log(this.state.zeta - 1),
        (v) => (1 + Math.exp(v)).toFixed(4), (v) => { this.state.zeta = 1 + Math.exp(v); }, "largest slope of any subnetwork at c = 1 (DKS)");
      this.slider(place, "eta", "eta", 0.01, 0.99, 0.001, this.state.eta, (v) => v.toFixed(3), (v) => { this.state.eta = v; },
        "largest cosine that any subnetwork gives to orthogonal inputs (TAT, leaky ReLU)");
    }
    if (this.outputs.length > 1) this.select(place, "output", "Output", this.outputs.map((o) => [o, false]));
    this.numberField(place);
    const reset = make("button", { type: "button", id: "reset" }, "Reset all");
    reset.addEventListener("click", () => this.reset());
    place.append(make("div", { class: "control" }, reset));
  }

  select(place, name, label, options, values) {
    const field = make("select", { id: `control-${name}` }, options.map(([text, off], i) => make("option", { value: values ? values[i] : i, disabled: off }, text)));
    if (this.state[name] === -1) field.prepend(make("option", { value: -1 }, "none (choose one)"));
    field.value = this.state[name];
    field.addEventListener("change", () => {
      this.state[name] = values ? field.value : Number(field.value);
      const kind = (this.json.families[this.state.family] || {}).kind;
      if (name === "method" && field.value === "tat") this.choose("family", this.json.families.findIndex((f) => f.kind === "leaky"));
      if (name === "method" && field.value === "fixed") this.choose("family", this.fixed);
      if (name === "method" && field.value === "dks" && kind === "fixed") this.choose("family", this.sliding());
      if (name === "family") this.choose("method", kind === "fixed" ? "fixed" : kind === "leaky" && this.state.method === "tat" ? "tat" : "dks");
      this.update();
    });
    this.fields.set(name, { field, start: this.state[name], apply: (v) => { this.state[name] = v; field.value = v; } });
    place.append(make("div", { class: "control" }, make("label", { for: field.id }, label), field));
  }

  sliding() { return this.json.families.findIndex((f) => f.kind === "table" || f.kind === "leaky"); }

  choose(name, value) { const known = this.fields.get(name); if (known) known.apply(value); else this.state[name] = value; }

  slider(place, name, label, low, high, step, start, text, apply, hint) {
    const id = `control-${name}`, out = make("output", { id: `${id}-value`, for: id });
    const field = make("input", { type: "range", id, min: low, max: high, step, "aria-describedby": `${id}-hint` });
    field.min = low; field.max = high; field.step = step === 1 ? 1 : "any"; field.value = start;
    const said = (value) => { out.textContent = text(value); field.setAttribute("aria-valuetext", text(value)); };
    field.addEventListener("input", () => { apply(Number(field.value)); said(Number(field.value)); this.later(); });
    if (step !== 1) field.addEventListener("keydown", (e) => this.byKey(e, field, (high - low) / 100));
    said(start);
    this.fields.set(name, { field, start, apply: (v) => { field.value = v; apply(v); said(v); } });
    place.append(make("div", { class: "control" }, make("label", { for: id }, make("span", {}, label), out), field, make("small", { id: `${id}-hint` }, hint)));
  }

  // step="any" keeps exact start values; keys then move by a hundredth of the range.
  byKey(event, field, step) {
    const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    field.value = Number(field.value) + moves[event.key] * step;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }

  numberField(place) {
    const field = make("input", { type: "number", id: "control-c", min: -1, max: 1, step: 0.01, value: this.state.c });
    const note = make("small", { id: "control-c-note", "aria-live": "polite" });
    field.setAttribute("aria-describedby", note.id);
    const fine = () => { field.removeAttribute("aria-invalid"); note.textContent = ""; };
    field.addEventListener("input", () => {
      const value = Number(field.value);
      if (field.value !== "" && value >= -1 && value <= 1) { this.state.c = value; fine(); this.later(); return; }
      field.setAttribute("aria-invalid", "true");
      note.textContent = `${field.value === "" ? "No number is given" : "A cosine lies between \u22121 and 1"}; the numbers below are still those at c = ${this.state.c}.`;
    });
    this.fields.set("c", { field, start: this.state.c, apply: (v) => { field.value = v; this.state.c = v; fine(); } });
    place.append(make("div", { class: "control" }, make("label", { for: "control-c" }, "Read out at c"), field, note));
  }

  reset() {
    for (const { start, apply } of this.fields.values()) apply(start);
    this.state.shortcut = null;
    this.update();
  }

  later() { cancelAnimationFrame(this.frame); this.frame = requestAnimationFrame(() => this.update()); }

  // -- settings -----------------------------------------------------------------------------------------------------------------------

  counts(program, key) {
    const counts = program.pieces.map((p) => p.count);
    this.json.depths.forEach((d, i) => { if (d[key] !== undefined) counts[d[key]] = this.state.counts[i]; });
    return counts;
  }

  raw() {
    if (!this.json.program || this.state.choice < 0) return null;
    const tables = this.json.choices[this.state.choice].tables.map((i) => this.tables[i]);
    const local = rawLocal(tables), counts = this.counts(this.json.program, "raw");
    const run = (gaps, q) => outputOf(this.json.program, { q: q || this.state.q, gaps, counts, shortcut: this.state.shortcut, local }, this.state.output);
    const label = this.json.choices[this.state.choice].label, aside = this.state.choice ? ` with ${this.instead(label)}` : "";
    return { name: aside ? `before,${aside}${this.where()}` : `before, ${label}${this.where()}`, aside: aside + this.where(), run };
  }

  instead(label) { return `${label} instead of ${this.json.own}`; }

  where() { return this.outputs.length > 1 ? ` at output ${this.outputs[this.state.output]}` : ""; }

  asBuilt() {
    return this.state.shortcut === null && this.json.depths.every((d, i) => d.shaped === undefined || d.count === this.state.counts[i]);
  }

  // The shaped network with the constants that were computed for it; tables represent its activations.
  still(program, family) {
    if (!this.asBuilt()) throw new OutOfTable(`the constants of ${family.label} were computed for the network as built, and do not follow the sliders; reset, or choose another shaped activation`);
    const local = rawLocal(family.tables.map((i) => this.tables[i])), counts = program.pieces.map((p) => p.count);
    const run = (gaps) => outputOf(program, { q: 1, gaps, counts, shortcut: null, local }, this.state.output);
    return { name: `after, ${family.label}${this.where()}`, aside: `, ${family.label}${this.where()}`, run, setting: null, family };
  }

  shaped() {
    const program = this.json.shaped, family = this.json.families[this.state.family];
    if (!program || !family || family.kind === "none") return null;
    if (family.kind === "fixed") return this.still(program, family);
    const counts = this.counts(program, "shaped"), shortcut = this.state.shortcut, table = this.tables[family.table];
    const setting = this.solved(program, family, counts, shortcut);
    const local = shapedLocal(family, table, setting);
    const run = (gaps) => outputOf(program, { q: 1, gaps, counts, shortcut, local }, this.state.output);
    const aside = family.own ? "" : ` with ${this.instead(family.label)}`, method = this.state.method.toUpperCase();
    return { name: `after ${method}${aside || `, ${family.label}`}${this.where()}`, aside: aside + this.where(), run, setting, family, table };
  }

  solved(program, family, counts, shortcut) {
    const pairs = this.json.pairs;
    if (this.state.method === "tat") {
      const local = (k) => shapedLocal(family, this.tables[family.table], { k, centred: false });
      const most = (slope) => maximalCosine(program, pairs, { counts, shortcut, local: local((1 - slope) ** 2 / (1 + slope ** 2)) });
      const reached = most(0);
      if (reached < this.state.eta) throw new OutOfTable(`eta = ${this.state.eta.toFixed(3)} is unreachable: even ReLUs give at most ${reached.toFixed(4)} in such a shallow network`);
      const slope = -bisected((x) => most(-x), this.state.eta, -1, 0);
      return { slope, k: (1 - slope) ** 2 / (1 + slope ** 2), centred: false };
    }
    const psi = slopeFor(program, pairs, this.state.zeta, counts, shortcut);
    if (psi === null) throw new OutOfTable("the network has no subnetwork with a nonlinear layer");
    const k = Math.PI * (1 - 1 / psi);
    if (family.kind === "leaky" && k > 1) throw new OutOfTable(`a leaky ReLU reaches slopes up to 1.46694, but ${psi.toFixed(5)} is needed`);
    return { psi, k, centred: true };
  }

  // -- results -------------------------------------------------------------------------------------------------------------------

  update() {
    const notes = this.state.choice < 0 && this.json.notes.raw ? [this.json.notes.raw] : [], found = [], method = this.state.method;
    if (this.json.notes.shaped && this.state.family < 0) notes.push(this.json.notes.shaped);
    for (const [name, off] of [["zeta", method !== "dks"], ["eta", method !== "tat"]]) { const known = this.fields.get(name); if (known) known.field.disabled = off; }
    for (const [part, style] of [["raw", "s0"], ["shaped", "s1"]]) {
      try {
        const map = this[part]();
        if (map) { map.curve = map.run(this.grid.map(gapOf)); map.style = style; map.part = part; found.push(map); }
      } catch (error) {
        if (!(error instanceof OutOfTable)) throw error;
        notes.push(`${part === "raw" ? "Before" : "After"} shaping there is no value at these settings: ${error.message}.`);
      }
    }
    document.getElementById("maps-note").textContent = notes.join(" ");
    this.drawC(found);
    this.drawQ(found);
    this.readOut(found);
  }

  drawC(found) {
    const marks = [];
    for (const map of found) {
      map.points = this.fixedPoints(map);
      for (const p of map.points) marks.push([p.c, p.c, map.style]);
    }
    drawChart(document.getElementById("chart-c"), {
      title: claimOfMaps(found, (map) => 1 - map.run([1]).u[0]), equal: true, identity: true, marks,
      x: { label: "c of the inputs (cosine)", range: [-1, 1] }, y: { label: "C(c) of the outputs (cosine)", range: [-1, 1] },
      series: found.map((map) => ({ name: map.name, style: map.style, points: this.grid.map((t, i) => [snapped(Math.cos(t)), snapped(1 - map.curve.u[i])]) })),
    });
  }

  drawQ(found) {
    const map = found.find((m) => m.part === "raw"), place = document.getElementById("chart-q");
    if (!map) { place.replaceChildren(); place.style.display = ""; place.redraw = null; return; }
    const points = [];
    for (let i = 0; i <= 40; i++) {
      const q = 0.5 * Math.pow(4, i / 40);
      try { points.push([q, map.run([], q).q]); } catch (error) { if (!(error instanceof OutOfTable)) throw error; }
    }
    const at = points.length ? points.reduce((a, p) => (Math.abs(Math.log(p[0])) < Math.abs(Math.log(a[0])) ? p : a)) : [1, NaN];
    drawChart(place, {
      title: `Inputs of q = 1 come out with q = ${short(at[1])} before shaping${map.aside}`, x: { label: "q of the inputs (mean square)", log: true },
      y: { label: "Q(q) of the outputs (mean square)", log: true }, series: [{ name: map.name, style: "s0", points }],
    });
  }

  fixedPoints(map) {
    const excess = (theta) => map.run([gapOf(theta)]).u[0] - gapOf(theta), grid = this.grid.slice(1, -1), out = [];
    if (grid.every((t, i) => Math.abs(map.curve.u[i + 1] - gapOf(t)) < 1e-12)) return [];
    for (let i = 0; i + 1 < grid.length; i++) {
      let a = grid[i], b = grid[i + 1], fa = map.curve.u[i + 1] - gapOf(a), fb = map.curve.u[i + 2] - gapOf(b);
      if (!(fa * fb < 0)) continue;
      for (let n = 0; n < 60; n++) { const m = (a + b) / 2, f = excess(m); if (f * fa > 0) { a = m; fa = f; } else b = m; }
      const theta = (a + b) / 2, h = 1e-5 * Math.min(1, theta, Math.PI - theta);
      const [high, low] = map.run([gapOf(theta + h), gapOf(theta - h)]).u;
      out.push({ c: Math.abs(Math.cos(theta)) < 1e-9 ? 0 : Math.cos(theta), slope: (high - low) / (gapOf(theta + h) - gapOf(theta - h)) });
    }
    out.push({ c: 1, slope: map.curve.s });
    return out;
  }

  readOut(found) {
    const gap = 1 - this.state.c, head = ["quantity", ...found.map((m) => m.name)], rows = [];
    const add = (label, key, value) => rows.push(make("tr", {}, make("th", { scope: "row" }, label), found.map((m) => {
      const v = value(m);
      return make("td", typeof v === "number" ? { "data-key": `${m.part}-${key}`, "data-value": String(v) } : {}, typeof v === "number" ? digits(key === "q" ? v : snapped(v)) : v);
    })));
    if (found.length) {
      add(`C(${this.state.c})`, "c", (m) => 1 - m.run([gap]).u[0]);
      add("angle of the outputs, rad", "angle", (m) => angleOf(m.run([gap]).u[0]));
      add("C(0)", "level", (m) => 1 - m.run([1]).u[0]);
      add("slope C'(1)", "slope", (m) => m.curve.s);
      add("q of the output", "q", (m) => m.curve.q);
      add("local slope psi", "psi", (m) => (m.setting ? (m.setting.psi === undefined ? 1 : m.setting.psi) : "-"));
      add("fixed points c (slope there)", "fixed", (m) => (m.points.length ? m.points.map((p) => `${short(p.c)} (${short(p.slope)})`).join(", ") : "every c"));
      add("constants", "constants", (m) => this.constants(m));
    }
    const table = make("table", {}, make("caption", {}, `Numbers at the settings above, read out at c = ${this.state.c}`),
      make("thead", {}, make("tr", {}, head.map((h) => make("th", { scope: "col" }, h)))), make("tbody", {}, rows));
    document.getElementById("readout").replaceChildren(make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Numbers at the settings above" }, table));
  }

  constants(map) {
    if (!map.setting) return map.family ? "those of the section Constants" : "-";
    if (map.setting.slope !== undefined) return `negative slope ${digits(map.setting.slope)}`;
    if (map.family.kind === "leaky") {
      const w = map.setting.k, root = Math.sqrt(w * (2 - w));
      return `negative slope ${digits((1 - w) / (1 + root))}`;
    }
    const all = unpacked(map.family.constants), n = all.length / 4, t = map.table.level(Math.log(map.setting.psi - 1));
    const [a, b, g, d] = [0, 1, 2, 3].map((i) => clenshaw(all.subarray(i * n, (i + 1) * n), n, t));
    return `alpha ${digits(Math.exp(a))}, beta ${digits(b)}, gamma ${digits(Math.exp(g))}, delta ${digits(d)}`;
  }
}

// Values that are rounding errors relative to 1 are shown as 0.
function snapped(x) { return Math.abs(x) < 1e-12 ? 0 : x; }

function digits(x) { return Number.isFinite(x) ? String(Number(x.toPrecision(10))).replace("-", "\u2212") : short(x); }

function claimOfMaps(found, level) {
  if (!found.length) return "No map at these settings";
  return found.map((map) => {
    const c = level(map), words = Math.abs(c) < 5e-4 ? "0" : short(c);
    return `${map.part === "raw" ? "Before" : "after"} shaping${map.aside}, orthogonal inputs come out with cosine ${words}`;
  }).join("; ").replace(/^after/, "After");
}
