// What the pages do beyond forms and links: the theme, times in the reader's zone, selection, copying,
// one-time links, and the notice of a lost connection. Runs before the page is drawn.
(() => {
  "use strict";

  const root = document.documentElement;
  const chosen = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  if (chosen()) root.dataset.theme = chosen();

  function switchTheme() {
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const next = (root.dataset.theme || system) === "dark" ? "light" : "dark";
    root.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch { /* it lasts for this page */ }
    document.dispatchEvent(new Event("themechange"));
  }

  // ---- Times: relative ones grow older by themselves; the exact one in the reader's zone on hover ----

  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

  const span = (size) => size < 120 ? `${size} s` : size < 7200 ? `${Math.floor(size / 60)} min`
    : size < 172800 ? `${Math.floor(size / 3600)} h` : size < 63072000 ? `${Math.floor(size / 86400)} d`
    : `${Math.floor(size / 31536000)} y`;

  function ago(seconds) {
    if (Math.abs(seconds) < 2) return "now";
    return seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
  }

  function showTimes(scope) {
    const now = Date.now();
    for (const time of scope.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (!time.dataset.utc) time.dataset.utc = time.title;
      time.title = `${exact.format(at)} (${time.dataset.utc})`;
      const seconds = Math.round((now - at) / 1000);
      if ("for" in time.dataset) time.textContent = `for ${span(Math.max(seconds, 0))}`;
      else if ("ago" in time.dataset) time.textContent = ago(seconds);
      else if ("exact" in time.dataset) time.textContent = exact.format(at);
    }
  }

  // ---- One-time links: the code is in the fragment, which only this script sees ----

  function useLink() {
    const form = document.getElementById("welcome");
    const code = location.hash.slice(1);
    if (!form || !code) return;
    history.replaceState(null, "", location.pathname);
    form.elements.code.value = code;
    form.requestSubmit();
  }

  // A form that is refused because the session has ended leads back to its page after signing in. What was typed is kept for it.
  const typed = "input[name=reason], input[name=note], input[name=labels], input[name=label]";
  const formsOf = (path) => `forms ${path}`;

  function keepForm(event) {
    const fields = [...event.target.querySelectorAll(typed)].map((field) => [field.name, field.value]);
    if (event.target.method !== "post" || !fields.length) return;
    try { sessionStorage.setItem(formsOf(location.pathname), JSON.stringify([event.target.getAttribute("action"), fields])); } catch { /* typed again */ }
  }

  function restoreForm() {
    const key = formsOf(location.pathname);
    let kept = null;
    try { kept = JSON.parse(sessionStorage.getItem(key)); sessionStorage.removeItem(key); } catch { /* typed again */ }
    if (!kept || !document.referrer || new URL(document.referrer).pathname !== "/sign-in") return;
    const form = [...document.forms].find((one) => one.getAttribute("action") === kept[0]);
    for (const [name, value] of kept[1]) {
      const field = form?.querySelector(`input[name=${name}]`);
      if (field && !field.value) field.value = value;
    }
  }

  async function copy(button) {
    const text = document.getElementById(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(document.getElementById(button.dataset.copy));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Press Ctrl-C";
    }
  }

  function pickAll(box) {
    const rows = box.closest("table").querySelectorAll("tbody input[name=id]");
    for (const row of rows) row.checked = box.checked;
  }

  function closeMenus(event) {
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  }

  document.addEventListener("click", (event) => {
    closeMenus(event);
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") switchTheme();
    if (button.dataset.copy) copy(button);
  });
  document.addEventListener("submit", keepForm);
  document.addEventListener("change", (event) => {
    if (event.target.id === "pick-all") pickAll(event.target);
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches?.("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); }
    }
    if (event.key === "Escape") {
      const menu = document.querySelector("details.menu[open]");
      if (menu) { menu.open = false; menu.querySelector("summary").focus(); }
    }
  });

  // ---- Live pages ----

  const connected = (yes) => { const notice = document.getElementById("offline"); if (notice) notice.hidden = yes; };
  document.addEventListener("htmx:sse:after:connection", () => connected(true));
  document.addEventListener("htmx:sse:error", (event) => {
    // The session has ended: the page itself leads to the page to sign in.
    if (event.detail?.status === 401) location.reload();
    connected(false);
  });
  document.addEventListener("htmx:sse:after:message", () => showTimes(document));
  document.addEventListener("htmx:after:swap", () => showTimes(document));

  // The rows that are live are those of the list that is shown: a search replaces both.
  document.addEventListener("htmx:after:swap", () => {
    const list = document.querySelector("#hosts-list");
    const stream = document.getElementById("stream");
    if (!list || !window.htmx) return;
    const ids = [...list.querySelectorAll("tbody input[name=id]")].map((box) => box.value).join(",");
    if (list.dataset.ids === ids) return;
    list.dataset.ids = ids;
    stream?.remove();
    if (!ids) return;
    const next = document.createElement("div");
    next.id = "stream";
    next.hidden = true;
    next.setAttribute("hx-sse:connect", `/live?view=hosts&ids=${ids}`);
    next.setAttribute("hx-swap", "none");
    document.body.append(next);
    window.htmx.process(next);
  });

  document.addEventListener("DOMContentLoaded", () => {
    const list = document.querySelector("#hosts-list");
    if (list) list.dataset.ids = [...list.querySelectorAll("tbody input[name=id]")].map((box) => box.value).join(",");
    useLink();
    restoreForm();
    showTimes(document);
    setInterval(() => showTimes(document), 15000);
  });
})();
