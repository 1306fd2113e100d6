// What the console does in the browser by itself: light or dark, before anything is drawn; links; copying.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem("tidelock-theme");

  function apply() {
    const dark = chosen() ? chosen() === "dark" : system.matches;
    const changed = root.dataset.theme && root.dataset.theme !== (dark ? "dark" : "light");
    root.dataset.theme = dark ? "dark" : "light";
    if (!changed) return;
    if (window.setDark) setDark(dark);
    if (window.emitEvent) emitEvent("tl_theme");
  }

  function toggle() {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    // What the system says anyway is followed again, not pinned.
    if ((next === "dark") === system.matches) localStorage.removeItem("tidelock-theme");
    else localStorage.setItem("tidelock-theme", next);
    apply();
  }

  async function copy(button) {
    const text = button.parentElement.querySelector("pre").innerText;
    try {
      await navigator.clipboard.writeText(text);
      button.classList.add("tl-copied");
      setTimeout(() => button.classList.remove("tl-copied"), 1200);
    } catch {
      getSelection().selectAllChildren(button.parentElement.querySelector("pre"));
    }
  }

  window.tl = {
    colour: (token) => getComputedStyle(root).getPropertyValue(`--${token}`).trim(),
  };

  // A click on a row is a click on its link: with a key held it opens beside.
  function go(row, event) {
    if (event.target.closest("a, button") || getSelection().toString()) return;
    if (event.metaKey || event.ctrlKey) open(row.dataset.href, "_blank");
    else location.href = row.dataset.href;
  }

  apply();
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-tl-theme]")) toggle();
    const copied = event.target.closest("[data-tl-copy]");
    if (copied) copy(copied);
    const row = event.target.closest("tr[data-href]");
    if (row) go(row, event);
    const more = document.querySelector(".tl-more[open]");
    if (more && !more.contains(event.target)) more.removeAttribute("open");
  });
  document.addEventListener("visibilitychange", () => window.emitEvent && emitEvent("tl_visible", !document.hidden));
})();
