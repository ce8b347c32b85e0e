// Which words of two sentences do not match, by the alignment with the fewest edits.

import { bare } from "./language.js";

// -> { wrong: of each word of `said`, missed: of each word of `meant`, errors }
export function align(said, meant) {
  const a = said.map(bare), b = meant.map(bare);
  const cost = Array.from({ length: a.length + 1 }, (_, i) => Array.from({ length: b.length + 1 }, (_, j) => i + j));
  for (let i = 1; i <= a.length; i++)
    for (let j = 1; j <= b.length; j++)
      cost[i][j] = Math.min(
        cost[i - 1][j - 1] + (a[i - 1] !== b[j - 1]),
        cost[i - 1][j] + 1,
        cost[i][j - 1] + 1,
      );
  const wrong = a.map(() => true), missed = b.map(() => true);
  let i = a.length, j = b.length;
  while (i && j) {
    const same = a[i - 1] === b[j - 1];
    if (cost[i][j] === cost[i - 1][j - 1] + !same) {
      i--, j--;
      wrong[i] = missed[j] = !same;
    } else if (cost[i][j] === cost[i - 1][j] + 1) i--;
    else j--;
  }
  return { wrong, missed, errors: cost[a.length][b.length] };
}
