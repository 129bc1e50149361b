// Start: read the data, and build the interactive parts and the buttons of the page.

function themeButton() {
  const button = document.getElementById("theme"), root = document.documentElement;
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const say = () => { button.setAttribute("aria-pressed", String(dark())); };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; say(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
  say();
}

function copyButtons() {
  document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    try { await navigator.clipboard.writeText(source.textContent); button.textContent = "Copied"; } catch (error) {
      const range = document.createRange();
      range.selectNodeContents(source); getSelection().removeAllRanges(); getSelection().addRange(range);
      button.textContent = "Selected: press ctrl C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2500);
  }));
}

function printOpen() {
  let closed = [];
  addEventListener("beforeprint", () => { closed = [...document.querySelectorAll("details:not([open]):not(.source)")].filter((d) => !d.closest("figure")); closed.forEach((d) => { d.open = true; }); });
  addEventListener("afterprint", () => closed.forEach((d) => { d.open = false; }));
}

(function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  themeButton(); copyButtons(); printOpen();
  const frame = document.getElementById("dag");
  if (frame) new Drawing(frame, data.drawing);
  const controls = document.getElementById("controls");
  if (controls) { const panel = new MapsPanel(data); panel.build(controls); panel.update(); }
  drawSlopes(data.slopes); drawKernels(data.kernels, data.sphere); drawDepths(data.depths); drawTokens(data.tokens); listenWidths(data.widths);
  const redrawAll = () => document.querySelectorAll(".chart").forEach((place) => place.redraw && place.redraw());
  redrawAll(); // all charts exist now and know their widths
  let waiting = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth; clearTimeout(waiting);
    waiting = setTimeout(redrawAll, 80);
  });
  document.documentElement.dataset.ready = "yes";
})();
