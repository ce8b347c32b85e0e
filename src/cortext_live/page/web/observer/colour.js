// Colour scales of the canvases, even in OKLab (B. Ottosson, 2020): equal steps of value look like equal steps of colour.
// Their ends are colours of the style sheet, so that light and dark are decided in one place.

const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const encoded = (c) => 255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055);

export function toOklab([red, green, blue]) {
  const r = linear(red / 255), g = linear(green / 255), b = linear(blue / 255);
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function fromOklab([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    encoded(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    encoded(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    encoded(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

// 256 pixels (as ImageData keeps them) through the given colours at equal distances.
function scale(colours) {
  const stops = colours.map(toOklab);
  const pixels = new Uint8ClampedArray(4 * 256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1);
    const left = Math.min(Math.floor(at), stops.length - 2);
    const share = at - left;
    pixels.set(fromOklab(stops[left].map((low, k) => low + share * (stops[left + 1][k] - low))), 4 * i);
    pixels[4 * i + 3] = 255;
  }
  return new Uint32Array(pixels.buffer);
}

const shown = (id) => getComputedStyle(document.getElementById(id)).color.match(/[\d.]+/g).slice(0, 3).map(Number);

// features: from -3 sd over 0 to +3 sd; phonemes: from probability 0 to 1.
export function scales() {
  return {
    features: scale([shown("key-low"), shown("key-mid"), shown("key-high")]),
    phonemes: scale([shown("key-mid"), shown("key-high")]),
  };
}
