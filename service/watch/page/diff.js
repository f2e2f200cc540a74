// What differs between two texts, word by word.

const MOST = 1_000_000; // pairs of words that are compared; a step of a thousand words against another
const ALIKE = 0.3; // the share of common words below which two texts have nothing to compare
const WORDS = /\s*(?:[\p{L}\p{M}\p{N}_]+|\S)|\s+$/gu;

// The parts of both texts, each with whether it *differs*; null if they are too long, or have too little in common.
export function difference(before, after) {
  const [old, fresh] = [wordsOf(before), wordsOf(after)];
  const pairs = commonPairs(
    old.map((word) => word.trim()),
    fresh.map((word) => word.trim()),
  );
  if (pairs === null || pairs.length < ALIKE * Math.max(old.length, fresh.length)) return null;
  const [kept, added] = [new Set(pairs.map(([place]) => place)), new Set(pairs.map(([, place]) => place))];
  return { before: joined(old, kept), after: joined(fresh, added) };
}

const wordsOf = (text) => text.match(WORDS) ?? [];

function joined(words, common) {
  const parts = [];
  words.forEach((text, place) => {
    const differs = !common.has(place);
    if (parts.at(-1)?.differs === differs) parts.at(-1).text += text;
    else parts.push({ text, differs });
  });
  return parts;
}

// The longest common subsequence, as pairs of places. What both begin and end with needs no table.
function commonPairs(one, other) {
  const shortest = Math.min(one.length, other.length);
  let begin = 0;
  while (begin < shortest && one[begin] === other[begin]) begin++;
  let end = 0;
  while (end < shortest - begin && one[one.length - 1 - end] === other[other.length - 1 - end]) end++;
  const middle = tabled(one.slice(begin, one.length - end), other.slice(begin, other.length - end));
  if (middle === null) return null;
  const first = Array.from({ length: begin }, (_, place) => [place, place]);
  const last = Array.from({ length: end }, (_, place) => [one.length - end + place, other.length - end + place]);
  return [...first, ...middle.map(([a, b]) => [a + begin, b + begin]), ...last];
}

function tabled(one, other) {
  if (one.length * other.length > MOST) return null;
  const wide = other.length + 1;
  const lengths = new Uint16Array((one.length + 1) * wide); // of the common subsequence of what is left of both
  for (let a = one.length - 1; a >= 0; a--) {
    for (let b = other.length - 1; b >= 0; b--) {
      const [down, right] = [lengths[(a + 1) * wide + b], lengths[a * wide + b + 1]];
      lengths[a * wide + b] = one[a] === other[b] ? lengths[(a + 1) * wide + b + 1] + 1 : Math.max(down, right);
    }
  }
  const pairs = [];
  for (let a = 0, b = 0; a < one.length && b < other.length;) {
    if (one[a] === other[b]) pairs.push([a++, b++]);
    else if (lengths[(a + 1) * wide + b] >= lengths[a * wide + b + 1]) a++;
    else b++;
  }
  return pairs;
}
