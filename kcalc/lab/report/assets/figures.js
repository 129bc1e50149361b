// Charts without sliders: slopes, kernels, values over the depth, finite width.

function drawSlopes(data) {
  if (!data) return;
  const place = document.getElementById("chart-slope"), all = data.pieces.map((p) => p.y);
  const greatest = data.psi.map((_, i) => Math.max(...all.map((y) => y[i])));
  const series = data.pieces.length > 1 ? [...data.pieces.map((p, i) => ({ name: `piece ${i + 1}`, points: data.psi.map((x, n) => [x, p.y[n]]), style: `s${1 + i % 4}` })),
    { name: "maximum", points: data.psi.map((x, n) => [x, greatest[n]]), style: "s0" }] : [{ name: "", points: data.psi.map((x, n) => [x, greatest[n]]) }];
  drawChart(place, { title: data.at === null ? `The steepest subnetwork has a slope above ${short(data.target)} for any activations` : `Local slopes of ${Number(data.at.toPrecision(7))} give the steepest subnetwork the slope ${short(data.target)}`, lines: data.at === null ? [] : [data.at],
    x: { label: "slope psi of one nonlinear layer at c = 1" }, y: { label: "largest slope of a subnetwork", log: true }, series });
}

function drawKernels(kernels, sphere) {
  const names = ["before shaping", "after shaping"], known = kernels.map((k, i) => k && { ...k, name: names[i], style: `s${i}` }).filter(Boolean);
  if (!known.length) return;
  const half = (k) => k.ntk[(k.ntk.length - 1) / 2] / k.ntk[k.ntk.length - 1];
  drawChart(document.getElementById("chart-ntk"), {
    title: cap(known.map((k) => `${k.name}, orthogonal inputs share ${percent(half(k))} of the kernel`).join("; ")),
    x: { label: "c of the inputs (cosine)", range: [-1, 1] }, y: { label: "NTK(c) / NTK(1)" },
    series: known.map((k) => ({ name: k.name, style: k.style, points: k.c.map((c, i) => [snapped(c), snapped(k.ntk[i] / k.ntk[k.ntk.length - 1])]) })),
  });
  const spectra = known.filter((k) => k.eigenvalues.length);
  if (spectra.length) drawChart(document.getElementById("chart-spectrum"), {
    title: cap(spectra.map((k) => `${k.name}, functions of degree 1 make up ${percent(k.shares[1])} of the trace`).join("; ")),
    x: { label: `degree (sphere in ${sphere} dimensions)`, whole: true }, y: { label: "eigenvalue / largest eigenvalue", log: true },
    series: spectra.map((k) => ({ name: k.name, style: k.style, dots: true, points: k.eigenvalues.map((v, i) => [i, v / Math.max(...k.eigenvalues)]) })),
  });
}

const percent = (x) => `${Math.abs(x) < 5e-5 ? "0" : short(100 * x)}%`;

const cap = (text) => text[0].toUpperCase() + text.slice(1);

