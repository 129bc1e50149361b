// Line charts as SVG, with a title that says what they show, a legend and a table of the same numbers.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes, ...children) {
  const node = ["svg", "path", "line", "text", "circle", "g", "title"].includes(name) && attributes && attributes.svg !== false
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "svg" || value === undefined || value === null || value === false) continue;
    node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

function niceTicks(low, high, count, whole) {
  const raw = Math.max((high - low) / count, whole ? 1 : 0), size = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map((m) => m * size).find((s) => s >= raw * 0.999), out = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) out.push(Math.abs(x) < step * 1e-9 ? 0 : x);
  return out;
}

function logTicks(low, high) {
  const first = Math.ceil(low - 1e-9), last = Math.floor(high + 1e-9), every = Math.max(1, Math.ceil((last - first) / 6)), out = [];
  if (high - low < 2.2) {
    for (let e = Math.floor(low); e <= last + 1; e++) for (const m of high - low < 0.5 ? [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8] : [1, 2, 5]) out.push(e + Math.log10(m));
    const seen = out.filter((t) => t >= low && t <= high);
    return seen.length > 2 ? seen : niceTicks(Math.pow(10, low), Math.pow(10, high), 4).filter((x) => x > 0).map(Math.log10);
  }
  for (let e = first; e <= last; e += every) out.push(e);
  return out;
}

