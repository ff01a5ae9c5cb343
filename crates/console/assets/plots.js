// A host's history: plots with one time axis and one crosshair, gaps as gaps, presence as a strip, notes
// and events as marks.
(() => {
  "use strict";

  const place = () => document.getElementById("plots");
  let series = null;
  let plots = [];

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colours = () => [css("--fill"), css("--wait"), css("--on"), css("--off"), css("--gone"), css("--accent")];
  const size = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
    return `${value.toFixed(value >= 10 || unit === 0 ? 0 : 1)} ${units[unit]}`;
  };
  const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });

  function kinds(data) {
    const disks = Object.entries(data.disks).map(([name, values]) => ({ name, values }));
    return [
      { title: "CPU", unit: (v) => `${v} %`, lines: [{ name: "CPU", values: data.cpu }], top: 100 },
      { title: "Load, 1 min", unit: (v) => `${v}`, lines: [{ name: "load", values: data.load }] },
      { title: "Memory", unit: (v) => `${v} %`, lines: [{ name: "memory", values: data.memory }], top: 100 },
      { title: "Network", unit: (v) => `${size(v)}/s`, lines: [{ name: "received", values: data.rx }, { name: "sent", values: data.tx }] },
      { title: "Disks", unit: (v) => `${v} %`, lines: disks, top: 100 },
    ];
  }

  // What a screen reader says in place of the picture.
  function summary(kind) {
    const texts = kind.lines.map((line) => {
      const known = line.values.filter((value) => value !== null);
      if (!known.length) return `${line.name}: no values`;
      const sum = known.reduce((total, value) => total + value, 0);
      const round = (value) => kind.unit(Math.round(value * 10) / 10);
      return `${line.name}: least ${round(Math.min(...known))}, mean ${round(sum / known.length)}, greatest ${round(Math.max(...known))}`;
    });
    return `${kind.title}. ${texts.join("; ")}. ${series.gaps.length} gaps.`;
  }

  // Gaps are hatched, and marks are thin lines, under the plots' own lines.
  function backdrop(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = css("--line");
    ctx.lineWidth = 1;
    for (const gap of series.gaps) {
      const from = plot.valToPos(gap.from, "x", true);
      const to = plot.valToPos(gap.to, "x", true);
      ctx.save();
      ctx.beginPath();
      ctx.rect(from, bbox.top, Math.max(to - from, 1), bbox.height);
      ctx.clip();
      ctx.beginPath();
      for (let x = from - bbox.height; x < to; x += 8) { ctx.moveTo(x, bbox.top + bbox.height); ctx.lineTo(x + bbox.height, bbox.top); }
      ctx.stroke();
      ctx.restore();
    }
    ctx.strokeStyle = css("--accent");
    for (const mark of series.marks) {
      const x = Math.round(plot.valToPos(mark.at, "x", true)) + 0.5;
      ctx.beginPath();
      ctx.setLineDash([3, 3]);
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  // The values under the crosshair, or the reason of the gap there.
  function readout(plot, kind, output) {
    const index = plot.cursor.idx;
    if (index == null || plot.cursor.left < 0) { output.textContent = ""; return; }
    const at = plot.posToVal(plot.cursor.left, "x");
    const gap = series.gaps.find((gap) => at > gap.from && at < gap.to);
    const mark = series.marks.find((mark) => Math.abs(plot.valToPos(mark.at, "x") - plot.cursor.left) < 4);
    if (mark) { output.textContent = `${mark.kind}: ${mark.text}`; return; }
    if (gap) { output.textContent = gap.reason; return; }
    const values = kind.lines.map((line) => line.values[index] == null ? null
      : (kind.lines.length > 1 ? `${line.name} ` : "") + kind.unit(line.values[index]));
    output.textContent = `${values.filter(Boolean).join(", ")} · ${clock.format(new Date(series.t[index] * 1000))}`;
  }

  function frame(kind) {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const output = document.createElement("span");
    const title = document.createElement("span");
    title.textContent = kind.title;
    output.className = "muted";
    caption.append(title, output);
    const box = document.createElement("div");
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", summary(kind));
    figure.append(caption, box);
    place().append(figure);
    const palette = colours();
    if (kind.lines.length > 1) kind.lines.forEach((line, i) => title.append(...key(line.name, palette[i % palette.length])));
    return () => plot(kind, box, output, palette);
  }

  // A sample of a line's colour, and its name.
  function key(name, colour) {
    const ns = "http://www.w3.org/2000/svg";
    const mark = document.createElement("span");
    mark.className = "line";
    const svg = document.createElementNS(ns, "svg");
    const shape = document.createElementNS(ns, "rect");
    shape.setAttribute("width", "10");
    shape.setAttribute("height", "3");
    shape.setAttribute("fill", colour);
    svg.append(shape);
    mark.append(svg);
    const text = document.createElement("span");
    text.className = "line-name";
    text.textContent = name;
    return [mark, text];
  }

  // Hours within two days, days within two months, months beyond: never the same label twice.
  function time(axis) {
    const day = 86400;
    const span = series.to - series.from;
    const form = span <= 2 * day ? { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }
      : span <= 60 * day ? { day: "numeric", month: "short" } : { month: "short", year: "numeric" };
    const format = new Intl.DateTimeFormat(undefined, form);
    const steps = span <= 2 * day ? [60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200]
      : span <= 60 * day ? [day, 2 * day, 7 * day, 14 * day] : [30 * day, 60 * day, 90 * day];
    return { ...axis, size: 28, space: 64, incrs: steps, values: (u, ticks) => ticks.map((tick) => format.format(new Date(tick * 1000))) };
  }

  function plot(kind, box, output, palette) {
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const options = {
      width: Math.max(box.clientWidth, 240), height: 132, padding: [8, 18, 0, 0],
      cursor: { sync: { key: "host" }, drag: { x: false, y: false }, points: { size: 5 } },
      scales: { x: { time: true, range: [series.from, series.to] }, y: { range: (u, low, high) => [0, kind.top || Math.max(high * 1.1, 0.1)] } },
      axes: [time(axis), { ...axis, size: 64, values: (u, values) => values.map((value) => kind.unit(value)) }],
      series: [{}, ...kind.lines.map((line, i) => ({ label: line.name, stroke: palette[i % palette.length], width: 1.5, spanGaps: false, points: { show: line.values.filter((v) => v !== null).length < 3 } }))],
      hooks: { drawClear: [backdrop], setCursor: [(u) => readout(u, kind, output)] },
    };
    plots.push(new uPlot(options, [series.t, ...kind.lines.map((line) => line.values)], box));
  }

  function strip() {
    const figure = document.createElement("figure");
    figure.className = "presence";
    const caption = document.createElement("figcaption");
    const length = series.to - series.from;
    const away = series.presence.filter((part) => !part.online).reduce((total, part) => total + part.to - part.from, 0);
    caption.textContent = series.presence.length
      ? `Presence: ${away ? `offline for ${Math.round(away / 60)} min` : "online"} in this range` : "Presence: nothing known in this range";
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg");
    svg.setAttribute("viewBox", "0 0 1000 14");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", caption.textContent);
    const rect = (from, to, kind, text) => {
      const shape = document.createElementNS(ns, "rect");
      shape.setAttribute("x", String(1000 * (from - series.from) / length));
      shape.setAttribute("width", String(Math.max(1000 * (to - from) / length, 1)));
      shape.setAttribute("height", "14");
      shape.setAttribute("class", kind);
      const title = document.createElementNS(ns, "title");
      title.textContent = text;
      shape.append(title);
      svg.append(shape);
    };
    rect(series.from, series.to, "unknown", "nothing known");
    for (const part of series.presence) rect(part.from, part.to, part.online ? "online" : "offline", `${part.online ? "online" : "offline"}: ${part.reason}, from ${clock.format(new Date(part.from * 1000))}`);
    figure.append(caption, svg);
    place().append(figure);
  }

  function redraw() {
    for (const plot of plots) plot.destroy();
    plots = [];
    const home = place();
    home.replaceChildren();
    if (!series) return;
    if (!series.t.length) {
      const empty = document.createElement("p");
      empty.className = "muted";
      empty.textContent = `No samples in this range: ${series.gaps[0].reason}.`;
      home.append(empty);
    } else {
      // The figures first: their number decides how wide each is.
      const drawing = kinds(series).map(frame);
      for (const draw of drawing) draw();
    }
    strip();
    home.dataset.ready = series.source;
  }

  async function load(range) {
    for (const link of document.querySelectorAll("[data-range]")) {
      if (link.dataset.range === range) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const home = place();
    document.getElementById("plot-values").search = `?range=${range}`;
    delete home.dataset.ready;
    try {
      const answer = await fetch(`${home.dataset.series}?range=${range}`, { headers: { accept: "application/json" } });
      if (!answer.ok) throw new Error(String(answer.status));
      series = await answer.json();
      redraw();
    } catch {
      home.replaceChildren();
      const problem = document.createElement("p");
      problem.className = "notice warn";
      problem.textContent = "The history cannot be read now. Choose a range to try again.";
      home.append(problem);
    }
  }

  const asked = () => document.querySelector("[data-range][aria-current]").dataset.range;
  document.addEventListener("DOMContentLoaded", () => {
    if (!place()) return;
    load(asked());
    document.addEventListener("click", (event) => {
      const link = event.target.closest("[data-range]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      history.replaceState(null, "", link.href);
      load(link.dataset.range);
    });
    document.addEventListener("themechange", redraw);
    let wait;
    addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(redraw, 150); });
    setInterval(() => { if (!document.hidden && asked() === "1h") load("1h"); }, 30000);
  });
})();
