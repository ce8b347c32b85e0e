// The screen itself: the whole of it, kept awake, and without buttons while nobody moves.

const $ = (id) => document.getElementById(id);
const REST_MS = 3500;

export function fullScreen() {
  const button = $("fullscreen"), root = document.documentElement;
  button.disabled = !root.requestFullscreen;
  button.addEventListener("click", () => (document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen()).catch(() => {}));
  document.addEventListener("fullscreenchange", () => (button.ariaPressed = String(Boolean(document.fullscreenElement))));
}

// Browsers give it up whenever the page is not seen; they refuse it with little battery, and without TLS.
export function keepAwake() {
  const ask = async () => {
    if (document.visibilityState !== "visible") return;
    const lock = await navigator.wakeLock?.request("screen").catch(() => null);
    $("awake").hidden = !lock;
    lock?.addEventListener("release", () => ($("awake").hidden = true));
  };
  document.addEventListener("visibilitychange", ask);
  ask();
}

// What only a person needs who is about to do something disappears with the pointer at rest.
export function atRest() {
  let timer;
  const moved = () => {
    document.body.dataset.rest = "no";
    clearTimeout(timer);
    timer = setTimeout(() => {
      const isUsed = document.querySelector("#settings-panel:popover-open, #settings:hover, #settings:focus-visible");
      isUsed ? moved() : (document.body.dataset.rest = "yes");
    }, REST_MS);
  };
  for (const kind of ["pointermove", "pointerdown", "keydown"]) addEventListener(kind, moved, { passive: true });
  moved();
}
