// The server counts characters (code points), JavaScript counts UTF-16 units: a character beyond U+FFFF has two of them.

// Return a function that turns an offset in characters of `text` into an offset in UTF-16 units.
export function unitOffsets(text) {
  const wide = Array.from(text.matchAll(/[\u{10000}-\u{10FFFF}]/gu), (found, before) => found.index - before);
  return (offset) => offset + countBelow(wide, offset);
}

// Return how many of the ascending `numbers` are below `limit`.
export function countBelow(numbers, limit) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
