// What this browser remembers of the person in front of it: settings, colours, single keys. Every view has them.

const $ = (id) => document.getElementById(id);

// A setting that this browser remembers; without storage, for as long as the page is open.
export function remembered(name, first) {
  let value = first;
  try {
    value = localStorage.getItem(`cortext.${name}`) ?? first;
  } catch {}
  return {
    get: () => value,
    set: (next) => {
      value = next;
      try {
        localStorage.setItem(`cortext.${name}`, next);
      } catch {}
    },
  };
}

// auto follows the system. changed() is called whenever colours change.
export function theme(changed) {
  const names = ["auto", "light", "dark"], chosen = remembered("theme", "auto");
  const apply = () => {
    document.documentElement.dataset.theme = chosen.get();
    $("theme-text").textContent = `Colours: ${chosen.get()}`;
    changed();
  };
  $("theme").addEventListener("click", () => {
    chosen.set(names[(names.indexOf(chosen.get()) + 1) % names.length]);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  apply();
}

// Single keys press what shows them; they can be turned off for those whom they disturb (WCAG 2.1.4).
export function keys(list) {
  const on = remembered("keys", "on"), box = $("keys-on");
  const targets = new Map([...document.querySelectorAll("[aria-keyshortcuts]")].map((it) => [it.ariaKeyShortcuts ?? it.getAttribute("aria-keyshortcuts"), it]));
  $("keys").replaceChildren(...list.map(([key, what]) => {
    const row = document.createElement("div"), name = document.createElement("dt"), text = document.createElement("dd");
    name.append(Object.assign(document.createElement("kbd"), { textContent: key }));
    text.textContent = what;
    row.append(name, text);
    return row;
  }));
  // A panel whose focused part went meanwhile gives the focus back, too.
  for (const button of document.querySelectorAll("[popovertarget]"))
    button.popoverTargetElement?.addEventListener("beforetoggle", ({ newState }) => {
      if (newState === "closed" && document.activeElement === document.body) button.focus();
    });
  for (const hint of document.querySelectorAll("[aria-keyshortcuts] > kbd")) hint.ariaHidden = "true"; // no part of the name
  const apply = () => (document.body.dataset.keys = on.get());
  box.checked = on.get() === "on";
  box.addEventListener("change", () => {
    on.set(box.checked ? "on" : "off");
    apply();
  });
  apply();
  document.addEventListener("keydown", (event) => {
    if (on.get() !== "on" || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select")) return;
    const target = targets.get(event.key.toUpperCase());
    if (!target || target.disabled) return;
    event.preventDefault();
    if (target.tagName === "SELECT" || target.popoverTargetElement) target.focus(); // where focus comes back to
    if (target.tagName !== "SELECT") target.click();
  });
}
