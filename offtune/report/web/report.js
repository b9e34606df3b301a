/* Draws the plots in the colours of the page, again when the colour scheme, the width or the medium changes. */
(() => {
  "use strict";
  const PRINT_WIDTH_PX = 640; // fits A4 and Letter between the margins of the style sheet
  const specs = JSON.parse(document.getElementById("plots").textContent);
  const root = document.documentElement;

  // A copy of a plot's description with every '@name' replaced by the page's colour of that name.
  function coloured(value, style) {
    if (typeof value === "string") {
      return (value.startsWith("@") && style.getPropertyValue("--" + value.slice(1)).trim()) || value;
    }
    if (Array.isArray(value)) return value.map((one) => coloured(one, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, coloured(one, style)]));
    }
    return value;
  }

  function draw(width) {
    const style = getComputedStyle(root);
    const font = getComputedStyle(document.body).fontFamily;
    for (const spec of specs) {
      const place = document.getElementById("plot-" + spec.name);
      const layout = coloured(spec.layout, style);
      layout.width = width || place.clientWidth;
      layout.font = { ...layout.font, family: font, size: layout.width < 420 ? 11 : 13 };
      layout.hoverlabel = {
        ...layout.hoverlabel,
        bgcolor: style.getPropertyValue("--card").trim(),
        bordercolor: style.getPropertyValue("--line").trim(),
        font: { color: style.getPropertyValue("--ink").trim(), family: font },
      };
      Plotly.react(place, coloured(spec.data, style), layout, { displayModeBar: false, responsive: false });
    }
  }

  let lastWidth = root.clientWidth;
  addEventListener("resize", () => {
    if (root.clientWidth !== lastWidth && !root.classList.contains("printing")) {
      lastWidth = root.clientWidth;
      draw();
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    draw(PRINT_WIDTH_PX);
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    draw();
  });
  draw();
  root.dataset.drawn = String(specs.length);
})();
