// Pressing by resting: a pointer that stays on a target for a while presses it, as eye trackers and head mice need it. A ring
// grows around the target meanwhile. Every view can use it: const dwell = new Dwell(); dwell.time_ms = 800 (0: off).

const TARGETS = "[data-dwell], button, a[href], summary, select, input:not([type=text]), label:has(input)";
const STEPS = 4; // of the ring for those who want less motion

// What a press does that is no click: lists and sliders go on by one; sliders back where the pointer is in their first half.
function press(target, x) {
  if (target.tagName === "SELECT") {
    const usable = [...target.options].filter((it) => !it.disabled);
    target.value = usable[(usable.indexOf(target.selectedOptions[0]) + 1) % usable.length]?.value;
  } else if (target.type === "range" || target.type === "number") {
    const { left, width } = target.getBoundingClientRect();
    x < left + width / 2 ? target.stepDown() : target.stepUp();
  } else return target.closest("button, a, summary, label, input").click();
  for (const kind of ["input", "change"]) target.dispatchEvent(new Event(kind, { bubbles: true }));
}

const isDisabled = (target) => target.closest("button, select, input")?.disabled ?? false;

export class Dwell {
  constructor() {
    this.time_ms = 0;
    this.target = null;
    this.pressed = null; // it is not pressed again before the pointer has left it, but for lists, sliders, and data-dwell="again"
    this.ring = document.createElement("div");
    this.ring.className = "dwell-ring";
    this.ring.ariaHidden = "true";
    this.ring.popover = "manual"; // above panels
    document.body.append(this.ring);
    document.addEventListener("pointermove", (event) => event.pointerType !== "touch" && this.at(event));
    document.addEventListener("pointerdown", () => this.leave()); // who presses needs no dwelling
    document.documentElement.addEventListener("pointerleave", () => this.leave());
    addEventListener("blur", () => this.leave());
  }

  // A target that comes up under a pointer at rest is not pressed: the pointer has to move on it first.
  at({ target, clientX }) {
    if (!this.time_ms) return this.leave();
    const found = this.targetOf(target);
    this.x = clientX;
    if (found === this.target) return;
    this.leave();
    if (found !== this.pressed) this.pressed = null;
    if (found && !this.pressed) this.rest(found);
  }

  // A part of a button that is marked data-dwell stands for all of it: the rest can be read without pressing.
  targetOf(element) {
    const found = element.closest?.(TARGETS);
    if (!found || isDisabled(found)) return null;
    return !found.matches("[data-dwell]") && found.querySelector("[data-dwell]") ? null : found;
  }

  rest(target) {
    this.target = target;
    this.since_ms = performance.now();
    const { left, top, width, height } = (this.box = target.getBoundingClientRect());
    for (const [name, value] of Object.entries({ left, top, width, height })) this.ring.style.setProperty(`--${name}`, `${value}px`);
    this.ring.style.setProperty("--radius", getComputedStyle(target).borderRadius);
    this.ring.showPopover();
    this.grow();
  }

  grow() {
    const share = (performance.now() - this.since_ms) / this.time_ms;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.ring.style.setProperty("--share", Math.min(1, calm ? Math.floor(share * STEPS) / STEPS : share).toFixed(3));
    if (!this.isUnder()) return this.leave();
    if (share < 1) return (this.frame = requestAnimationFrame(() => this.grow()));
    const { target } = this, goesOn = target.tagName === "SELECT" || target.type === "range" || target.dataset.dwell === "again";
    this.leave();
    if (!goesOn) this.pressed = target;
    press(target, this.x);
    if (goesOn) this.rest(target);
  }

  // It may have gone, or scrolled away, while the pointer stood still.
  isUnder() {
    const { target, box } = this, { left, top } = target.getBoundingClientRect();
    return target.checkVisibility() && !isDisabled(target) && left === box.left && top === box.top;
  }

  leave() {
    cancelAnimationFrame(this.frame);
    if (this.target) this.ring.hidePopover();
    this.target = null;
  }
}