// Numbers as people write them: 0.01, 200, 10⁻⁵, 3·10⁶.
function tickText(x, log) {
  const value = log ? Math.pow(10, x) : x, exponent = value ? Math.floor(Math.log10(Math.abs(value)) + 1e-9) : 0;
  if (Math.abs(exponent) < 4) return String(Number(value.toPrecision(log ? 3 : 6))).replace("-", "\u2212");
  const factor = String(Number((value / Math.pow(10, exponent)).toPrecision(3))).replace("-", "\u2212");
  const power = "10" + String(exponent).replace("-", "\u207b").replace(/\d/g, (d) => "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[d]);
  return factor === "1" ? power : `${factor}\u00b7${power}`;
}

// options: {title, x: {label, log, range, whole: ticks at whole numbers}, y: {label, log, range}, series: [{name, points: [[x, y]], style}], identity, equal, marks}
function drawChart(place, options) {
  if (!place) return;
  const redraw = () => paintChart(place, options);
  place.redraw = redraw;
  place.style.display = "block"; // hidden places have no width, so show the place first
  redraw();
}

function finiteSeries(options) {
  const usable = (axis, v) => Number.isFinite(v) && (!axis.log || v > 0);
  return options.series.map((s) => ({ ...s, points: s.points.map(([x, y]) => (usable(options.x, x) && usable(options.y, y) ? [x, y] : null)) }));
}

function rangeOf(axis, values) {
  const scaled = axis.log ? values.map(Math.log10) : values;
  if (axis.range) return axis.log ? axis.range.map(Math.log10) : axis.range;
  let low = Math.min(...scaled), high = Math.max(...scaled);
  const least = axis.log ? 0.3 : 1e-9 + 1e-3 * Math.max(Math.abs(low), Math.abs(high));
  if (high - low < least) { const middle = (low + high) / 2; low = middle - least; high = middle + least; }
  const pad = (high - low) * 0.04;
  return [low - pad, high + pad];
}

function paintChart(place, options) {
  const series = finiteSeries(options), points = series.flatMap((s) => s.points.filter(Boolean));
  if (!points.length) { place.replaceChildren(make("p", { class: "calm" }, options.empty || "There are no finite values to draw.")); return; }
  const width = Math.min(Math.max(Math.round(place.clientWidth || 480), 270), options.equal ? 460 : 620);
  const height = options.equal ? width : Math.round(Math.min(Math.max(width * 0.66, 250), 340));
  const [x0, x1] = rangeOf(options.x, points.map((p) => p[0])), [y0, y1] = rangeOf(options.y, points.map((p) => p[1]));
  const yTicks = options.y.log ? logTicks(y0, y1) : niceTicks(y0, y1, 5), xTicks = options.x.log ? logTicks(x0, x1) : niceTicks(x0, x1, width < 380 ? 4 : 6, options.x.whole);
  const yTexts = yTicks.map((t) => tickText(t, options.y.log)), left = 30 + 7 * Math.max(...yTexts.map((t) => t.length)), bottom = 42, top = 8, right = 12;
  const px = (x) => left + (x - x0) / (x1 - x0) * (width - left - right), py = (y) => height - bottom - (y - y0) / (y1 - y0) * (height - top - bottom);
  const sx = (x) => px(options.x.log ? Math.log10(x) : x), sy = (y) => py(options.y.log ? Math.log10(y) : y);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${options.title}. ${options.y.label} over ${options.x.label}`, style: `max-width:${width}px` });
  xTicks.forEach((t) => svg.append(make("line", { class: "grid", x1: px(t), x2: px(t), y1: top, y2: height - bottom }),
    make("text", { x: px(t), y: height - bottom + 17, "text-anchor": "middle" }, tickText(t, options.x.log))));
  yTicks.forEach((t, i) => svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: py(t), y2: py(t) }),
    make("text", { x: left - 6, y: py(t) + 4, "text-anchor": "end" }, yTexts[i])));
  svg.append(make("path", { class: "axis", fill: "none", d: `M${left} ${top}V${height - bottom}H${width - right}` }));
  svg.append(make("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, options.x.label));
  const middle = (top + height - bottom) / 2;
  svg.append(make("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, options.y.label));
  if (options.identity) { const a = Math.max(x0, y0), b = Math.min(x1, y1); svg.append(make("line", { class: "faint", x1: px(a), y1: py(a), x2: px(b), y2: py(b) })); }
  for (const at of options.lines || []) svg.append(make("line", { class: "faint", x1: sx(at), x2: sx(at), y1: top, y2: height - bottom }));
  series.forEach((s, i) => svg.append(make("path", { class: `line ${s.style || `s${i % 6}`}`, d: pathOf(s.dots ? s.points.filter(Boolean) : s.points, sx, sy, [top, height - bottom]) })));
  const dots = series.flatMap((s, i) => (s.dots ? s.points.filter(Boolean).map(([x, y]) => [x, y, `small ${s.style || `s${i % 6}`}`]) : []));
  for (const [x, y, style] of [...dots, ...(options.marks || [])]) svg.append(make("circle", { class: `dot ${style}`, cx: sx(x), cy: sy(y), r: style.startsWith("small") ? 3 : 4.5 }));
  const open = place.querySelector("details")?.open;
  place.replaceChildren(make("figure", {}, make("figcaption", {}, options.title), svg, legendOf(series, options), numbersOf(series, options, open)));
}

function pathOf(points, sx, sy, [top, bottom]) {
  let out = "", pen = false;
  for (const p of points) {
    if (!p) { pen = false; continue; }
    const y = Math.min(Math.max(sy(p[1]), top - 2), bottom + 2);
    out += `${pen ? "L" : "M"}${sx(p[0]).toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  }
  return out;
}

function legendOf(series, options) {
  const rows = series.filter((s) => s.name).map((s, i) => make("li", { svg: false },
    make("svg", { viewBox: "0 0 30 10", "aria-hidden": "true" }, make("line", { class: `line ${s.style || `s${i % 6}`}`, x1: 0, x2: 30, y1: 5, y2: 5 })), s.name));
  if (options.identity) rows.push(make("li", {}, make("svg", { viewBox: "0 0 30 10", "aria-hidden": "true" }, make("line", { class: "faint", x1: 0, x2: 30, y1: 5, y2: 5 })), "identity"));
  return rows.length ? make("ul", { class: "legend" }, rows) : null;
}

function numbersOf(series, options, open) {
  const longest = series.reduce((a, s) => (s.points.length > a.points.length ? s : a), series[0]);
  const step = Math.max(1, Math.ceil(longest.points.length / 21)), rows = [];
  for (let i = 0; i < longest.points.length; i += step) {
    const x = (longest.points[i] || series.map((s) => s.points[i]).find(Boolean) || [NaN])[0];
    if (!Number.isFinite(x)) continue;
    rows.push(make("tr", {}, make("th", { scope: "row" }, short(x)), series.map((s) => make("td", {}, s.points[i] ? short(s.points[i][1]) : "-"))));
  }
  const head = make("tr", {}, make("th", { scope: "col" }, options.x.label), series.map((s) => make("th", { scope: "col" }, s.name || options.y.label)));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, rows));
  return make("details", { open: open || false }, make("summary", {}, "Numbers"),
    make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `Numbers: ${options.title}` }, table));
}