function drawTokens(data) {
  if (!data) return;
  const along = (values) => values.map((y, i) => [i, y === null ? NaN : y]), last = (values) => values.filter((y) => y !== null).pop();
  const stream = { label: "node of the stream, from input to output", whole: true }, place = (name) => document.getElementById(`chart-tokens-${name}`);
  const curves = [{ name: "two tokens of one input", style: "s0", points: along(data.tokens) }, { name: "two inputs, equal places", style: "s1", points: along(data.c) }];
  const ends = curves.map((s) => last(s.points.map((p) => p[1]).filter(Number.isFinite)));
  const said = ["tokens", "two inputs"].map((of, k) => ends[k] === undefined ? "" : `${of} have the cosine ${short(ends[k])}`).filter(Boolean);
  drawChart(place("profile"), { title: `At the end ${said.join(", ")}`, x: stream,
    y: { label: "cosine", range: [Math.min(0, ...data.tokens, ...data.c), 1] }, series: curves.filter((s) => s.points.some((p) => Number.isFinite(p[1]))) });
  drawChart(place("sizes"), { title: `q goes from ${short(data.q[0])} to ${short(last(data.q))}`, x: stream, y: { label: "q (mean square)", log: true },
    series: [{ name: "", points: along(data.q) }] });
  if (data.maps.length) {
    const own = data.maps.filter((row) => row[1] !== null), series = [{ name: "cosine c of two inputs", style: "s1", points: data.maps.map((row) => [row[0], row[2]]) }];
    if (own.length) series.unshift({ name: "token cosine", style: "s0", points: own.map((row) => [row[0], row[1]]) });
    drawChart(place("maps"), { title: "Cosines at the output against cosines at the input", equal: true, identity: true,
      x: { label: "cosine at the input", range: [0, 1] }, y: { label: "cosine at the output", range: [Math.min(0, ...data.maps.map((row) => row[2])), 1] }, series });
  }
  if (data.modes.length > 1) {
    const ratio = (k) => short(data.modes[0][k] / last(data.modes.map((row) => row[k])));
    drawChart(place("modes"), { title: `Squared gradients at the first node are ${ratio(0)} (mean mode) times those at the last`, x: stream, y: { label: "squared gradient", log: true },
      series: ["mean mode (equal for all tokens)", "difference mode"].map((name, k) => ({ name, style: `s${k}`, points: along(data.modes.map((row) => row[k])) })).filter((s) => s.points.some((p) => Number.isFinite(p[1]))) });
  }
}

function drawDepths(depths) {
  depths = depths.map((d) => (d && Math.max(...d.depth) > 1 ? d : null)); // a single layer gives no curve
  const names = ["before", "after"];
  depths.forEach((d, i) => {
    if (!d) return;
    const middle = d.starts.indexOf(0), last = d.c[d.c.length - 1], spread = Math.max(...last) - Math.min(...last);
    const words = spread < 0.1 ? `${cap(names[i])} shaping, inputs of every cosine end within ${short(spread)} of each other`
      : `${cap(names[i])} shaping, cosines from ${d.starts[0]} to ${d.starts[d.starts.length - 1]} end between ${short(Math.min(...last))} and ${short(Math.max(...last))}`;
    drawChart(document.getElementById(`chart-depth-${names[i]}`), {
      title: words, x: { label: "depth (nonlinear layers)", whole: true }, y: { label: "cosine c of two inputs", range: [-1, 1] },
      series: d.starts.map((s, j) => ({ name: `c = ${s} at the input`, style: `s${j}`, points: d.depth.map((x, n) => [x, snapped(d.c[n][j])]) })),
    });
  });
  const known = depths.map((d, i) => d && { ...d, name: `${names[i]} shaping`, style: `s${i}` }).filter(Boolean);
  if (!known.length) return;
  const ends = known.map((d) => `${d.name}, q goes from 1 to ${short(d.q[d.q.length - 1])}`);
  drawChart(document.getElementById("chart-depth-q"), { title: cap(ends.join("; ")), x: { label: "depth (nonlinear layers)", whole: true }, y: { label: "q (mean square of the signal)", log: true },
    series: known.map((d) => ({ name: d.name, style: d.style, points: d.depth.map((x, n) => [x, d.q[n]]) })) });
}

function listenWidths(rows) {
  const words = document.getElementById("width-words");
  if (!words || !rows.length) return;
  const say = (i) => {
    const [width, before, after, exact] = rows[i], factor = (v) => short(Math.exp(Math.sqrt(v)));
    const one = (v) => (v === null ? "has no such figure" : v > 25 ? "varies beyond use from draw to draw" : `is typically within a factor ${factor(v)} of its mean value`);
    words.textContent = `At ${/^\d/.test(width) ? `width ${width}` : "the widths that the network states"}, q at the output ${one(before)} before shaping${after === null ? "" : ` and ${after > 25 ? one(after) : `within a factor ${factor(after)}`} after it`}` +
      (exact ? "." : Math.max(before, after || 0) > 0.25 ? " (leading order in 1/width, a rough guide where variances are so large)." : " (leading order in 1/width).");
  };
  const select = document.getElementById("width");
  select?.addEventListener("change", () => say(Number(select.value)));
  say(select ? Number(select.value) : 0);
}
