// The drawing: zoom and pan by mouse, touch and keys; subnetworks; the numbers of a layer.

class Drawing {
  constructor(frame, data) {
    this.frame = frame; this.svg = frame.querySelector("svg"); this.data = data;
    this.width = Number(this.svg.getAttribute("width")); this.height = Number(this.svg.getAttribute("height"));
    this.nodes = [...frame.querySelectorAll("[data-node]")];
    this.pointers = new Map();
    this.fit();
    this.listen();
  }

  fit() {
    const room = this.frame.getBoundingClientRect();
    this.least = Math.min(room.width / this.width, room.height / this.height, 1);
    this.scale = this.least; this.x = (room.width - this.width * this.scale) / 2; this.y = Math.max(0, (room.height - this.height * this.scale) / 2);
    this.show();
  }

  show() {
    this.svg.style.transform = `translate(${this.x}px,${this.y}px) scale(${this.scale})`;
    this.frame.classList.toggle("zoomed", this.scale > this.least * 1.01);
  }

  zoom(factor, at) {
    const room = this.frame.getBoundingClientRect(), [px, py] = at || [room.width / 2, room.height / 2];
    const scale = Math.min(Math.max(this.scale * factor, this.least * 0.8), 6), ratio = scale / this.scale;
    this.x = px - (px - this.x) * ratio; this.y = py - (py - this.y) * ratio; this.scale = scale;
    this.show();
  }

  move(dx, dy) { this.x += dx; this.y += dy; this.show(); }

  listen() {
    const frame = this.frame, at = (e) => { const r = frame.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
    frame.addEventListener("wheel", (e) => { if (e.ctrlKey || e.metaKey) { e.preventDefault(); this.zoom(Math.exp(-e.deltaY / 300), at(e)); } }, { passive: false });
    frame.addEventListener("pointerdown", (e) => { this.pointers.set(e.pointerId, at(e)); this.moved = 0; });
    frame.addEventListener("pointermove", (e) => this.dragged(e, at(e)));
    for (const kind of ["pointerup", "pointercancel", "pointerleave"]) frame.addEventListener(kind, (e) => this.pointers.delete(e.pointerId));
    frame.addEventListener("keydown", (e) => this.key(e));
    document.querySelectorAll("[data-zoom]").forEach((b) => b.addEventListener("click", () => (b.dataset.zoom === "fit" ? this.fit() : this.zoom(b.dataset.zoom === "in" ? 1.4 : 1 / 1.4))));
    this.nodes.forEach((node, i) => {
      node.setAttribute("tabindex", i ? "-1" : "0");
      node.addEventListener("click", () => { if (this.moved < 6) this.choose(node); });
      node.addEventListener("focus", () => this.choose(node));
      node.addEventListener("mouseenter", () => this.describe(node));
    });
    document.getElementById("subnetwork")?.addEventListener("change", (e) => this.pick(e.target.value));
    window.addEventListener("resize", () => this.fit());
  }

  dragged(event, here) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, p]) => p);
    if (others.length) {
      const [o] = others, distance = (p) => Math.hypot(p[0] - o[0], p[1] - o[1]);
      this.zoom(distance(here) / Math.max(distance(before), 1), [(here[0] + o[0]) / 2, (here[1] + o[1]) / 2]);
    } else if (event.pointerType !== "touch" || this.frame.classList.contains("zoomed")) this.move(here[0] - before[0], here[1] - before[1]);
    this.moved += Math.hypot(here[0] - before[0], here[1] - before[1]);
    this.pointers.set(event.pointerId, here);
  }

  key(event) {
    const onNode = event.target.closest("[data-node]"), step = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[event.key];
    if (onNode && step) {
      const next = this.nodes[this.nodes.indexOf(onNode) + (["ArrowRight", "ArrowDown"].includes(event.key) ? 1 : -1)];
      if (next) { onNode.setAttribute("tabindex", "-1"); next.setAttribute("tabindex", "0"); next.focus(); this.reveal(next); }
    } else if (step) this.move(...step);
    else if (["+", "="].includes(event.key)) this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  reveal(node) {
    const room = this.frame.getBoundingClientRect(), box = node.getBoundingClientRect(), pad = 16;
    const dx = box.left < room.left + pad ? room.left + pad - box.left : box.right > room.right - pad ? room.right - pad - box.right : 0;
    const dy = box.top < room.top + pad ? room.top + pad - box.top : box.bottom > room.bottom - pad ? room.bottom - pad - box.bottom : 0;
    if (dx || dy) this.move(dx, dy);
    this.frame.scrollTo(0, 0);
  }

  choose(node) {
    this.nodes.forEach((n) => n.classList.toggle("chosen", n === node));
    this.describe(node);
  }

  describe(node) {
    const name = node.dataset.node, row = this.data.nodes[name] || {}, count = node.dataset.count, items = [["node", name + (count ? ` (one of ${count})` : "")]];
    if (row.layer) items.push(["layer", row.layer]);
    if (row.channels) items.push(["channels", row.channels]);
    if (row.q !== undefined) items.push(["q (mean square, inputs of q = 1)", short(row.q)], ["cosine of orthogonal inputs here", short(row.c)]);
    if (row.tokens !== undefined && row.tokens !== null) items.push(["cosine of two tokens here", short(row.tokens)]);
    if (row.slope !== undefined) items.push(["slope of its C map at c = 1", short(row.slope)]);
    document.getElementById("node-info").replaceChildren(make("dl", {}, items.flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, v)])));
  }

  pick(which) {
    const inside = new Set(which === "" ? [] : this.data.parts[Number(which)]);
    this.frame.classList.toggle("picked", which !== "");
    this.nodes.forEach((n) => n.classList.toggle("in", inside.has(n.dataset.node)));
  }
}
